//! Two connected ends on separate software HCAs, which stand still while a function is counted.

use barewire_hca as hca;

/// One end.
pub(crate) trait Side {
    fn device(&self) -> &hca::Device;
    fn progress(&mut self) -> usize;
    fn has_failed(&self) -> bool;
}

/// Both ends. They are leaked, so that a bench moves a reference and drops nothing.
pub(crate) struct Sides<S: 'static> {
    pub(crate) client: S,
    pub(crate) server: S,
}

/// A device of a fabric.
pub(crate) fn device(fabric: &hca::Fabric) -> hca::Device {
    let wire = hca::WireKind::Fabric(fabric.clone());
    let config = hca::Config::default().mode(hca::Mode::Stepped).wire(wire);
    hca::Device::open(config).expect("software HCA")
}

impl<S: Side> Sides<S> {
    /// Opens both ends, and connects each to the other one.
    pub(crate) fn connected(
        open: impl Fn(hca::Device) -> S,
        connect: impl Fn(&S, &S),
    ) -> &'static mut Self {
        let fabric = hca::Fabric::new();
        let (client, server) = (open(device(&fabric)), open(device(&fabric)));
        connect(&client, &server);
        connect(&server, &client);
        Box::leak(Box::new(Self { client, server }))
    }

    /// Steps both devices until neither has anything to do. Returns whether one had.
    pub(crate) fn step(&self) -> bool {
        let mut stepped = false;
        while self.client.device().step() | self.server.device().step() {
            stepped = true;
        }
        stepped
    }

    /// Lets devices and interfaces run until everything is acknowledged.
    pub(crate) fn settle(&mut self) {
        loop {
            self.step();
            let events = self.client.progress() + self.server.progress();
            // Progress without an event may send an acknowledgement or a grant.
            if events == 0 && !self.step() {
                return;
            }
        }
    }
}

/// Asserts that nothing failed and that the devices complain about nothing.
pub(crate) fn done<S: Side>(sides: &'static mut Sides<S>) -> &'static mut Sides<S> {
    for side in [&sides.client, &sides.server] {
        assert!(!side.has_failed());
        assert!(side.device().take_reports().is_empty(), "the device complains");
    }
    sides
}
