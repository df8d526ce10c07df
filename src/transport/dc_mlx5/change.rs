//! Changes of keys: windows and views.

use barewire_mlx5::{ControlFlags, WqeIndex};

use super::Endpoint;
use super::post::SIGNALED;
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, PostError};
use crate::base::status::Posted;
use crate::transport::common::operation::Done;
use crate::transport::handle::poster::Poster;
use crate::transport::mlx5::change::{ChangesKeys, Changing, Queue, fenced, reason};

impl ChangesKeys for Endpoint {
    /// Requests of peers arrive at the target.
    fn has_own_windows(&self) -> bool {
        false
    }

    fn change_key(
        &self,
        tag: u32,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut Queue, ControlFlags) -> Changing,
    ) -> Result<Posted, ChangeError> {
        let state = &*self.0;
        state.posting.check()?;
        if tag != state.shared.tag {
            return Err(PostError::ForeignMemory.into());
        }
        let initiator = state.take()?;
        let posted =
            initiator.with_queue(|queue| fenced(&mut queue.send, |queue| run(queue, SIGNALED)));
        let WqeIndex(index) = posted.map_err(|error| {
            state.give_back();
            reason(&error, || state.posting.refuse())
        })?;
        initiator.note_owner(index, state.slot);
        if let Some(completion) = completion {
            initiator.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    fn poster(&self) -> Poster {
        Poster::of(self)
    }
}
