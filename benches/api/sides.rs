//! Two connected interfaces on separate devices, with checks after the bench: a refused post would
//! cost little.

use std::cell::Cell;
use std::rc::Rc;

use barewire::transport::{Domain as _, Endpoint as _, Interface as _, rc_mlx5};
use barewire::{Access, Completion, FetchResult, InterfaceConfig, Unpack};
use barewire_hca as hca;

use crate::budget::ROUNDS;

/// The active message of the benches.
pub(crate) const ID: u8 = 1;

/// Room for every round, so that nothing has to be reaped in between.
pub(crate) fn config() -> InterfaceConfig {
    InterfaceConfig::default()
        .send_ring(4 * ROUNDS as u32)
        .receive_ring(2 * ROUNDS as u32)
        .bcopy_buffers(2 * ROUNDS as u32)
        .signal_every(64)
        .max_endpoints(1)
        // Time is slow under valgrind.
        .ack_timeout(0)
}

/// Two devices that are stepped.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) client: hca::Device,
    pub(crate) server: hca::Device,
}

impl Devices {
    pub(crate) fn open() -> Self {
        let fabric = hca::Fabric::new();
        let open = || {
            let wire = hca::WireKind::Fabric(fabric.clone());
            hca::Device::open(hca::Config::default().mode(hca::Mode::Stepped).wire(wire))
                .expect("software HCA")
        };
        Self { client: open(), server: open() }
    }

    /// Steps both until neither has anything to do.
    pub(crate) fn settle(&self) {
        while self.client.step() | self.server.step() {}
    }

    /// Asserts that the client sent `requests`, none twice, and that neither device reports
    /// anything.
    pub(crate) fn check(&self, requests: u64) {
        let counters = self.client.counters();
        assert_eq!(
            (counters.packets_sent, counters.retransmitted),
            (requests, 0),
            "requests sent and sent again"
        );
        for device in [&self.client, &self.server] {
            assert!(device.take_reports().is_empty(), "the device complains");
        }
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) domain: rc_mlx5::Domain,
    pub(crate) interface: rc_mlx5::Interface,
    pub(crate) endpoint: rc_mlx5::Endpoint,
    pub(crate) progress: rc_mlx5::Progress,
}

impl Side {
    fn open(device: &hca::Device) -> Self {
        let domain = rc_mlx5::Domain::open_soft(device.clone()).expect("domain");
        let (interface, progress) =
            rc_mlx5::Interface::open(&domain, &config()).expect("interface");
        let endpoint = rc_mlx5::Endpoint::new(&interface).expect("endpoint");
        Self { domain, interface, endpoint, progress }
    }

    fn connect(&self, peer: &Self) {
        self.endpoint.connect(&peer.endpoint.address()).expect("connected");
    }
}

/// The state of a bench of the static API. It is leaked, so that a bench moves a reference and
/// drops nothing.
#[derive(Debug)]
pub(crate) struct Static {
    pub(crate) devices: Devices,
    pub(crate) client: Side,
    pub(crate) server: Side,
    /// Memory of the server.
    pub(crate) remote: u64,
    pub(crate) key: rc_mlx5::RemoteKey,
    /// Memory of the client.
    pub(crate) memory: rc_mlx5::Memory,
    pub(crate) unpack: Unpack,
    pub(crate) result: FetchResult,
    /// Counts every round and a hold, so that no callback runs.
    pub(crate) completion: Completion,
    pub(crate) received: Rc<Cell<u64>>,
}

/// Connected sides with memory.
pub(crate) fn connected() -> &'static mut Static {
    let devices = Devices::open();
    let (client, server) = (Side::open(&devices.client), Side::open(&devices.server));
    client.connect(&server);
    server.connect(&client);
    let memory = client.domain.allocate(4096, Access::all()).expect("memory");
    let target = Box::leak(Box::new(server.domain.allocate(4096, Access::all()).expect("memory")));
    let key = client.domain.unpack_key(&target.pack_key()).expect("key");
    let received: Rc<Cell<u64>> = Rc::default();
    let count = Rc::clone(&received);
    server.interface.set_handler(ID, move |_| count.set(count.get() + 1)).expect("handler");
    let completion = Completion::counter();
    std::mem::forget(completion.hold());
    Box::leak(Box::new(Static {
        devices,
        client,
        server,
        remote: target.address(),
        key,
        memory,
        unpack: Unpack::new(|_| ()),
        result: FetchResult::new(),
        completion,
        received,
    }))
}

impl Static {
    /// Lets devices and interfaces run until there are no more events.
    fn settle(&mut self) {
        loop {
            self.devices.settle();
            if self.client.progress.progress() + self.server.progress.progress() == 0 {
                return;
            }
        }
    }
}

/// Asserts that every round posted one request, and that it was executed.
pub(crate) fn posted(sides: &'static mut Static) -> &'static mut Static {
    sides.settle();
    sides.devices.check(ROUNDS);
    assert!(sides.client.endpoint.error().is_none() && sides.server.endpoint.error().is_none());
    sides
}

/// Like [`posted`], and asserts that each was completed.
pub(crate) fn completed(sides: &'static mut Static) -> &'static mut Static {
    let sides = posted(sides);
    assert_eq!((sides.completion.pending(), sides.completion.status()), (1, Ok(())));
    sides
}

/// Like [`posted`], and asserts that each was a message for the handler.
pub(crate) fn delivered(sides: &'static mut Static) -> &'static mut Static {
    let sides = posted(sides);
    assert_eq!(sides.received.get(), ROUNDS);
    sides
}

/// Asserts that there were no events.
pub(crate) fn idle(sides: &'static mut Static) -> &'static mut Static {
    sides.devices.check(0);
    sides
}
