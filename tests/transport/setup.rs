//! Opening and connecting: names, settings, addresses.

use barewire::{ConnectError, Domain, Endpoint, Interface, InterfaceConfig, OpenError, Worker};
use barewire_hca as hca;

use crate::support::{Pair, device};

#[test]
fn opening_says_what_there_is() {
    let error = Domain::open("rc_mlx6", "soft0:1").unwrap_err();
    let more = if cfg!(feature = "verbs") { ", rc_verbs, ud_verbs" } else { "" };
    assert_eq!(
        error.to_string(),
        format!("unknown transport 'rc_mlx6': there are self, rc_mlx5, shm, cma{more}, tcp")
    );
    let error = Domain::open("rc_mlx5", "mlx9_9:1").unwrap_err().to_string();
    assert!(
        error.starts_with("unknown device 'mlx9_9:1' for transport rc_mlx5: there are soft0:1"),
        "{error}"
    );
    assert!(matches!(Domain::open("self", "soft0:1"), Err(OpenError::UnknownDevice { .. })));
}

type Change = fn(&mut InterfaceConfig);

#[test]
fn settings_are_checked() {
    let domain = Domain::open_soft(device(hca::Faults::default())).unwrap();
    let wrong: [(&str, Change); 12] = [
        ("send_ring", |c| c.send_ring = 8),
        ("send_ring", |c| c.send_ring = 100),
        ("send_ring", |c| c.send_ring = 1 << 20),
        ("receive_ring", |c| c.receive_ring = 2),
        ("receive_ring", |c| c.receive_ring = 6),
        ("max_endpoints", |c| c.max_endpoints = 0),
        ("max_endpoints", |c| c.max_endpoints = u32::MAX),
        ("bcopy_buffers", |c| c.bcopy_buffers = 0),
        ("signal_every", |c| c.signal_every = 0),
        ("path_mtu", |c| c.path_mtu = 1500),
        ("rnr_retry", |c| c.rnr_retry = 8),
        ("max_rd_atomic", |c| c.max_rd_atomic = 0),
    ];
    for (setting, change) in wrong {
        let mut config = InterfaceConfig::default();
        change(&mut config);
        let error = barewire::Interface::open(&mut Worker::new(), &domain, &config).unwrap_err();
        assert!(error.to_string().starts_with(&format!("rc_mlx5: {setting} = ")), "{error}");
    }
}

#[test]
fn asking_for_components_opens_nothing() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let components = barewire::components();
    // Other tests of this process open devices meanwhile, so that the count may change, but not by a hundred.
    for _ in 0..100 {
        let _ = barewire::components();
    }
    assert!(threads() < before + 50);
    let transports: Vec<_> = components
        .iter()
        .flat_map(|component| &component.devices)
        .flat_map(|device| device.transports.iter().map(move |t| (t.name, device.name.as_str())))
        .collect();
    let machine = |(_, device): &(&str, &str)| device.starts_with("mlx5_");
    // The loopback is among the network interfaces; the others are this machine's.
    let fixed = |listed: &(&str, &str)| !machine(listed) && (listed.0 != "tcp" || listed.1 == "lo");
    let listed: Vec<_> = transports.iter().copied().filter(fixed).collect();
    assert_eq!(
        listed,
        [("self", "memory"), ("rc_mlx5", "soft0:1"), ("shm", "memory"), ("cma", "memory"), ("tcp", "lo")]
    );
    // Those of the machine, if these tests run on some (`Pair::rc`).
    assert_eq!(transports.iter().any(machine), std::env::var_os("BAREWIRE_TEST_DEVICES").is_some());
    // The others have addresses that need a key.
    for (transport, device) in
        transports.into_iter().filter(|(name, device)| *name != "tcp" || *device == "lo")
    {
        let domain = Domain::open(transport, device).unwrap();
        let interface = Interface::open(&mut Worker::new(), &domain, &InterfaceConfig::default()).unwrap();
        let listed = components
            .iter()
            .flat_map(|component| &component.devices)
            .filter(|listed| listed.name == device)
            .flat_map(|listed| &listed.transports)
            .find(|listed| listed.name == transport);
        assert_eq!(Some(interface.attributes()), listed.map(|listed| &listed.attributes));
    }
    for absent in components.iter().flat_map(|component| &component.absent) {
        assert!(!absent.what.is_empty() && !absent.reason.is_empty());
    }
}

#[test]
fn connecting_checks_addresses() {
    let config = InterfaceConfig::default();
    let (own, rc) = (&Pair::over_self(&config), &Pair::rc(&config)[0]);
    let (side, name) = (rc.client.another(), rc.client.interface.transport());
    assert!(matches!(
        side.endpoint.connect(&own.client.interface.device_address(), &side.endpoint.address()),
        Err(ConnectError::ForeignTransport { transport, found: "self" }) if transport == name
    ));
    assert!(matches!(
        side.endpoint.connect(&rc.client.interface.device_address(), &own.client.endpoint.address()),
        Err(ConnectError::ForeignTransport { .. })
    ));
    assert!(matches!(
        rc.client.endpoint.connect(&rc.client.interface.device_address(), &side.endpoint.address()),
        Err(ConnectError::Connected { .. })
    ));
    let rc_interface = &rc.client.interface;
    let (device_address, address) = (rc_interface.device_address(), rc_interface.address());
    assert!(matches!(
        Endpoint::connect_to_interface(&own.client.interface, &device_address, &address),
        Err(ConnectError::ForeignTransport { transport: "self", found }) if found == name
    ));
    assert!(matches!(
        Endpoint::connect_to_interface(rc_interface, &device_address, &address),
        Err(ConnectError::Unsupported { .. })
    ));
    assert!(matches!(Endpoint::new(&own.client.interface), Err(OpenError::Unsupported { .. })));
    let other = Pair::over_self(&InterfaceConfig::default());
    let elsewhere = &other.client.interface;
    assert!(matches!(
        Endpoint::connect_to_interface(
            &own.client.interface,
            &elsewhere.device_address(),
            &elsewhere.address()
        ),
        Err(ConnectError::Unreachable { .. })
    ));
}
