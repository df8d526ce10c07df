//! Tags whose receives the device of an interface matches.

use std::rc::Rc;

use barewire::{Cause, Domain, HandlerError, Interface, OperationError, TagEvent};

use super::buffer::Buffer;
use super::device::{DeviceList, HasBuffer, finish};
use super::protocol::{Expected, Limits, TagError};
use super::tags::{Inner, Tags};

impl HasBuffer for Expected<Buffer> {
    fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Tags {
    /// Tags without links. The device of `interface`, which is open in `domain` with
    /// [`tag_matching`](barewire::InterfaceConfig::tag_matching), matches the messages of links
    /// over it, and writes short ones to the buffers of the receives; the others are announced as
    /// over all links. Messages of links over other interfaces, which [`serve`](Self::serve) adds,
    /// are matched in software with the same receives.
    ///
    /// The device gets the receives that were posted first, as many as its list has room for, up
    /// to the first that has a buffer of fewer bytes than `threshold` or than an eager message may
    /// have (`tag.max_zcopy` of the [attributes](Interface::attributes)).
    ///
    /// # Errors
    /// [`HandlerError::NoTags`] if the device matches no tags, or the interface was opened without
    /// `tag_matching`; [`HandlerError::Closed`]
    pub fn matched_by(
        interface: &Interface,
        domain: &Rc<Domain>,
        threshold: usize,
        limits: Limits,
    ) -> Result<Self, HandlerError> {
        let tags = Self::matching(limits, interface, domain, threshold)?;
        tags.serve(interface)?;
        Ok(tags)
    }

    /// As [`Self::matched_by`], without the handler of active messages.
    pub(super) fn matching(
        limits: Limits,
        interface: &Interface,
        domain: &Rc<Domain>,
        threshold: usize,
    ) -> Result<Self, HandlerError> {
        let list = DeviceList::new(interface, domain, threshold);
        let tags = Self::with_list(limits, Some(list), Some(interface.clone()));
        let inner = Rc::downgrade(&tags.0);
        interface.set_tag_handler(move |event| {
            if let Some(tags) = inner.upgrade() {
                tags.tag_event(event);
                tags.run();
            }
        })?;
        Ok(tags)
    }
}

impl Inner {
    /// A violation has failed the link, which its requests report.
    fn tag_event(&self, event: TagEvent<'_>) {
        let mut machine = self.machine.borrow_mut();
        match event {
            TagEvent::Matched { context, .. } => machine.entry_matched(context as u16),
            TagEvent::Received { context, queue_pair, tag, immediate, length } => {
                let entry = context as u16;
                let _ = machine.entry_received(entry, queue_pair, tag, immediate, length);
            }
            TagEvent::Ended { context, error } => {
                machine.entry_ended(context as u16, failure(error));
            }
            TagEvent::Unexpected { queue_pair, tag, immediate, message } => {
                let _ = machine.unexpected(queue_pair, tag, immediate, message.data());
            }
            // Links announce in messages of their own. This is a stranger's.
            TagEvent::NotRead { context, .. } => {
                machine.entry_ended(context as u16, Some(TagError::Protocol));
            }
            TagEvent::Announced { announcement, .. } => {
                drop(machine);
                finish(announcement);
            }
            _ => {}
        }
    }
}

/// Why a receive has left the list without a message; `None` if it was cancelled.
fn failure(error: OperationError) -> Option<TagError> {
    (error.cause != Cause::Canceled).then_some(TagError::LinkFailed(error.cause))
}
