//! Two connected endpoints of the dynamic API.

use barewire::{Access, Domain, Endpoint, Interface, RemoteKey, Worker};

use crate::budget::ROUNDS;
use crate::sides::{Devices, ID, config};

/// The state of a bench of the dynamic API.
#[derive(Debug)]
pub(crate) struct Dynamic {
    devices: Devices,
    pub(crate) endpoint: Endpoint,
    pub(crate) remote: u64,
    pub(crate) key: RemoteKey,
    pub(crate) worker: Worker,
    server_worker: Worker,
}

/// Opens and connects both, with remote memory and a handler.
pub(crate) fn connected() -> &'static mut Dynamic {
    let devices = Devices::open();
    let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
    let open = |device: &barewire_hca::Device, worker: &mut Worker| {
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let interface = Interface::open(worker, &domain, &config()).expect("interface");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        (domain, interface, endpoint)
    };
    let (domain, _, endpoint) = open(&devices.client, &mut worker);
    let (server_domain, server, peer) = open(&devices.server, &mut server_worker);
    endpoint.connect(&peer.address()).expect("connected");
    peer.connect(&endpoint.address()).expect("connected");
    server.set_handler(ID, |_| ()).expect("handler");
    let target = Box::leak(Box::new(server_domain.allocate(4096, Access::all()).expect("memory")));
    let key = domain.unpack_key(&target.pack_key()).expect("key");
    Box::leak(Box::new((server, peer)));
    let remote = target.address();
    Box::leak(Box::new(Dynamic { devices, endpoint, remote, key, worker, server_worker }))
}

/// Asserts that each round posted one request, and that it was executed.
pub(crate) fn posted(sides: &'static mut Dynamic) -> &'static mut Dynamic {
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
pub(crate) fn idle(sides: &'static mut Dynamic) -> &'static mut Dynamic {
    sides.devices.check(0);
    sides
}
