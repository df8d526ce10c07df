//! The tests of families of objects before their first use: each fails on a device that refuses the
//! family's objects, or accepts them and does not serve them, and names what to use instead.

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::command::qp::{AddressPath, ModifyQp, Qpc, Rst2InitQpIn};
use barewire_mlx5::layouts::prm::View;
use barewire_mlx5::{Context, Family, PortOptions, hca};

use crate::recording::Recording;

fn context(requirements: &str) -> Context {
    let requirements = requirements.parse().unwrap();
    let config = hca::Config::default().requirements(requirements).strict(hca::Strict::Panic);
    Context::open_tested(Soft::new(hca::Device::open(config).unwrap())).unwrap()
}

/// The families that fail on a device with these requirements.
fn failing(requirements: &str) -> Vec<Family> {
    let context = context(requirements);
    let fails = |family: &Family| {
        let Err(error) = context.test(*family) else { return false };
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let text = source.unwrap_or_default();
        assert!(text.ends_with(family.fallback()), "{requirements}: {family}: {error}: {text}");
        true
    };
    Family::ALL.into_iter().filter(fails).collect()
}

#[test]
fn every_family_works_on_a_demanding_device() {
    assert_eq!(failing(""), []);
    assert_eq!(failing("all"), []);
}

#[test]
fn every_family_works_on_published_adapters() {
    for adapter in hca::Adapter::PUBLISHED {
        assert_eq!(failing(&format!("device={adapter}")), []);
        assert_eq!(failing(&format!("all,device={adapter},kernel-strict")), []);
    }
}

/// Their messages are in buffers, also those that would fit the completion.
#[test]
fn shared_queues_work_where_the_device_ignores_scatter_to_completions() {
    assert_eq!(failing("ignore-cs-res"), []);
}

/// Targets of DC receive from a shared queue, so that DC fails with these.
const FAMILIES: [(&str, &[Family]); 6] = [
    ("rmp", &[Family::SharedReceive, Family::Dynamic]),
    ("dct", &[Family::Dynamic]),
    ("dci", &[Family::Dynamic]),
    ("xrc", &[Family::Xrc]),
    ("ud", &[Family::Datagrams]),
    ("xrq", &[Family::Tags]),
];

#[test]
fn refused_objects_fail_the_test_of_their_family_only() {
    for (name, expected) in FAMILIES {
        assert_eq!(failing(&format!("refuse={name}")), expected, "{name}");
    }
}

/// The device accepts the objects, and drops all packets to them.
#[test]
fn objects_that_do_not_work_fail_the_test_of_their_family_only() {
    for (name, expected) in FAMILIES {
        // Only connections of queue pairs meet their own shared queue.
        let expected = if name == "rmp" { &expected[..1] } else { expected };
        assert_eq!(failing(&format!("deaf={name}")), expected, "{name}");
    }
}

#[test]
fn a_family_is_tested_once() {
    let context = context("deaf=ud");
    let first = context.test(Family::Datagrams).unwrap_err().to_string();
    // A test of a family that gets no message waits for two seconds; this process may stand still
    // in some of the calls.
    let short = (0..10).filter(|_| {
        let start = std::time::Instant::now();
        assert_eq!(context.test(Family::Datagrams).unwrap_err().to_string(), first);
        start.elapsed() < std::time::Duration::from_secs(1)
    });
    assert!(short.count() > 0);
}

/// Packets of a limited member to itself would not arrive.
#[test]
fn a_family_is_tested_in_the_partition_of_the_port_unless_that_has_a_limited_membership() {
    let requirements = "pkeys=7fff:8001:8002".parse().unwrap();
    let device = hca::Device::open(hca::Config::default().requirements(requirements)).unwrap();
    let (channel, commands) = Recording::over(device);
    let context = Context::open_tested(channel).unwrap();
    for (key, index) in [(0x8002, 2), (0x7fff, 1)] {
        let options = PortOptions { partition_key: Some(key), ..PortOptions::default() };
        let port = context.choose_port(options).unwrap();
        for family in Family::ALL {
            context.test_on(family, &port).unwrap();
        }
        let sent = commands.last::<Rst2InitQpIn>();
        let path = View::<Rst2InitQpIn>::new(&sent).unwrap().nested(Rst2InitQpIn::QPC);
        let path = path.nested(Qpc::PRIMARY_ADDRESS_PATH);
        assert_eq!(path.get(AddressPath::PKEY_INDEX), index);
        let count = commands.count();
        context.test_on(Family::Reliable, &port).unwrap();
        assert_eq!(commands.count(), count);
    }
}

/// No packet from the port to itself would arrive.
#[test]
fn families_count_as_working_where_the_port_has_limited_memberships_only() {
    let requirements = "pkeys=7fff".parse().unwrap();
    let device = hca::Device::open(hca::Config::default().requirements(requirements)).unwrap();
    let (channel, commands) = Recording::over(device);
    let context = Context::open_tested(channel).unwrap();
    assert!(context.port().limited_member);
    let count = commands.count();
    for family in Family::ALL {
        context.test(family).unwrap();
    }
    assert_eq!(commands.count(), count);
}
