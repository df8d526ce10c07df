//! Reading the data of a rendezvous that the device has left to software.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use barewire::{
    Cause, Completion, Endpoint, OperationError, PendingResult, PostError, TagAnnouncement,
};

use super::{Inner, Receive, Received};
use crate::tag::protocol::TagError;

/// An endpoint may have no room for a get, and still none to wait for. Then another event must
/// help.
const ATTEMPTS: usize = 16;

impl Inner {
    /// Reads the data of a rendezvous, now or when the endpoint has resources.
    pub(super) fn fetch(&self, receive: Rc<Receive>, announcement: TagAnnouncement) {
        let endpoint = announcement.endpoint().clone();
        let tags = Weak::clone(&self.this);
        when_possible(&endpoint, move || {
            let Some(tags) = tags.upgrade() else { return Some(()) };
            match tags.post_fetch(&receive, &announcement) {
                Err(PostError::NoResource) => None,
                Err(_) => {
                    receive.result.set(Some(Err(TagError::Transfer(Cause::LocalOperation))));
                    finish(announcement.clone());
                    Some(())
                }
                Ok(()) => Some(()),
            }
        });
    }

    fn post_fetch(
        &self,
        receive: &Rc<Receive>,
        announcement: &TagAnnouncement,
    ) -> Result<(), PostError> {
        let (tag, length) = (announcement.tag(), announcement.len());
        let received = Received { tag, immediate: 0, length };
        if length == 0 {
            receive.result.set(Some(Ok(received)));
            finish(announcement.clone());
            return Ok(());
        }
        let (ended, origin) = (Rc::clone(receive), announcement.clone());
        let completion = Completion::new(move |result| {
            let failed = |error: OperationError| TagError::Transfer(error.cause);
            ended.result.set(Some(result.map(|()| received).map_err(failed)));
            finish(origin.clone());
        });
        let posted = receive.buffer.registered(&self.domain, |memory, _| {
            let slice = [memory.slice(0, length).map_err(|_| PostError::OutOfRange)?];
            let endpoint = announcement.endpoint();
            endpoint.get_zcopy(
                &slice,
                announcement.address(),
                announcement.key(),
                Some(&completion),
            )
        });
        posted.map_err(|_| PostError::ForeignMemory)?.map(|_| ())
    }
}

/// Completes the operation of the sender, now or when the endpoint has resources.
pub(in crate::tag) fn finish(announcement: TagAnnouncement) {
    let endpoint = announcement.endpoint().clone();
    when_possible(&endpoint, move || match announcement.finish() {
        Err(PostError::NoResource) => None,
        // The sender notices that the endpoint has failed.
        _ => Some(()),
    });
}

/// Calls `post` until it returns that it is done: now, and in pending requests of the endpoint.
fn when_possible(endpoint: &Endpoint, mut post: impl FnMut() -> Option<()> + 'static) {
    if post().is_some() {
        return;
    }
    let post = Rc::new(RefCell::new(post));
    for _ in 0..ATTEMPTS {
        let again = Rc::clone(&post);
        let request = move |_: &Endpoint| {
            let post = &mut *again.borrow_mut();
            if post().is_some() { PendingResult::Done } else { PendingResult::Again }
        };
        if endpoint.pending_add(request).is_ok() || (*post.borrow_mut())().is_some() {
            return;
        }
    }
}
