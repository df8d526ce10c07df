//! What uct.h promises, whatever the state of an endpoint: statuses, and progress that is not needed.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rigs"
)]

use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

use super::pair::{Pair, TRANSPORTS, attributes};
use super::{Rig, append};
use crate::abi::{Completion, iface_flag as f};
use crate::endpoint::Ep;
use crate::iface;
use crate::status::{INPROGRESS, NO_RESOURCE, OK};

const DEADLINE: Duration = Duration::from_mins(1);
/// More posts than any queue has room for.
const MANY: usize = 100_000;

/// Posts small puts, or messages over transports without puts, until one is refused.
fn fill(pair: &Pair) {
    let (ops, flags) = (pair.own.ops(), attributes(&pair.own).cap.flags);
    let post = || unsafe {
        if flags & f::PUT_SHORT != 0 {
            let data = [7_u8; 8];
            (ops.ep_put_short)(pair.ep, data.as_ptr(), 8, pair.remote.address(), pair.rkey())
        } else if flags & f::PUT_ZCOPY != 0 {
            let iov = pair.local.pieces(8, 1);
            let (remote, rkey) = (pair.remote.address(), pair.rkey());
            (ops.ep_put_zcopy)(pair.ep, iov.as_ptr(), 1, remote, rkey, null_mut())
        } else {
            (ops.ep_am_short)(pair.ep, 1, 0, null(), 0)
        }
    };
    for _ in 0..MANY {
        match post() {
            OK | INPROGRESS => {}
            status => return assert_eq!(status, NO_RESOURCE),
        }
    }
}

/// Returns the status of a flush of the interface, after checking that uct.h allows it, and those of
/// fences.
fn flush(rig: &Rig, ep: *mut Ep, done: *mut Completion, what: &str) -> i8 {
    unsafe {
        assert_eq!((rig.ops().ep_fence)(ep, 0), OK, "{what}: fence of the endpoint");
        assert_eq!((rig.ops().iface_fence)(rig.iface, 0), OK, "{what}: fence");
        let status = (rig.ops().iface_flush)(rig.iface, 0, done);
        assert!(status == OK || status == INPROGRESS, "{what}: the flush returns {status}");
        status
    }
}

/// libucp ends a flush of its worker with any other status.
#[test]
fn a_flush_of_an_interface_is_done_or_in_progress() {
    for (transport, device) in TRANSPORTS {
        let Some(pair) = Pair::over(transport, device) else { return };
        let what = transport.to_str().unwrap();
        for _ in 0..3 {
            // At first the endpoint may be connecting.
            fill(&pair);
            flush(&pair.own, pair.ep, null_mut(), what);
            let mut done = Completion { func: None, count: 1, status: OK };
            let record = NonNull::from(&mut done).as_ptr();
            let status = flush(&pair.own, pair.ep, record, what);
            pair.until("the flush", || flush(&pair.own, pair.ep, null_mut(), what) == OK);
            if status == INPROGRESS {
                let count = || unsafe { (&raw const (*record).count).read_volatile() };
                pair.until("the flush with a completion", || count() == 0);
            }
            assert_eq!(done.status, OK, "{what}");
        }
    }
}

/// Nothing was posted, so that a flush has nothing to wait for.
#[test]
fn an_endpoint_that_is_not_connected_is_flushed_and_fenced_at_once() {
    for (transport, device) in TRANSPORTS {
        let Some(rig) = Rig::over(transport, device) else { return };
        if attributes(&rig).cap.flags & f::CONNECT_TO_EP == 0 {
            continue;
        }
        let (ep, what) = (rig.endpoint(None), transport.to_str().unwrap());
        assert_eq!(unsafe { (rig.ops().ep_flush)(ep, 0, null_mut()) }, OK, "{what}");
        assert_eq!(flush(&rig, ep, null_mut(), what), OK, "{what}");
        unsafe { crate::dispatch::uct_ep_destroy(ep) };
    }
}

/// `tcp` connects and sends by the calls of one side: the other may compute, or wait for something
/// else.
#[test]
fn messages_of_tcp_leave_without_progress_of_the_peer() {
    let (Some(rig), Some(peer)) = (Rig::over(c"tcp", c"lo"), Rig::over(c"tcp", c"lo")) else {
        return;
    };
    let ep = rig.endpoint(Some(&peer));
    let mut received = Vec::<Vec<u8>>::new();
    let argument: *mut std::ffi::c_void = (&raw mut received).cast();
    let limit = Instant::now() + DEADLINE;
    unsafe {
        let set = iface::uct_iface_set_am_handler(peer.iface, 1, Some(append), argument, 0);
        assert_eq!(set, OK);
        let send = |header| (rig.ops().ep_am_short)(ep, 1, header, null(), 0);
        assert_eq!((rig.ops().ep_flush)(ep, 0, null_mut()), OK, "nothing was posted");
        while send(0) == NO_RESOURCE {
            rig.progress();
            assert!(Instant::now() < limit, "it does not connect");
        }
        for header in 1..10 {
            assert_eq!(send(header), OK);
        }
        assert_eq!((rig.ops().ep_flush)(ep, 0, null_mut()), OK);
        assert_eq!(flush(&rig, ep, null_mut(), "tcp"), OK);
        // Only the peer makes progress from here on.
        while argument.cast::<Vec<Vec<u8>>>().as_ref().is_some_and(|all| all.len() < 10) {
            peer.progress();
            assert!(Instant::now() < limit, "messages are missing");
        }
        for (number, message) in received.iter().enumerate() {
            assert_eq!(*message, (number as u64).to_ne_bytes());
        }
        crate::dispatch::uct_ep_destroy(ep);
    }
}

/// The last message or put of a program may be that with which its peer ends.
#[test]
fn a_flush_does_not_need_the_peer_that_has_everything() {
    type Operation = fn(&Pair, *mut Completion) -> i8;
    let message: Operation = |pair, done| unsafe {
        let header = [1_u8; 8];
        (pair.own.ops().ep_am_zcopy)(pair.ep, 1, header.as_ptr(), 8, null(), 0, 0, done)
    };
    let put: Operation = |pair, done| unsafe {
        let (iov, remote) = (pair.local.pieces(8, 1), pair.remote.address());
        (pair.own.ops().ep_put_zcopy)(pair.ep, iov.as_ptr(), 1, remote, pair.rkey(), done)
    };
    let atomic: Operation = |pair, done| unsafe {
        let (result, remote) = (pair.local.address() as *mut u64, pair.remote.address());
        (pair.own.ops().ep_atomic64_fetch)(pair.ep, 0, 1, result, remote, pair.rkey(), done)
    };
    for transport in [c"rc_mlx5", c"dc_mlx5"] {
        for (kind, operation) in [("message", message), ("put", put), ("atomic", atomic)] {
            let Some(pair) = Pair::over(transport, c"soft0:1") else { return };
            let what = format!("{kind} over {}", transport.to_str().unwrap());
            // It is acknowledged.
            assert_eq!(pair.post(&what, |done| operation(&pair, done)), OK, "{what}");
            let (ep, own, _memory) = pair.end_peer();
            let (limit, flush) = (Instant::now() + DEADLINE, own.ops().ep_flush);
            while unsafe { flush(ep, 0, null_mut()) } == INPROGRESS {
                own.progress();
                assert!(Instant::now() < limit, "{what}: it is not flushed");
            }
            assert_eq!(unsafe { flush(ep, 0, null_mut()) }, OK, "{what}");
            unsafe { crate::dispatch::uct_ep_destroy(ep) };
        }
    }
}

/// libucp selects lanes by capabilities, and shall select as with UCX's own library.
#[test]
fn tcp_has_the_operations_of_ucx_for_programs_that_select_lanes() {
    let Some(rig) = Rig::with_features(c"tcp", c"lo") else { return };
    let caps = attributes(&rig).cap;
    let one_sided = f::PUT_SHORT
        | f::PUT_BCOPY
        | f::PUT_ZCOPY
        | f::GET_SHORT
        | f::GET_BCOPY
        | f::GET_ZCOPY
        | f::ATOMIC_CPU
        | f::ATOMIC_DEVICE;
    assert_eq!(caps.flags & one_sided, f::PUT_ZCOPY);
    assert_eq!((caps.put.max_short, caps.put.max_bcopy, caps.get.max_zcopy), (0, 0, 0));
    assert_eq!((caps.atomic64.op_flags, caps.atomic32.fop_flags), (0, 0));
    let messages = f::AM_SHORT | f::AM_BCOPY | f::AM_ZCOPY;
    assert_eq!(caps.flags & messages, messages);
    // A program that names none uses whatever there is.
    let Some(rig) = Rig::over(c"tcp", c"lo") else { return };
    assert_eq!(
        attributes(&rig).cap.flags & one_sided,
        one_sided & !f::GET_SHORT & !f::ATOMIC_DEVICE
    );
}
