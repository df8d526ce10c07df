//! Devices that accept objects of a family and do not serve them: the transport takes others, or is
//! not opened and names another one.

use barewire::config::Choice;
use barewire::transport::rc_mlx5::{self, RcMlx5};
use barewire::transport::{dc_mlx5::DcMlx5, ud_mlx5::UdMlx5, xrc_mlx5::XrcMlx5};
use barewire::{Domain, Interface, InterfaceConfig, OpenError, TagLimits, Worker};
use barewire_hca as hca;
use barewire_mlx5::Context;
use barewire_mlx5::channel::soft::Soft;

use crate::support::{Side, collect, connect, until};

/// A device with these requirements, whose families are tested as those that are opened by name.
fn tested(requirements: &str) -> rc_mlx5::Domain {
    let config = hca::Config::default().requirements(requirements.parse().unwrap());
    let device = hca::Device::open(config).unwrap();
    let context = Context::open_tested(Soft::new(device)).unwrap();
    rc_mlx5::Domain::new(&context, "soft0:1").unwrap()
}

/// Sends messages between two interfaces.
fn messages_arrive(domain: &Domain, config: &InterfaceConfig) {
    let mut worker = Worker::new();
    let [here, there] = [(); 2].map(|()| Side::open(&mut worker, domain, config));
    connect(&here, &there);
    let inbox = collect(&there.interface, 1);
    for length in [4, 20] {
        here.endpoint.am_short(1, 7, &[5; 20][..length]).unwrap();
    }
    until(&mut [&mut worker], "the messages", || inbox.borrow().len() == 2);
}

#[test]
fn endpoints_have_rings_of_their_own_where_shared_ones_do_not_work() {
    for requirements in ["deaf=rmp", "refuse=rmp"] {
        let domain = Domain::from_static::<RcMlx5>(tested(requirements));
        messages_arrive(&domain, &InterfaceConfig::default());
        let config = InterfaceConfig::default().shared_receive_queue(Choice::Yes);
        let refused = Interface::open(&mut Worker::new(), &domain, &config).unwrap_err();
        assert!(text(&refused).contains("receive rings of their own"), "{}", text(&refused));
    }
}

#[test]
fn tags_are_matched_in_software_where_the_device_does_not_match_them() {
    let domain = Domain::from_static::<RcMlx5>(tested("deaf=xrq"));
    let config = InterfaceConfig::default().tag_matching(Choice::Auto);
    let interface = Interface::open(&mut Worker::new(), &domain, &config).unwrap();
    assert_eq!(interface.attributes().tag, TagLimits::default());
    messages_arrive(&domain, &config);
    let config = config.tag_matching(Choice::Yes);
    let refused = Interface::open(&mut Worker::new(), &domain, &config).unwrap_err();
    assert!(text(&refused).contains("matched in software"), "{}", text(&refused));
}

/// Wire-up takes a transport whose interface opens.
#[test]
fn transports_whose_objects_do_not_work_are_not_opened() {
    for (requirements, instead) in
        [("deaf=dct", "use rc_mlx5"), ("deaf=xrc", "use rc_mlx5"), ("deaf=ud", "use ud_verbs")]
    {
        let domain = tested(requirements);
        let domain = match requirements {
            "deaf=dct" => Domain::from_static::<DcMlx5>(domain),
            "deaf=xrc" => Domain::from_static::<XrcMlx5>(domain),
            _ => Domain::from_static::<UdMlx5>(domain),
        };
        let config = InterfaceConfig::default();
        let refused = Interface::open(&mut Worker::new(), &domain, &config).unwrap_err();
        assert!(text(&refused).ends_with(instead), "{requirements}: {}", text(&refused));
    }
}

/// The error with its sources.
fn text(error: &OpenError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
