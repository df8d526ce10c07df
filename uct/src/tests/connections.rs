//! Endpoints that connect, and what waits for that.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the rig"
)]

use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

use super::{Rig, append, connect};
use crate::abi::{AllocatedMemory, Completion, IfaceOps, PendingCallback, PendingReq, RkeyBundle};
use crate::endpoint::Ep;
use crate::status::{INPROGRESS, IO_ERROR, NO_RESOURCE, OK};
use crate::{component, dispatch, iface, md, memory};

const DEADLINE: Duration = Duration::from_mins(1);

/// A request with a function that counts its calls.
#[repr(C)]
struct Request {
    pending: PendingReq,
    ep: *mut Ep,
    runs: u32,
    purged: u32,
}

impl Request {
    fn new(ep: *mut Ep, run: PendingCallback) -> Self {
        let pending = PendingReq { func: Some(run), private: [0; 40] };
        Self { pending, ep, runs: 0, purged: 0 }
    }
}

/// Destroys the endpoint.
unsafe extern "C" fn leave(request: *mut PendingReq) -> i8 {
    unsafe {
        let request = request.cast::<Request>();
        (*request).runs += 1;
        let ops = **(*request).ep.cast::<*const IfaceOps>();
        (ops.ep_pending_purge)((*request).ep, Some(count), request.cast());
        dispatch::uct_ep_destroy((*request).ep);
    }
    OK
}

/// Never succeeds.
unsafe extern "C" fn refuse(request: *mut PendingReq) -> i8 {
    unsafe { (*request.cast::<Request>()).runs += 1 };
    IO_ERROR
}

unsafe extern "C" fn count(_: *mut PendingReq, first: *mut std::ffi::c_void) {
    unsafe { (*first.cast::<Request>()).purged += 1 };
}

/// Two requests, and the two ends of a connection for which they wait.
struct Waiting {
    requests: Box<[Request; 2]>,
    rig: Rig,
    ends: [*mut Ep; 2],
}

/// Two requests with this function wait for a connection. Makes progress until the first has run at
/// least `runs` times, once per progress.
fn wait_for_a_connection(run: PendingCallback, runs: u32) -> Option<Waiting> {
    let rig = Rig::over(c"tcp", c"lo")?;
    let (ep, peer) = (rig.endpoint(None), rig.endpoint(None));
    let mut requests = Box::new([Request::new(ep, run), Request::new(ep, run)]);
    for request in &mut *requests {
        let added = unsafe { (rig.ops().ep_pending_add)(ep, (&raw mut *request).cast(), 0) };
        assert_eq!(added, OK);
    }
    connect(peer, &rig, ep);
    connect(ep, &rig, peer);
    let limit = Instant::now() + DEADLINE;
    let first = &raw const requests[0].runs;
    while unsafe { first.read_volatile() } < runs {
        let before = unsafe { first.read_volatile() };
        rig.progress();
        assert!(unsafe { first.read_volatile() } <= before + 1, "it runs more than once");
        assert!(Instant::now() < limit, "the request does not run");
    }
    Some(Waiting { requests, rig, ends: [ep, peer] })
}

/// A request that waits for the connection destroys the endpoint, with others behind it.
#[test]
fn a_request_destroys_the_endpoint_that_it_waited_for() {
    let Some(Waiting { requests, rig: _rig, ends: [_, peer] }) = wait_for_a_connection(leave, 1)
    else {
        return;
    };
    assert_eq!(requests.each_ref().map(|request| request.runs), [1, 0]);
    assert_eq!(requests[0].purged, 1);
    unsafe { dispatch::uct_ep_destroy(peer) };
}

/// A request that fails although the endpoint has resources is tried once per progress, and can be
/// purged with those behind it.
#[test]
fn a_request_that_never_succeeds_does_not_spin() {
    let Some(Waiting { mut requests, rig, ends: [ep, peer] }) = wait_for_a_connection(refuse, 10)
    else {
        return;
    };
    unsafe {
        (rig.ops().ep_pending_purge)(ep, Some(count), (&raw mut requests[0]).cast());
        assert_eq!((requests[0].purged, requests[1].runs), (2, 0));
        let runs = requests[0].runs;
        rig.progress();
        assert_eq!(requests[0].runs, runs);
        dispatch::uct_ep_destroy(ep);
        dispatch::uct_ep_destroy(peer);
    }
}

/// The memory of requests may be free once their endpoint is destroyed, also without a purge.
#[test]
fn requests_of_a_destroyed_endpoint_do_not_run() {
    let Some(Waiting { requests, rig, ends: [ep, peer] }) = wait_for_a_connection(refuse, 1) else {
        return;
    };
    let runs =
        || requests.each_ref().map(|request| unsafe { (&raw const request.runs).read_volatile() });
    unsafe { dispatch::uct_ep_destroy(ep) };
    let before = runs();
    for _ in 0..10 {
        rig.progress();
    }
    assert_eq!(runs(), before);
    unsafe { dispatch::uct_ep_destroy(peer) };
}

/// Datagrams: an endpoint that is connected to an endpoint can send at once. One that is connected
/// to an interface cannot, and the flush of the interface is in progress until then. Over `shm` an
/// endpoint to an interface of its own process can send at once.
#[test]
fn a_flush_waits_for_connections() {
    for (transport, device, is_direct) in [
        (c"shm", c"memory", false),
        (c"ud_mlx5", c"soft0:1", true),
        (c"ud_mlx5", c"soft0:1", false),
    ] {
        let (Some(rig), Some(other)) = (Rig::over(transport, device), Rig::over(transport, device))
        else {
            return;
        };
        let mut received = Vec::<Vec<u8>>::new();
        let argument = (&raw mut received).cast();
        unsafe {
            assert_eq!(
                iface::uct_iface_set_am_handler(other.iface, 1, Some(append), argument, 0),
                OK
            );
            let send = |ep| (rig.ops().ep_am_short)(ep, 1, 0, null_mut(), 0);
            let mut counted = [(); 2].map(|()| Completion { func: None, count: 1, status: OK });
            let flush = || (rig.ops().iface_flush)(rig.iface, 0, null_mut());
            let (ep, end) = if is_direct {
                assert_eq!(flush(), OK, "{transport:?}");
                let ep = rig.endpoint(Some(&other));
                assert_eq!(send(ep), NO_RESOURCE, "{transport:?}");
                assert_eq!(flush(), INPROGRESS, "{transport:?}");
                for done in &mut counted {
                    let status = (rig.ops().iface_flush)(rig.iface, 0, done);
                    assert_eq!((status, done.count), (INPROGRESS, 1), "{transport:?}");
                }
                (ep, null_mut())
            } else if transport == c"shm" {
                (rig.endpoint(Some(&other)), null_mut())
            } else {
                let (ep, end) = (rig.endpoint(None), other.endpoint(None));
                connect(ep, &other, end);
                connect(end, &rig, ep);
                (ep, end)
            };
            let limit = Instant::now() + DEADLINE;
            while is_direct && flush() == INPROGRESS {
                rig.progress();
                other.progress();
                assert!(Instant::now() < limit, "{transport:?} does not connect");
            }
            while is_direct
                && counted.iter().any(|done| (&raw const done.count).read_volatile() > 0)
            {
                rig.progress();
                other.progress();
                assert!(Instant::now() < limit, "{transport:?}: the flush does not end");
            }
            assert_eq!(counted.map(|done| done.status), [OK; 2], "{transport:?}");
            assert_eq!(send(ep), OK, "{transport:?}");
            while received.is_empty() {
                rig.progress();
                other.progress();
                assert!(Instant::now() < limit, "{transport:?}: no message");
            }
            dispatch::uct_ep_destroy(ep);
            dispatch::uct_ep_destroy(end);
        }
    }
}

/// An endpoint of `self` accesses all memory of the process, also that of another memory domain.
#[test]
fn self_reaches_memory_of_other_interfaces() {
    let (Some(rig), Some(other)) = (Rig::of_self(), Rig::of_self()) else { return };
    let ep = rig.endpoint(Some(&other));
    unsafe {
        let mut target: AllocatedMemory = std::mem::zeroed();
        let allocated =
            memory::uct_iface_mem_alloc(other.iface, 64, 0x3e0, std::ptr::null(), &raw mut target);
        assert_eq!(allocated, OK);
        target.address.write_bytes(0, 64);
        let mut packed = [0_u8; 22];
        assert_eq!(md::uct_md_mkey_pack(other.md, target.memh.cast(), packed.as_mut_ptr()), OK);
        let mut key: RkeyBundle = std::mem::zeroed();
        let unpacked = component::uct_rkey_unpack(rig.component, packed.as_ptr(), &raw mut key);
        assert_eq!(unpacked, OK);
        let at = target.address as u64;
        assert_eq!((rig.ops().ep_atomic64_post)(ep, 0, 7, at + 8, key.rkey), OK);
        assert_eq!(NonNull::new(target.address).unwrap().add(8).read(), 7);
        assert_eq!(component::uct_rkey_release(rig.component, &raw const key), OK);
        memory::uct_iface_mem_free(&raw const target);
        dispatch::uct_ep_destroy(ep);
    }
}

unsafe extern "C" fn fail(_: *mut Completion) {
    panic!("the memory of this completion may be freed");
}

/// libucp frees its requests before it closes interfaces whose endpoints it could not flush.
#[test]
fn completions_are_not_called_when_an_interface_is_closed() {
    for cancel in [0, 1] {
        for (transport, device) in [(c"rc_mlx5", c"soft0:1"), (c"ud_mlx5", c"soft0:1")] {
            let Some(one) = Rig::over(transport, device) else { return };
            let other = Rig::over(transport, device).unwrap();
            let (here, there) = (one.endpoint(None), other.endpoint(None));
            connect(here, &other, there);
            connect(there, &one, here);
            let mut done = Completion { func: Some(fail), count: 1, status: OK };
            unsafe {
                assert_eq!((one.ops().ep_am_short)(here, 5, 0, null(), 0), OK);
                assert_eq!((one.ops().ep_flush)(here, cancel, &raw mut done), INPROGRESS);
                drop(one);
                assert_eq!((done.count, done.status), (1, OK), "{transport:?} {cancel}");
                dispatch::uct_ep_destroy(there);
            }
        }
    }
}

unsafe extern "C" fn note(done: *mut Completion) {
    unsafe { (*done).count = -1 };
}

/// The device has executed what was posted, and reports nothing more: no completion was requested.
#[test]
fn a_cancelling_flush_ends_behind_messages_that_have_arrived() {
    for (transport, device) in [
        (c"rc_mlx5", c"soft0:1"),
        (c"dc_mlx5", c"soft0:1"),
        (c"ud_mlx5", c"soft0:1"),
        (c"tcp", c"lo"),
        (c"shm", c"memory"),
    ] {
        let Some(one) = Rig::over(transport, device) else { return };
        let other = Rig::over(transport, device).unwrap();
        let (here, there) = if [c"shm", c"dc_mlx5"].contains(&transport) {
            (one.endpoint(Some(&other)), null_mut())
        } else {
            let (here, there) = (one.endpoint(None), other.endpoint(None));
            connect(here, &other, there);
            connect(there, &one, here);
            (here, there)
        };
        let (mut received, limit) = (Vec::<Vec<u8>>::new(), Instant::now() + DEADLINE);
        let mut done = Completion { func: Some(note), count: 1, status: OK };
        unsafe {
            let argument = (&raw mut received).cast();
            iface::uct_iface_set_am_handler(other.iface, 5, Some(append), argument, 0);
            while (one.ops().ep_am_short)(here, 5, 0, null(), 0) == NO_RESOURCE {
                one.progress();
                other.progress();
                assert!(Instant::now() < limit, "{transport:?} is not connected");
            }
            while received.is_empty() {
                other.progress();
                assert!(Instant::now() < limit, "nothing arrives over {transport:?}");
            }
            let mut status = (one.ops().ep_flush)(here, 1, &raw mut done);
            while status == INPROGRESS {
                one.progress();
                assert!(Instant::now() < limit, "no end over {transport:?}");
                status = if done.count == -1 { OK } else { INPROGRESS };
            }
            assert_eq!(status, OK, "{transport:?}");
            dispatch::uct_ep_destroy(here);
            dispatch::uct_ep_destroy(there);
        }
    }
}
