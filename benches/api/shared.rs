//! Two connected endpoints of shared workers.

use barewire::shared::{SharedEndpoint, SharedInterface, SharedWorker};
use barewire::{Access, Domain, RemoteKey};

use crate::budget::ROUNDS;
use crate::sides::{Devices, ID, config};

/// The state of a bench of the shared worker.
#[derive(Debug)]
pub(crate) struct Shared {
    devices: Devices,
    pub(crate) endpoint: SharedEndpoint,
    pub(crate) remote: u64,
    pub(crate) key: RemoteKey,
    pub(crate) worker: SharedWorker,
    server_worker: SharedWorker,
}

/// Opens and connects both, with remote memory and a handler.
pub(crate) fn connected() -> &'static mut Shared {
    let devices = Devices::open();
    let open = |device: &barewire_hca::Device| {
        let worker = SharedWorker::new();
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let interface = SharedInterface::open(&worker, &domain, &config()).expect("interface");
        let endpoint = SharedEndpoint::new(&interface).expect("endpoint");
        (worker, domain, interface, endpoint)
    };
    let (worker, domain, _, endpoint) = open(&devices.client);
    let (server_worker, server_domain, server, peer) = open(&devices.server);
    endpoint.connect(&peer.address().expect("this process")).expect("connected");
    peer.connect(&endpoint.address().expect("this process")).expect("connected");
    server.set_handler(ID, |_| ()).expect("handler");
    let target = Box::leak(Box::new(server_domain.allocate(4096, Access::all()).expect("memory")));
    let key = domain.unpack_key(&target.pack_key()).expect("key");
    Box::leak(Box::new((server, peer)));
    let remote = target.address();
    Box::leak(Box::new(Shared { devices, endpoint, remote, key, worker, server_worker }))
}

/// Asserts that each round posted one request, and that it was executed.
pub(crate) fn posted(sides: &'static mut Shared) -> &'static mut Shared {
    loop {
        sides.devices.settle();
        if sides.worker.progress() + sides.server_worker.progress() == 0 {
            break;
        }
    }
    sides.devices.check(ROUNDS);
    assert!(sides.endpoint.error().is_none());
    sides
}

/// Asserts that no request was sent.
pub(crate) fn idle(sides: &'static mut Shared) -> &'static mut Shared {
    sides.devices.check(0);
    sides
}
