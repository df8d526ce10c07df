//! The static door: code that is generic over the transport by the capabilities it needs, and thread rules as types.

use std::rc::Rc;

use barewire::capability::{
    AmBcopy, AmShort, AmZcopy, Atomic64, AtomicFetch64, Flush, GetBcopy, GetZcopy, Pending, PutBcopy,
    PutShort, PutZcopy, RemoteMemory,
};
use barewire::transport::{rc_mlx5, self_};
use barewire::{
    Access, Busy, Completion, FetchResult, FlushMode, InterfaceConfig, PendingResult, PostError, Posted,
    Unpack,
};
use barewire_hca as hca;

use crate::support::{DEADLINE, device};

/// Everything a transport can have, for a test that uses it all.
trait Everything:
    PutShort
    + PutBcopy
    + PutZcopy
    + GetBcopy
    + GetZcopy
    + AmShort
    + AmBcopy
    + AmZcopy
    + Atomic64
    + AtomicFetch64
    + Flush
    + Pending
{
}

impl Everything for self_::Endpoint {}
impl Everything for rc_mlx5::Endpoint {}

/// Waits for a flush, with `progress` in between.
fn drain(endpoint: &impl Flush, progress: &mut impl FnMut()) {
    let start = std::time::Instant::now();
    while endpoint.flush(FlushMode::Remote, None).unwrap() == Posted::InProgress {
        progress();
        std::thread::yield_now();
        assert!(start.elapsed() < DEADLINE);
    }
}

/// Uses every capability on 64 bytes at `remote`, which begin with zeros. `local` is 64 bytes of `01 02 03 ..`.
fn use_everything<E: Everything>(
    endpoint: &E,
    remote: u64,
    key: &<E as RemoteMemory>::Key,
    local: barewire::Slice<'_>,
    mut progress: impl FnMut(),
) {
    assert_eq!(endpoint.put_short(&[1; 8], remote, key), Ok(Posted::Done));
    let pack = |buffer: &mut [u8]| {
        buffer[..8].fill(2);
        8
    };
    assert_eq!(endpoint.put_bcopy(pack, remote + 8, key), Ok(8));
    assert_eq!(endpoint.atomic_add64(0x0303_0303, remote + 16, key), Ok(Posted::Done));
    let result = FetchResult::new();
    endpoint.fence().unwrap();
    let _ = endpoint.atomic_fetch_add64(0, remote + 16, key, &result, None).unwrap();
    drain(endpoint, &mut progress);
    assert_eq!(result.get(), 0x0303_0303);
    let _ = endpoint.atomic_compare_swap64(0x0303_0303, 4, remote + 16, key, &result, None).unwrap();
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    let inner = Rc::clone(&seen);
    let unpack = Unpack::new(move |bytes| inner.borrow_mut().extend_from_slice(bytes));
    let done = Completion::counter(1);
    if endpoint.get_bcopy(&unpack, 24, remote, key, Some(&done)).unwrap() == Posted::Done {
        done.count_down(Ok(()));
    }
    drain(endpoint, &mut progress);
    assert_eq!((done.pending(), done.status()), (0, Ok(())));
    assert_eq!(*seen.borrow(), [[1; 8], [2; 8], 4u64.to_ne_bytes()].concat());
    let _ = endpoint.put_zcopy(&[local], remote, key, None).unwrap();
    let _ = endpoint.get_zcopy(&[local], remote, key, None).unwrap();
    assert_eq!(endpoint.am_short(1, 5, b"short"), Ok(Posted::Done));
    assert_eq!(endpoint.am_bcopy(1, pack), Ok(8));
    let _ = endpoint.am_zcopy(1, b"header", &[local], None).unwrap();
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(Busy));
    endpoint.pending_purge(|| panic!("nothing waits"));
    drain(endpoint, &mut progress);
    assert_eq!(endpoint.am_short(32, 0, &[]), Err(PostError::UnknownHandlerId(32)));
}

#[test]
fn over_self() {
    let domain = self_::Domain::open("memory").unwrap();
    let (interface, mut progress) = self_::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
    let endpoint =
        self_::Endpoint::connect_to_interface(&interface, &interface.device_address(), &interface.address())
            .unwrap();
    let memory = domain.allocate(64, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    let local = domain.allocate(64, Access::all()).unwrap();
    use_everything(&endpoint, memory.address(), &key, local.slice(0, 64).unwrap(), || {
        progress.progress();
    });
    assert_eq!(interface.unhandled(), 3);
}

#[test]
fn over_rc_mlx5() {
    let domain = rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap();
    let (interface, mut progress) = rc_mlx5::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
    let endpoint = rc_mlx5::Endpoint::new(&interface).unwrap();
    let peer = rc_mlx5::Endpoint::new(&interface).unwrap();
    for (a, b) in [(&endpoint, &peer), (&peer, &endpoint)] {
        a.connect(&interface.device_address(), &b.address()).unwrap();
    }
    let memory = domain.allocate(64, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    let local = domain.allocate(64, Access::all()).unwrap();
    use_everything(&endpoint, memory.address(), &key, local.slice(0, 64).unwrap(), || {
        progress.progress();
    });
    while interface.unhandled() < 3 {
        progress.progress();
    }
}

/// An endpoint may be connected to itself: its queue pair loops back.
#[test]
fn an_endpoint_connected_to_itself() {
    let domain = rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap();
    let (interface, mut progress) = rc_mlx5::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
    let endpoint = rc_mlx5::Endpoint::new(&interface).unwrap();
    endpoint.connect(&interface.device_address(), &endpoint.address()).unwrap();
    let memory = domain.allocate(8, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    assert_eq!(endpoint.put_short(&[9; 8], memory.address(), &key), Ok(Posted::Done));
    drain(&endpoint, &mut || {
        progress.progress();
    });
    assert_eq!(memory.load_u8(7).unwrap(), 9);
}

/// Domains, memory and keys are for every thread; what posts and progresses stays on its own.
#[test]
fn thread_rules_are_types() {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<barewire::Domain>();
    any_thread::<barewire::Memory>();
    any_thread::<barewire::RemoteKey>();
    any_thread::<self_::Domain>();
    any_thread::<rc_mlx5::Domain>();
    any_thread::<barewire::DeviceAddress>();
    any_thread::<barewire::OpenError>();
    any_thread::<barewire::EndpointError>();

    // One domain, a worker on each of two threads, and memory that both reach.
    let domain = rc_mlx5::Domain::open_soft(device(hca::Faults::default())).unwrap();
    let memory = domain.allocate(8, Access::all()).unwrap();
    let add = || {
        let (interface, mut progress) =
            rc_mlx5::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
        let endpoint = rc_mlx5::Endpoint::new(&interface).unwrap();
        endpoint.connect(&interface.device_address(), &endpoint.address()).unwrap();
        let key = domain.unpack_key(&memory.pack_key()).unwrap();
        for _ in 0..1000 {
            while endpoint.atomic_add64(1, memory.address(), &key) == Err(PostError::NoResource) {
                progress.progress();
            }
        }
        drain(&endpoint, &mut || {
            progress.progress();
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(add);
        scope.spawn(add);
    });
    assert_eq!(memory.load_u64(0).unwrap(), 2000);
}
