//! The static API: code that is generic over the transport by the capabilities that it needs, and
//! the thread rules as types.

use std::rc::Rc;

use barewire::capability::{
    AmBcopy, AmShort, AmZcopy, Atomics, Flush, GetBcopy, GetZcopy, Pending, PutBcopy, PutShort,
    PutZcopy, RemoteMemory,
};
use barewire::error::Busy;
use barewire::transport::{
    Domain as _, Endpoint as _, Interface as _, Memory as _, Progress, Transport, rc_mlx5, self_,
    shm,
};
use barewire::{
    Access, AtomicOp, Completion, FetchResult, Flags, FlushMode, InterfaceConfig, PendingResult,
    PostError, Posted, Unpack,
};
use barewire_hca as hca;

use crate::support::{DEADLINE, device};

/// All capabilities of a transport.
trait Everything:
    PutShort
    + PutBcopy
    + PutZcopy
    + GetBcopy
    + GetZcopy
    + AmShort
    + AmBcopy
    + AmZcopy
    + Atomics
    + Flush
    + Pending
{
}

impl Everything for self_::Endpoint {}
impl Everything for shm::Endpoint {}
impl Everything for rc_mlx5::Endpoint {}

/// Waits for a flush.
fn drain(endpoint: &impl Flush, progress: &mut impl Progress) {
    let start = std::time::Instant::now();
    while endpoint.flush(FlushMode::Remote, None).unwrap() == Posted::InProgress {
        progress.progress();
        std::thread::yield_now();
        assert!(start.elapsed() < DEADLINE);
    }
}

/// Posts until there are resources.
fn post<R>(progress: &mut impl Progress, post: impl Fn() -> Result<R, PostError>) -> R {
    let start = std::time::Instant::now();
    loop {
        match post() {
            Err(PostError::NoResource) => {
                progress.progress();
                assert!(start.elapsed() < DEADLINE);
            }
            other => return other.unwrap(),
        }
    }
}

/// An endpoint to the interface itself. The second endpoint keeps the other end of its connection,
/// if the transport connects endpoints.
fn connected<T: Transport>(interface: &T::Interface) -> (T::Endpoint, Option<T::Endpoint>) {
    if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
        assert!(
            !interface.attributes().flags.contains(Flags::CONNECT_TO_EP)
                || T::open_endpoint(interface).is_ok()
        );
        return (T::connect_to_interface(interface, &interface.address()).unwrap(), None);
    }
    assert!(T::connect_to_interface(interface, &interface.address()).is_err());
    let (here, there) =
        (T::open_endpoint(interface).unwrap(), T::open_endpoint(interface).unwrap());
    T::connect(&here, &there.address()).unwrap();
    T::connect(&there, &here.address()).unwrap();
    (here, Some(there))
}

/// Opens, connects and drives a transport, and uses all its operations.
fn over<T: Transport>(domain: &T::Domain)
where
    T::Endpoint: Everything + RemoteMemory<Key = T::RemoteKey>,
{
    let (interface, mut progress) = T::open_interface(domain, &InterfaceConfig::default()).unwrap();
    assert!(T::attributes(&InterfaceConfig::default()).flags.contains(Flags::AM_SHORT));
    let (endpoint, _peer) = connected::<T>(&interface);
    let memory = domain.allocate(64, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    let local = domain.allocate(64, Access::all()).unwrap();
    // The peer may have to pass its memory before the first operation with the key.
    post(&mut progress, || endpoint.put_short(&[0], memory.address(), &key));
    use_everything(&endpoint, memory.address(), &key, local.slice(0, 64).unwrap(), &mut progress);
    let start = std::time::Instant::now();
    while interface.unhandled() < 3 {
        progress.progress();
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(endpoint.error().is_none());
    assert!(interface.counters().posted >= 12);
}

/// Uses every operation on 64 bytes at `remote`, which start as zeros. `local` is 64 bytes of `01
/// 02 03 ..`.
fn use_everything<E: Everything>(
    endpoint: &E,
    remote: u64,
    key: &<E as RemoteMemory>::Key,
    local: barewire::Slice<'_>,
    progress: &mut impl Progress,
) {
    assert_eq!(endpoint.put_short(&[1; 8], remote, key), Ok(()));
    let pack = |buffer: &mut [u8]| {
        buffer[..8].fill(2);
        8
    };
    assert_eq!(endpoint.put_bcopy(pack, remote + 8, key), Ok(8));
    assert_eq!(endpoint.atomic_post(AtomicOp::Add(0x0303_0303_u64), remote + 16, key), Ok(()));
    let result = FetchResult::new();
    endpoint.fence().unwrap();
    let _ = endpoint.atomic_fetch(AtomicOp::Add(0_u64), remote + 16, key, &result, None).unwrap();
    drain(endpoint, progress);
    assert_eq!(result.get(), 0x0303_0303);
    let _ = endpoint
        .atomic_fetch(
            AtomicOp::CompareSwap { compare: 0x0303_0303_u64, swap: 4 },
            remote + 16,
            key,
            &result,
            None,
        )
        .unwrap();
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    let inner = Rc::clone(&seen);
    let unpack = Unpack::new(move |bytes| inner.borrow_mut().extend_from_slice(bytes));
    let done = Completion::counter();
    let _ = endpoint.get_bcopy(&unpack, 24, remote, key, Some(&done)).unwrap();
    drain(endpoint, progress);
    assert_eq!((done.pending(), done.status()), (0, Ok(())));
    assert_eq!(*seen.borrow(), [[1; 8], [2; 8], 4u64.to_ne_bytes()].concat());
    let _ = endpoint.put_zcopy(&[local], remote, key, None).unwrap();
    let _ = endpoint.get_zcopy(&[local], remote, key, None).unwrap();
    assert_eq!(endpoint.am_short(1, 5, b"short"), Ok(()));
    assert_eq!(endpoint.am_bcopy(1, pack), Ok(8));
    let _ = endpoint.am_zcopy(1, b"header", &[local], None).unwrap();
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(Busy));
    endpoint.pending_purge(|| panic!("nothing waits"));
    drain(endpoint, progress);
    assert_eq!(endpoint.am_short(32, 0, &[]), Err(PostError::UnknownHandlerId(32)));
}

#[test]
fn over_self() {
    over::<self_::Self_>(&self_::Self_::open("memory").unwrap());
}

#[test]
fn over_shm() {
    over::<shm::Shm>(&shm::Shm::open("memory").unwrap());
}

#[test]
fn over_rc_mlx5() {
    over::<rc_mlx5::RcMlx5>(&rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap());
}

/// An endpoint may be connected to itself: its queue pair loops back.
#[test]
fn an_endpoint_connected_to_itself() {
    let domain = rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap();
    let (interface, mut progress) =
        rc_mlx5::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
    let endpoint = rc_mlx5::Endpoint::new(&interface).unwrap();
    endpoint.connect(&endpoint.address()).unwrap();
    let memory = domain.allocate(8, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    assert_eq!(endpoint.put_short(&[9; 8], memory.address(), &key), Ok(()));
    drain(&endpoint, &mut progress);
    assert_eq!(memory.load_u8(7).unwrap(), 9);
}

/// Domains, memory and keys may be used by any thread; objects that post and progress stay on
/// theirs.
#[test]
fn thread_rules_are_types() {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<barewire::Domain>();
    any_thread::<barewire::Memory>();
    any_thread::<barewire::RemoteKey>();
    any_thread::<self_::Domain>();
    any_thread::<rc_mlx5::Domain>();
    any_thread::<barewire::DeviceId>();
    any_thread::<barewire::PeerAddress>();
    any_thread::<barewire::OpenError>();
    any_thread::<barewire::EndpointError>();

    // One domain, a worker on each of two threads, and memory that both access.
    let domain = rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap();
    let memory = domain.allocate(8, Access::all()).unwrap();
    let add = || {
        let (interface, mut progress) =
            rc_mlx5::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
        let endpoint = rc_mlx5::Endpoint::new(&interface).unwrap();
        endpoint.connect(&endpoint.address()).unwrap();
        let key = domain.unpack_key(&memory.pack_key()).unwrap();
        for _ in 0..1000 {
            while endpoint.atomic_post(AtomicOp::Add(1_u64), memory.address(), &key)
                == Err(PostError::NoResource)
            {
                progress.progress();
            }
        }
        drain(&endpoint, &mut progress);
    };
    std::thread::scope(|scope| {
        scope.spawn(add);
        scope.spawn(add);
    });
    assert_eq!(memory.load_u64(0).unwrap(), 2000);
}
