//! Tagged messages: the dynamic API. The transports other than `rc_mlx5` have none.

#![cfg_attr(not(feature = "mlx5"), allow(unused_variables, reason = "no transport matches tags"))]

#[cfg(feature = "mlx5")]
use super::TagReceives;
#[cfg(feature = "mlx5")]
use crate::base::capability::{TagEager, TagRendezvous};
use crate::base::completion::Completion;
use crate::base::error::{HandlerError, PostError};
use crate::base::memory::Slice;
use crate::base::status::Post;
use crate::dynamic::endpoint::Endpoint;
#[cfg(feature = "mlx5")]
use crate::dynamic::endpoint::Kind;
use crate::dynamic::interface::Interface;
#[cfg(feature = "mlx5")]
use crate::dynamic::interface::Kind as InterfaceKind;
use crate::dynamic::tag::{TagEvent, TagReceive};

impl Endpoint {
    /// As [`TagEager::tag_short`](crate::capability::TagEager::tag_short); transports with
    /// [`Flags::TAG_EAGER_SHORT`](crate::Flags::TAG_EAGER_SHORT).
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Unsupported`] over other transports, and if this interface or
    /// the peer's was opened without tag matching
    #[inline]
    pub fn tag_short(&self, tag: u64, payload: &[u8]) -> Result<(), PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.tag_short(tag, payload),
            _ => Err(PostError::Unsupported),
        }
    }

    /// As [`TagEager::tag_bcopy`](crate::capability::TagEager::tag_bcopy); transports with
    /// [`Flags::TAG_EAGER_BCOPY`](crate::Flags::TAG_EAGER_BCOPY).
    ///
    /// # Errors
    /// As [`Self::tag_short`].
    #[inline]
    pub fn tag_bcopy(
        &self,
        tag: u64,
        immediate: u32,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.tag_bcopy(tag, immediate, pack),
            _ => Err(PostError::Unsupported),
        }
    }

    /// As [`TagEager::tag_zcopy`](crate::capability::TagEager::tag_zcopy); transports with
    /// [`Flags::TAG_EAGER_ZCOPY`](crate::Flags::TAG_EAGER_ZCOPY).
    ///
    /// # Errors
    /// As [`Self::tag_short`].
    #[inline]
    pub fn tag_zcopy(
        &self,
        tag: u64,
        immediate: u32,
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.tag_zcopy(tag, immediate, slices, completion),
            _ => Err(PostError::Unsupported),
        }
    }

    /// As [`TagRendezvous::tag_rendezvous`](crate::capability::TagRendezvous::tag_rendezvous);
    /// transports with [`Flags::TAG_RNDV_ZCOPY`](crate::Flags::TAG_RNDV_ZCOPY).
    ///
    /// # Errors
    /// As [`Self::tag_short`].
    pub fn tag_rendezvous(
        &self,
        tag: u64,
        header: &[u8],
        slice: &Slice<'_>,
        completion: &Completion,
    ) -> Result<(), PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.tag_rendezvous(tag, header, slice, completion),
            _ => Err(PostError::Unsupported),
        }
    }

    /// Returns the number of the queue pair on which the tagged messages of the peer arrive, by
    /// which their [events](TagEvent) name it; `None` without tag matching.
    pub fn tag_queue_pair(&self) -> Option<u32> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.tag_queue_pair(),
            _ => None,
        }
    }

    /// Completes the rendezvous `operation` of the peer.
    pub(super) fn finish_rendezvous(&self, tag: u64, operation: u32) -> Result<(), PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(endpoint) => endpoint.finish_rendezvous(tag, operation),
            _ => Err(PostError::Unsupported),
        }
    }
}

impl Interface {
    /// As [`TagReceives::set_tag_handler`](crate::capability::TagReceives::set_tag_handler);
    /// transports with [`Flags::TAG_EAGER_SHORT`](crate::Flags::TAG_EAGER_SHORT).
    ///
    /// ```
    /// # use barewire::{Access, Domain, Endpoint, Interface, InterfaceConfig, TagEvent, Worker};
    /// # use barewire::config::Choice;
    /// use std::{cell::Cell, rc::Rc};
    ///
    /// # let mut worker = Worker::new();
    /// # let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    /// let config = InterfaceConfig::default().tag_matching(Choice::Yes);
    /// let interface = Interface::open(&mut worker, &domain, &config)?;
    /// let received = Rc::new(Cell::new(None));
    /// let result = Rc::clone(&received);
    /// interface.set_tag_handler(move |event| match event {
    ///     // It is in the buffer of the receive.
    ///     TagEvent::Received { tag, length, .. } => result.set(Some((tag, length))),
    ///     // It arrived before the receive was in the list.
    ///     TagEvent::Unexpected { tag, message, .. } => {
    ///         result.set(Some((tag, message.data().len())));
    ///     }
    ///     _ => {}
    /// })?;
    /// # let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    /// # here.connect(&there.address())?;
    /// # there.connect(&here.address())?;
    ///
    /// // A receive of every tag whose lower byte is 7.
    /// let memory = domain.allocate(4096, Access::LOCAL_WRITE)?;
    /// interface.tag_receive(7, 0xff, &memory.slice(0, 64)?, 1)?;
    /// here.tag_short(0x107, b"hello")?;
    /// while received.get().is_none() {
    ///     worker.progress();
    /// }
    /// assert_eq!(received.get(), Some((0x107, 5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HandlerError::NoTags`] over other transports, and if the interface was opened without tag
    /// matching; [`HandlerError::Closed`]
    pub fn set_tag_handler(
        &self,
        handler: impl FnMut(TagEvent<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            InterfaceKind::RcMlx5(interface) => interface.set_tag_handler(handler),
            _ => Err(HandlerError::NoTags),
        }
    }

    /// As [`TagReceives::tag_receive`](crate::capability::TagReceives::tag_receive).
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Unsupported`] over other transports, and if the interface was
    /// opened without tag matching
    #[inline]
    pub fn tag_receive(
        &self,
        tag: u64,
        mask: u64,
        buffer: &Slice<'_>,
        context: u64,
    ) -> Result<TagReceive, PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            InterfaceKind::RcMlx5(interface) => interface.tag_receive(tag, mask, buffer, context),
            _ => Err(PostError::Unsupported),
        }
    }

    /// As [`TagReceives::tag_cancel`](crate::capability::TagReceives::tag_cancel).
    ///
    /// # Errors
    /// As [`Self::tag_receive`].
    pub fn tag_cancel(&self, receive: TagReceive, force: bool) -> Result<bool, PostError> {
        match &self.0 {
            #[cfg(feature = "mlx5")]
            InterfaceKind::RcMlx5(interface) => interface.tag_cancel(receive, force),
            _ => Err(PostError::Unsupported),
        }
    }
}
