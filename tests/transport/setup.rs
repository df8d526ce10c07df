//! Opening and connecting: names, settings, addresses.

use barewire::config::Choice;
use barewire::{
    ConnectError, DeviceId, Domain, Endpoint, Interface, InterfaceConfig, OpenError, TransportId,
    Worker,
};
use barewire_hca as hca;

use crate::support::{Pair, device};

#[test]
fn opening_says_what_there_is() {
    let error = "rc_mlx6/soft0:1".parse::<DeviceId>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown transport 'rc_mlx6': there are self, rc_mlx5, shm, cma, rc_verbs, \
         ud_mlx5, dc_mlx5, xrc_mlx5, ud_verbs, tcp"
    );
    #[cfg(not(feature = "verbs"))]
    assert_eq!(
        Domain::open(&"ud_verbs/mlx5_0:1".parse().unwrap()).unwrap_err().to_string(),
        "ud_verbs is not compiled in: it needs the feature verbs, and this build has self, rc_mlx5, shm, cma, ud_mlx5, \
         dc_mlx5, xrc_mlx5, tcp"
    );
    let error = Domain::open(&"rc_mlx5/mlx9_9:1".parse().unwrap()).unwrap_err().to_string();
    assert!(
        error.starts_with("unknown device 'mlx9_9:1' for transport rc_mlx5: there are soft0:1"),
        "{error}"
    );
    assert!(matches!(
        Domain::open(&"self/soft0:1".parse().unwrap()),
        Err(OpenError::UnknownDevice { .. })
    ));
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
    // Other tests of this process open devices at the same time, so the count may change, but not
    // by a hundred.
    for _ in 0..100 {
        let _ = barewire::components();
    }
    assert!(threads() < before + 50);
    let transports: Vec<_> = components
        .iter()
        .flat_map(|component| &component.devices)
        .flat_map(|device| &device.transports)
        .collect();
    let machine = |listed: &DeviceId| listed.name().starts_with("mlx5_");
    // The loopback is one of the network interfaces; the others differ between machines.
    let local = |listed: &DeviceId| listed.transport() != TransportId::Tcp || listed.name() == "lo";
    let listed: Vec<_> = transports
        .iter()
        .filter(|listed| !machine(&listed.device) && local(&listed.device))
        .map(|listed| listed.device.to_string())
        .collect();
    let soft = ["rc_mlx5/soft0:1", "ud_mlx5/soft0:1", "dc_mlx5/soft0:1", "xrc_mlx5/soft0:1"];
    let [rc, ud, dc, xrc] = soft;
    let expected = ["self/memory", rc, ud, dc, xrc, "shm/memory", "cma/memory", "tcp/lo"];
    assert_eq!(listed, expected);
    // The devices of the machine, if the tests use them (`Pair::rc`).
    assert_eq!(
        transports.iter().any(|listed| machine(&listed.device)),
        std::env::var_os("BAREWIRE_TEST_DEVICES").is_some()
    );
    // The other addresses need a key.
    for listed in transports.into_iter().filter(|listed| local(&listed.device)) {
        let domain = Domain::open(&listed.device).unwrap();
        assert_eq!(domain.transport(), listed.transport());
        // What is listed includes what the default settings leave out.
        let config = InterfaceConfig::default().tag_matching(Choice::Auto);
        let interface = Interface::open(&mut Worker::new(), &domain, &config).unwrap();
        assert_eq!(interface.attributes(), &listed.attributes);
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
        side.endpoint.connect(&own.client.endpoint.address()),
        Err(ConnectError::ForeignTransport { transport, found: TransportId::Self_ }) if transport == name
    ));
    assert!(matches!(
        rc.client.endpoint.connect(&side.endpoint.address()),
        Err(ConnectError::Connected { .. })
    ));
    let rc_interface = &rc.client.interface;
    assert!(matches!(
        own.client.interface.connect(&rc_interface.address()),
        Err(ConnectError::ForeignTransport { transport: TransportId::Self_, found }) if found == name
    ));
    let says = |error: String, what: &str| assert!(error.contains(what), "{error}");
    let error = rc_interface.connect(&rc_interface.address()).unwrap_err().to_string();
    let instead = "connects endpoint to endpoint: use Endpoint::new and Endpoint::connect";
    says(error, &format!("{name} {instead}"));
    let error = side.endpoint.connect(&rc_interface.address()).unwrap_err().to_string();
    says(error, "pass Endpoint::address of the peer's endpoint");
    let error = Endpoint::new(&own.client.interface).unwrap_err().to_string();
    says(error, "self connects to interfaces: use Interface::connect");
    let error =
        own.client.endpoint.connect(&own.client.endpoint.address()).unwrap_err().to_string();
    says(error, "self connects to interfaces: use Interface::connect");
    let other = Pair::over_self(&InterfaceConfig::default());
    let elsewhere = &other.client.interface;
    assert!(matches!(
        own.client.interface.connect(&elsewhere.address()),
        Err(ConnectError::Unreachable { .. })
    ));
}
