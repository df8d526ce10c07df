//! Receives of the static API, and the events of a device that matches them.

use super::TagEvent;
use crate::base::error::{HandlerError, PostError};
use crate::base::memory::Slice;
use crate::base::tag::TagReceive;

/// Receives of an interface whose device matches tags: see [`tag`](crate::tag).
///
/// An interface that was opened without tag matching returns [`PostError::Unsupported`].
pub trait TagReceives {
    /// Sets the handler of [`TagEvent`]s, replacing an earlier one. It runs inside progress and may
    /// post. Without one, messages without a receive are dropped and counted as unhandled.
    fn set_tag_handler(
        &self,
        handler: impl FnMut(TagEvent<'_>) + 'static,
    ) -> Result<(), HandlerError>;

    /// Appends a receive into `buffer` to the list: of messages whose tag is equal to `tag` in the
    /// bits of `mask`. The handler gets `context` when a message has matched, and when the receive
    /// has ended.
    ///
    /// The device writes the buffer until the receive has ended. Like that of a get, its memory may
    /// be freed before, which is safe but rarely intended: the device loses access first, and the
    /// connection of a message that matches fails.
    ///
    /// # Errors
    /// [`PostError::NoResource`] if the list is full, [`PostError`]
    fn tag_receive(
        &self,
        tag: u64,
        mask: u64,
        buffer: &Slice<'_>,
        context: u64,
    ) -> Result<TagReceive, PostError>;

    /// Requests the removal of a receive from the list. Returns whether it is under way: the
    /// receive then ends as cancelled, unless a message has matched it before. Otherwise it has
    /// ended, or its removal was requested before.
    ///
    /// With `force`, the handler gets no further event of the receive, not even if a message has
    /// matched it. Its buffer may be written until the interface has processed the device's
    /// response.
    fn tag_cancel(&self, receive: TagReceive, force: bool) -> Result<bool, PostError>;
}

#[cfg(feature = "mlx5")]
mod mlx5 {
    use barewire_mlx5::layouts::tag::TagHeader;

    use super::super::{TagAnnouncement, TagEvent, UnreadAnnouncement};
    use super::TagReceives;
    use crate::base::error::{HandlerError, OperationError, PostError};
    use crate::base::memory::Slice;
    use crate::base::tag::TagReceive;
    use crate::transport::common::message::Message;
    use crate::transport::rc_mlx5::tags::{Received, TagReports};
    use crate::transport::rc_mlx5::{Endpoint, Interface};

    impl TagReceives for Interface {
        fn set_tag_handler(
            &self,
            handler: impl FnMut(TagEvent<'_>) + 'static,
        ) -> Result<(), HandlerError> {
            self.set_tag_reports(Box::new(Events(handler)))
        }

        #[inline]
        fn tag_receive(
            &self,
            tag: u64,
            mask: u64,
            buffer: &Slice<'_>,
            context: u64,
        ) -> Result<TagReceive, PostError> {
            self.append_receive(tag, mask, buffer, context)
        }

        fn tag_cancel(&self, receive: TagReceive, force: bool) -> Result<bool, PostError> {
            self.cancel_receive(receive, force)
        }
    }

    /// The handler of a program, which gets events.
    struct Events<F>(F);

    impl<F: FnMut(TagEvent<'_>)> TagReports for Events<F> {
        fn matched(&mut self, context: u64, tag: u64) {
            (self.0)(TagEvent::Matched { context, tag });
        }

        fn received(&mut self, received: Received) {
            let Received { context, queue_pair, tag, immediate, length } = received;
            (self.0)(TagEvent::Received { context, queue_pair, tag, immediate, length });
        }

        fn ended(&mut self, context: u64, error: OperationError) {
            (self.0)(TagEvent::Ended { context, error });
        }

        fn not_read(
            &mut self,
            context: u64,
            endpoint: Endpoint,
            header: &TagHeader,
            length: usize,
        ) {
            let announcement = UnreadAnnouncement::new(endpoint, header);
            (self.0)(TagEvent::NotRead { context, announcement, length });
        }

        fn unexpected(&mut self, queue_pair: u32, header: &TagHeader, message: Message<'_>) {
            let (tag, immediate) = (header.tag.get(), header.application.get());
            (self.0)(TagEvent::Unexpected { queue_pair, tag, immediate, message });
        }

        fn announced(&mut self, endpoint: Endpoint, header: &TagHeader, data: &[u8]) -> bool {
            let read = TagAnnouncement::parse(endpoint, header, data);
            let Some((announcement, header)) = read else { return false };
            (self.0)(TagEvent::Announced { announcement, header });
            true
        }
    }
}
