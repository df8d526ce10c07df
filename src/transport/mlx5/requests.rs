//! The queues to which posts write requests, so that the posts are compiled for each kind: the
//! queue of an endpoint of `rc_mlx5`, and that of [`xrc_mlx5`](crate::transport::xrc_mlx5), which
//! several endpoints share.

use barewire_mlx5 as mlx5;
use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::queue::send::{Destination, Directed};
use barewire_mlx5::request::{Read, ToPeer, Write};
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, WqeIndex};

use super::change::{Changing, Queue};
use crate::transport::rc;

/// The result of a posting function.
pub(in crate::transport) type Posting = Result<WqeIndex, mlx5::PostError>;

/// Posts requests to one peer.
pub(crate) trait Posts {
    /// As [`SendQueue::post`](mlx5::SendQueue::post).
    fn post(&mut self, request: impl ToPeer, flags: ControlFlags) -> Posting;
}

impl<A: Destination> Posts for Directed<'_, A, Adaptive> {
    #[inline(always)]
    fn post(&mut self, request: impl ToPeer, flags: ControlFlags) -> Posting {
        Directed::post(self, request, flags)
    }
}

/// A queue to which posts write requests.
pub(crate) trait Requests: Posts + rc::Queue<Segment = DataSegment> {
    /// What requests carry as their destination, which decides how much else fits.
    type To: Destination;

    /// Blocks of the ring.
    fn blocks(&self) -> u32;

    /// Posts a change of a key by `run`, for which the next post waits.
    fn change_key(&mut self, run: impl FnOnce(&mut Queue) -> Changing) -> Changing;

    /// Posts a write (`PUT`) or a read of each transfer with one doorbell. The last one has `flags`.
    /// The caller has checked the room.
    fn post_list<const PUT: bool>(
        &mut self,
        transfers: impl ExactSizeIterator<Item = (DataSegment, RemoteAddressSegment)>,
        flags: ControlFlags,
    ) -> Posting;
}

/// Posts a write (`PUT`) or a read of each transfer. The last one has `flags`.
#[inline(always)]
pub(in crate::transport) fn post_each<const PUT: bool>(
    queue: &mut impl Posts,
    transfers: impl ExactSizeIterator<Item = (DataSegment, RemoteAddressSegment)>,
    flags: ControlFlags,
) -> Posting {
    let last = transfers.len().wrapping_sub(1);
    let mut posted = Ok(WqeIndex(0));
    for (at, (local, remote)) in transfers.enumerate() {
        let flags = if at == last { flags } else { ControlFlags::empty() };
        posted = if PUT {
            queue.post(Write { local, remote }, flags)
        } else {
            queue.post(Read { local, remote }, flags)
        };
        posted?;
    }
    posted
}
