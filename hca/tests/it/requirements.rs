//! What a device requires of a driver, as some ports and hosts do.

use crate::support::rig::{Refusal, Rig};
use barewire_hca::{CommandSyndrome, Config, Fabric, Mode, WireKind};
use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{AddressPath, CreateQpIn, Mtu, Qpc, TimestampFormat};

/// A stepped device with these requirements.
fn rig(requirements: &str) -> Rig {
    rig_with(PortType::Ethernet, requirements)
}

fn rig_with(port_type: PortType, requirements: &str) -> Rig {
    let wire = WireKind::Fabric(Fabric::new());
    let requirements = requirements.parse().unwrap();
    let mode = Mode::Stepped;
    Rig::open(Config { mode, wire, port_type, requirements, ..Config::default() })
}

fn created(rig: &Rig) -> Result<u32, Refusal> {
    let cqn = rig.create_cq(|_| ())?;
    rig.create_qp(cqn, |_| ())
}

/// A queue pair in the init state.
fn initialised(rig: &Rig) -> u32 {
    let qpn = created(rig).unwrap();
    rig.rst2init(qpn, |_| ()).unwrap();
    qpn
}

#[test]
fn a_path_mtu_beyond_the_ports_is_refused() {
    let rig = rig("mtu=1500");
    let qpn = initialised(&rig);
    let connect = |mtu| {
        let peer = (rig.device.address(), qpn);
        rig.init2rtr(qpn, peer, |context| _ = context.set(Qpc::MTU, mtu))
    };
    assert_eq!(connect(Mtu::Bytes2048).unwrap_err().1, CommandSyndrome::PortMtu);
    connect(Mtu::Bytes1024).unwrap();
}

#[test]
fn a_udp_source_port_out_of_range_is_refused() {
    let rig = rig("udp-ports=50000-60000");
    let qpn = initialised(&rig);
    let connect = |port| {
        rig.init2rtr(qpn, (rig.device.address(), qpn), |context| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::UDP_SPORT, port);
        })
    };
    for port in [4791, 49_999, 60_001] {
        assert_eq!(connect(port).unwrap_err().1, CommandSyndrome::UdpSourcePort);
    }
    connect(50_000).unwrap();
}

#[test]
fn free_running_time_stamps_are_refused_by_a_real_time_clock() {
    let rig = rig("real-time-clock");
    let cqn = rig.create_cq(|_| ()).unwrap();
    let create = |format| {
        rig.create_qp(cqn, |request| {
            request.nested(CreateQpIn::QPC).set(Qpc::TS_FORMAT, format);
        })
    };
    let refused = create(TimestampFormat::FreeRunning).unwrap_err();
    assert_eq!(refused.1, CommandSyndrome::TimestampFormat);
    create(TimestampFormat::Default).unwrap();
}

#[test]
fn a_path_without_a_global_route_is_refused_where_the_port_requires_one() {
    let rig = rig_with(PortType::InfiniBand, "global-route");
    let qpn = initialised(&rig);
    let connect = |global| {
        rig.init2rtr(qpn, (rig.device.address(), qpn), |context| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::GRH, global);
        })
    };
    assert_eq!(connect(false).unwrap_err().1, CommandSyndrome::GlobalRoute);
    connect(true).unwrap();
}
