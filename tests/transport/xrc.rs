//! `xrc_mlx5`: endpoints to several interfaces of a node over one connection, which end one by one
//! and fail together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::capability::{AmShort, Atomics, Check, Flush, GetZcopy, Pending, PutShort};
use barewire::transport::xrc_mlx5::{Domain, Endpoint, Interface, Progress};
use barewire::transport::{Domain as _, Endpoint as _, Interface as _};
use barewire::{
    Access, AtomicOp, Cause, Completion, ConnectError, FetchResult, FlushMode, InterfaceConfig,
    PendingResult, PostError, Posted,
};
use barewire_hca as hca;

use super::allocator;
use crate::support::device;

const DEADLINE: Duration = Duration::from_mins(1);

/// An interface of a node.
struct Process {
    interface: Interface,
    progress: Progress,
    /// Header and length of every message.
    inbox: Rc<RefCell<Vec<(u64, usize)>>>,
    /// How often the error handler was called.
    errors: Rc<Cell<u32>>,
}

impl Process {
    fn new(node: &Domain, config: &InterfaceConfig) -> Self {
        let (interface, progress) = Interface::open(node, config).unwrap();
        let inbox = Rc::<RefCell<Vec<_>>>::default();
        let seen = Rc::clone(&inbox);
        let handler = move |message: barewire::Message<'_>| {
            let (header, payload) = message.split_short().unwrap();
            seen.borrow_mut().push((header, payload.len()));
        };
        interface.set_handler(1, handler).unwrap();
        let errors = Rc::new(Cell::new(0));
        let count = Rc::clone(&errors);
        interface.set_error_handler(move |_| count.set(count.get() + 1));
        Self { interface, progress, inbox, errors }
    }

    fn received(&self) -> usize {
        self.inbox.borrow().len()
    }
}

fn node() -> Domain {
    Domain::open_soft(device(hca::Faults::default())).unwrap()
}

fn small() -> InterfaceConfig {
    InterfaceConfig::default().send_ring(16).receive_ring(16).min_rnr_timer(1)
}

/// Connects an endpoint of each interface to the other's.
fn join(one: &Process, other: &Process) -> (Endpoint, Endpoint) {
    let ends = (Endpoint::new(&one.interface).unwrap(), Endpoint::new(&other.interface).unwrap());
    ends.0.connect(&ends.1.address()).unwrap();
    ends.1.connect(&ends.0.address()).unwrap();
    ends
}

fn until(processes: &mut [&mut Process], mut done: impl FnMut(&mut [&mut Process]) -> bool) {
    let start = Instant::now();
    while !done(processes) {
        for process in &mut *processes {
            process.progress.progress();
        }
        assert!(start.elapsed() < DEADLINE, "not done in time");
    }
}

fn is_taken(posted: Result<(), PostError>) -> bool {
    match posted {
        Ok(()) => true,
        Err(PostError::NoResource) => false,
        Err(error) => panic!("{error}"),
    }
}

fn flush(endpoint: &Endpoint, processes: &mut [&mut Process]) {
    until(processes, |_| match endpoint.flush(FlushMode::Remote, None) {
        Ok(Posted::Done) => true,
        Ok(Posted::InProgress) | Err(PostError::NoResource) => false,
        other => panic!("{other:?}"),
    });
}

#[test]
fn one_connection_reaches_every_interface_of_a_node() {
    const INTERFACES: usize = 8;
    const EACH: u64 = 200;
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &small());
    let mut there: Vec<_> = (0..INTERFACES).map(|_| Process::new(&far, &small())).collect();
    let (first, _from_here) = join(&here, &there[0]);
    let mut endpoints = vec![first];
    for process in &there[1..] {
        endpoints.push(here.interface.connect(&process.interface.address()).unwrap());
    }
    let mut sent = [0; INTERFACES];
    let mut all: Vec<_> = std::iter::once(&mut here).chain(&mut there).collect();
    until(&mut all, |all| {
        for (endpoint, sent) in endpoints.iter().zip(&mut sent) {
            if *sent < EACH && is_taken(endpoint.am_short(1, *sent, b"message")) {
                *sent += 1;
            }
        }
        all[1..].iter().all(|process| process.received() == EACH as usize)
    });
    let wanted: Vec<_> = (0..EACH).map(|number| (number, 7)).collect();
    for process in &there {
        assert_eq!(*process.inbox.borrow(), wanted);
    }
    for endpoint in &endpoints {
        assert_eq!(endpoint.counters().posted, EACH);
    }
    assert_eq!(here.interface.counters().posted, EACH * INTERFACES as u64);
}

#[test]
fn memory_of_a_node_is_reached_through_each_endpoint() {
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &small());
    let (mut first, mut second) = (Process::new(&far, &small()), Process::new(&far, &small()));
    let (to_first, _back) = join(&here, &first);
    let to_second = here.interface.connect(&second.interface.address()).unwrap();
    let memory = far.allocate(64, Access::all()).unwrap();
    let key = near.unpack_key(&memory.pack_key()).unwrap();
    for (at, endpoint) in [to_first, to_second].iter().enumerate() {
        let offset = 8 * at;
        endpoint.put_short(&[at as u8 + 1; 8], memory.address() + offset as u64, &key).unwrap();
        flush(endpoint, &mut [&mut here, &mut first, &mut second]);
        let mut bytes = [0; 8];
        memory.read(offset, &mut bytes).unwrap();
        assert_eq!(bytes, [at as u8 + 1; 8]);
        let result = FetchResult::new();
        let done = Rc::new(Cell::new(false));
        let note = Rc::clone(&done);
        let completion = Completion::new(move |result| note.set(result.is_ok()));
        let _ = endpoint
            .atomic_fetch(
                AtomicOp::Add(1_u64),
                memory.address() + 32,
                &key,
                &result,
                Some(&completion),
            )
            .unwrap();
        until(&mut [&mut here, &mut first, &mut second], |_| done.get());
        assert_eq!(result.get(), at as u64);
    }
}

#[test]
fn an_endpoint_without_a_connection_is_refused() {
    let (near, far) = (node(), node());
    let (here, there) = (Process::new(&near, &small()), Process::new(&far, &small()));
    let error = here.interface.connect(&there.interface.address()).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("connect one first"), "{error}");
    let other = Process::new(&node(), &small());
    let _ends = join(&here, &other);
    assert!(here.interface.connect(&there.interface.address()).is_err());
    assert!(here.interface.connect(&other.interface.address()).is_ok());
}

/// The endpoint that connected is closed first; its slot goes to another one on the connection, and
/// a new connection gets another slot.
#[test]
fn closing_one_endpoint_does_not_disturb_the_others() {
    let (near, far) = (node(), node());
    let config = small().max_endpoints(4);
    let mut here = Process::new(&near, &config);
    let (mut one, mut two) = (Process::new(&far, &config), Process::new(&far, &config));
    for round in 0..3 {
        let (to_one, back) = join(&here, &one);
        let to_two = here.interface.connect(&two.interface.address()).unwrap();
        let again = here.interface.connect(&one.interface.address()).unwrap();
        let calls = Rc::new(Cell::new(0));
        let memory = near.allocate(4096, Access::all()).unwrap();
        let remote = far.allocate(4096, Access::all()).unwrap();
        let key = near.unpack_key(&remote.pack_key()).unwrap();
        for endpoint in [&to_one, &to_two] {
            let count = Rc::clone(&calls);
            let completion = Completion::new(move |result| {
                assert_eq!(result, Ok(()));
                count.set(count.get() + 1);
            });
            let slice = memory.slice(0, 4096).unwrap();
            let posted = endpoint.get_zcopy(&[slice], remote.address(), &key, Some(&completion));
            assert_eq!(posted, Ok(Posted::InProgress));
        }
        drop(to_one);
        until(&mut [&mut here, &mut one, &mut two], |_| calls.get() == 2);
        // The endpoint is removed once its operations are complete, and its place is free.
        let mut another = None;
        until(&mut [&mut here, &mut one, &mut two], |all| {
            another = another.take().or_else(|| Endpoint::new(&all[0].interface).ok());
            another.is_some()
        });
        let before = (one.received(), two.received());
        until(&mut [&mut here, &mut one, &mut two], |all| {
            let _ = again.am_short(1, 0, &[]);
            let _ = to_two.am_short(1, 0, &[]);
            all[1].received() > before.0 + 40 && all[2].received() > before.1 + 40
        });
        flush(&again, &mut [&mut here, &mut one, &mut two]);
        drop((again, to_two, back, another));
        // Every endpoint of the round is removed, and the interface has room for as many again.
        let mut all = Vec::new();
        until(&mut [&mut here, &mut one, &mut two], |processes| {
            all.extend(Endpoint::new(&processes[0].interface).ok());
            all.len() == 4
        });
        drop(all);
        // They are not connected, so the next progress removes them.
        until(&mut [&mut here], |all| all[0].progress.progress() == 0);
        assert_eq!((here.errors.get(), one.errors.get()), (0, 0), "round {round}");
    }
}

#[test]
fn a_flush_waits_for_nothing_of_others() {
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &InterfaceConfig::default());
    let (mut one, two) = (Process::new(&far, &small()), Process::new(&far, &small()));
    let (busy, _back) = join(&here, &one);
    let idle = here.interface.connect(&two.interface.address()).unwrap();
    let memory = near.allocate(1 << 20, Access::all()).unwrap();
    let remote = far.allocate(1 << 20, Access::all()).unwrap();
    let key = near.unpack_key(&remote.pack_key()).unwrap();
    let done = Rc::new(Cell::new(false));
    let note = Rc::clone(&done);
    let completion = Completion::new(move |_| note.set(true));
    let slice = memory.slice(0, 1 << 20).unwrap();
    let _ = busy.get_zcopy(&[slice], remote.address(), &key, Some(&completion)).unwrap();
    assert_eq!(idle.flush(FlushMode::Local, None), Ok(Posted::Done));
    assert_eq!(busy.flush(FlushMode::Local, None), Ok(Posted::InProgress));
    until(&mut [&mut here, &mut one], |_| done.get());
    assert_eq!(busy.flush(FlushMode::Local, None), Ok(Posted::Done));
}

#[test]
fn cancelling_ends_one_endpoint_only() {
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &small());
    let (mut one, mut two) = (Process::new(&far, &small()), Process::new(&far, &small()));
    let (to_one, _back) = join(&here, &one);
    let to_two = here.interface.connect(&two.interface.address()).unwrap();
    to_one.am_short(1, 7, &[]).unwrap();
    to_two.am_short(1, 8, &[]).unwrap();
    let ended = Rc::new(Cell::new(None));
    let note = Rc::clone(&ended);
    let completion = Completion::new(move |result| note.set(Some(result)));
    let posted = to_one.flush(FlushMode::Cancel, Some(&completion)).unwrap();
    assert_eq!(to_one.am_short(1, 9, &[]), Err(PostError::EndpointFailed));
    to_two.am_short(1, 10, &[]).unwrap();
    until(&mut [&mut here, &mut one, &mut two], |all| {
        let ends = posted == Posted::Done || ended.get().is_some();
        ends && all[2].received() == 2
    });
    assert!(matches!(ended.get(), None | Some(Ok(()))), "{:?}", ended.get());
    flush(&to_two, &mut [&mut here, &mut one, &mut two]);
    assert_eq!(here.errors.get(), 0);
    // The last endpoint on a connection cancels what is outstanding.
    drop(to_one);
    until(&mut [&mut here], |all| {
        all[0].progress.progress();
        to_two.flush(FlushMode::Cancel, None) == Ok(Posted::Done)
    });
}

/// The peer takes no message, so that nothing completes before the connection is cancelled. This
/// happens when its last endpoint is cancelled, or dropped.
#[test]
fn cancelling_every_endpoint_ends_the_connection() {
    for drops_one in [false, true] {
        let (near, far) = (node(), node());
        let mut here = Process::new(&near, &small().send_ring(256));
        let (mut one, two) = (Process::new(&far, &small()), Process::new(&far, &small()));
        let (to_one, _back) = join(&here, &one);
        let to_two = here.interface.connect(&two.interface.address()).unwrap();
        until(&mut [&mut one], |_| to_one.check().is_ok());
        // More than the peer's buffers, whose number grows only in its progress.
        let mut full = false;
        until(&mut [&mut here], |_| {
            full |= !is_taken(to_one.am_short(1, 0, &[])) | !is_taken(to_two.am_short(1, 0, &[]));
            full
        });
        let ended = Rc::new(RefCell::new(Vec::new()));
        let completion = || {
            let ended = Rc::clone(&ended);
            Completion::new(move |result| ended.borrow_mut().push(result))
        };
        let (first, second) = (completion(), completion());
        assert_eq!(to_one.flush(FlushMode::Cancel, Some(&first)), Ok(Posted::InProgress));
        for _ in 0..100 {
            here.progress.progress();
        }
        assert_eq!(*ended.borrow(), []);
        if drops_one {
            // The endpoint that has the user index of the connection.
            drop(to_one);
        }
        assert_eq!(to_two.flush(FlushMode::Cancel, Some(&second)), Ok(Posted::InProgress));
        until(&mut [&mut here], |_| ended.borrow().len() == 2);
        assert_eq!(*ended.borrow(), [Ok(()); 2]);
        assert_eq!(here.errors.get(), 0);
    }
}

/// A write without rights fails the connection, and with it every endpoint on it; others go on.
#[test]
fn endpoints_on_a_connection_fail_together() {
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &small());
    let (mut one, mut two) = (Process::new(&far, &small()), Process::new(&far, &small()));
    let (to_one, _back) = join(&here, &one);
    let to_two = here.interface.connect(&two.interface.address()).unwrap();
    let (apart, _back) = join(&here, &two);
    let memory = far.allocate(64, Access::REMOTE_READ).unwrap();
    let key = near.unpack_key(&memory.pack_key()).unwrap();
    to_two.put_short(&[1; 8], memory.address(), &key).unwrap();
    until(&mut [&mut here, &mut one, &mut two], |_| {
        let _ = to_two.flush(FlushMode::Local, None);
        to_one.error().is_some() && to_two.error().is_some()
    });
    for endpoint in [&to_one, &to_two] {
        let error = endpoint.error().unwrap();
        assert_eq!(error.cause, Cause::RemoteAccess, "{error}");
        assert_eq!(endpoint.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
    }
    assert_eq!(here.errors.get(), 2);
    assert_eq!(apart.error(), None);
    let before = two.received();
    apart.am_short(1, 1, &[]).unwrap();
    until(&mut [&mut here, &mut one, &mut two], |all| all[2].received() > before);
    // Further endpoints use the connection that works.
    let further = here.interface.connect(&one.interface.address()).unwrap();
    further.check().unwrap();
    flush(&further, &mut [&mut here, &mut one, &mut two]);
    drop(apart);
    drop(to_one);
    until(&mut [&mut here, &mut one, &mut two], |_| further.am_short(1, 2, &[]).is_ok());
    flush(&further, &mut [&mut here, &mut one, &mut two]);
}

/// Requests of endpoints on a full connection run in turn.
#[test]
fn requests_wait_for_room_on_the_connection() {
    const ENDPOINTS: usize = 16;
    let (near, far) = (node(), node());
    let mut here = Process::new(&near, &small());
    let mut there = Process::new(&far, &small());
    let (first, _back) = join(&here, &there);
    let more = || here.interface.connect(&there.interface.address()).unwrap();
    let endpoints: Vec<_> = std::iter::once(first).chain((1..ENDPOINTS).map(|_| more())).collect();
    let mut queued = 0;
    for round in 0..4 {
        for (at, endpoint) in endpoints.iter().enumerate() {
            let header = at as u64 | round << 32;
            if endpoint.am_short(1, header, &[]).is_ok() {
                continue;
            }
            let request = move |endpoint: &Endpoint| match endpoint.am_short(1, header, &[]) {
                Ok(()) => PendingResult::Done,
                Err(_) => PendingResult::Again,
            };
            if endpoint.pending_add(request).is_ok() {
                queued += 1;
            } else {
                until(&mut [&mut here, &mut there], |_| endpoint.am_short(1, header, &[]).is_ok());
            }
        }
    }
    assert!(queued > ENDPOINTS, "{queued} requests waited");
    until(&mut [&mut here, &mut there], |all| all[1].received() == 4 * ENDPOINTS);
    for at in 0..ENDPOINTS as u64 {
        let inbox = there.inbox.borrow();
        let rounds: Vec<_> =
            inbox.iter().filter(|(header, _)| *header as u32 == at as u32).collect();
        assert!(rounds.is_sorted() && rounds.len() == 4, "{rounds:?}");
    }
}

/// An endpoint on a connection has no ring: what it costs is the same whatever the ring is.
#[test]
fn memory_of_an_endpoint_on_a_connection() {
    const ENDPOINTS: usize = 512;
    for ring in [16, 256] {
        let config = small().send_ring(ring).max_endpoints(ENDPOINTS as u32 + 1);
        let (near, far) = (node(), node());
        let (here, there) = (Process::new(&near, &config), Process::new(&far, &config));
        let (_first, _back) = join(&here, &there);
        let address = there.interface.address();
        let mut endpoints = Vec::with_capacity(ENDPOINTS);
        let before = allocator::held();
        endpoints.extend((0..ENDPOINTS).map(|_| here.interface.connect(&address).unwrap()));
        let bytes = (allocator::held() - before) as usize / ENDPOINTS;
        eprintln!("xrc_mlx5, a send ring of {ring} blocks: {bytes} bytes for a further endpoint");
        assert!(bytes <= 512, "{bytes} bytes");
    }
}
