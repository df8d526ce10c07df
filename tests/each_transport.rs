//! Every transport of this build moves bytes, whichever other transports it has. `cargo xtask test`
//! builds this test with each feature alone.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{
    Access, Component, DeviceId, Domain, Endpoint, Flags, Interface, InterfaceConfig, TransportId,
    Worker, components,
};

const DEADLINE: Duration = Duration::from_secs(30);

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Returns the devices that need no other machine and no setting.
fn devices() -> Vec<DeviceId> {
    let transports = components().into_iter().flat_map(|component: Component| component.devices);
    let mut devices: Vec<_> =
        transports.flat_map(|device| device.transports).map(|info| info.device).collect();
    devices.retain(|device| device.transport() != TransportId::Tcp || device.name() == "lo");
    devices
}

/// Returns both ends of a connection within one interface.
fn connect(interface: &Interface) -> Result<(Endpoint, Endpoint), Box<dyn std::error::Error>> {
    if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
        let endpoint = interface.connect(&interface.address())?;
        return Ok((endpoint.clone(), endpoint));
    }
    let ends = (Endpoint::new(interface)?, Endpoint::new(interface)?);
    ends.0.connect(&ends.1.address())?;
    ends.1.connect(&ends.0.address())?;
    Ok(ends)
}

fn until(worker: &mut Worker, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        worker.progress();
        assert!(start.elapsed() < DEADLINE, "not done within {DEADLINE:?}");
    }
}

/// Transports over verbs need a device of the machine; the others are always available.
fn needs_hardware(id: TransportId) -> bool {
    let over_verbs = matches!(id, TransportId::RcVerbs | TransportId::UdVerbs);
    let over_mlx5 = matches!(
        id,
        TransportId::RcMlx5 | TransportId::UdMlx5 | TransportId::DcMlx5 | TransportId::XrcMlx5
    );
    over_verbs || over_mlx5 && !cfg!(feature = "soft")
}

fn exchange(device: &DeviceId) -> Outcome {
    let mut worker = Worker::new();
    let domain = Domain::open(device)?;
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    assert_eq!(interface.transport(), device.transport());
    let (endpoint, _peer) = connect(&interface)?;
    if interface.attributes().flags.contains(Flags::AM_SHORT) {
        let received = Rc::new(Cell::new(None));
        let note = Rc::clone(&received);
        interface.set_handler(3, move |message| {
            note.set(message.split_short().map(|(header, payload)| (header, payload.len())));
        })?;
        until(&mut worker, || endpoint.am_short(3, 42, b"payload").is_ok());
        until(&mut worker, || received.get().is_some());
        assert_eq!(received.get(), Some((42, 7)));
    }
    if interface.attributes().flags.contains(Flags::PUT_ZCOPY) {
        let source = domain.allocate(4096, Access::all())?;
        let target = domain.allocate(4096, Access::all())?;
        source.write(0, b"by zero copy")?;
        let key = domain.unpack_key(&target.pack_key())?;
        let slice = source.slice(0, 12)?;
        until(&mut worker, || endpoint.put_zcopy(&[slice], target.address(), &key, None).is_ok());
        let mut bytes = [0; 12];
        until(&mut worker, || target.read(0, &mut bytes).is_ok() && bytes == *b"by zero copy");
    }
    Ok(())
}

#[test]
fn every_transport_of_the_build_moves_bytes() {
    let devices = devices();
    for device in &devices {
        println!("{device}");
        exchange(device).unwrap_or_else(|error| panic!("{device}: {error}"));
    }
    for id in TransportId::BUILT.iter().filter(|id| !needs_hardware(**id)) {
        assert!(devices.iter().any(|device| device.transport() == *id), "no device of {id}");
    }
}

/// A transport that the build lacks is refused by name, and the device list gives the reason.
#[test]
fn a_transport_that_is_not_built_is_refused() {
    let built = TransportId::BUILT;
    for (id, device) in [
        (TransportId::Shm, "shm/memory"),
        (TransportId::Cma, "cma/memory"),
        (TransportId::Tcp, "tcp/lo"),
        (TransportId::RcMlx5, "rc_mlx5/soft0:1"),
        (TransportId::UdMlx5, "ud_mlx5/soft0:1"),
        (TransportId::DcMlx5, "dc_mlx5/soft0:1"),
        (TransportId::XrcMlx5, "xrc_mlx5/soft0:1"),
    ] {
        let opened = Domain::open(&device.parse().unwrap());
        if built.contains(&id) && needs_hardware(id) {
            assert!(opened.unwrap_err().to_string().contains("feature"), "{id}");
        } else if built.contains(&id) {
            assert!(opened.is_ok(), "{id}: {opened:?}");
        } else {
            let refused = opened.unwrap_err().to_string();
            assert!(refused.contains(id.name()) && refused.contains("self"), "{refused}");
        }
    }
}
