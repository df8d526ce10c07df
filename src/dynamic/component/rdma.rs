//! The machine's RDMA devices, and why some cannot be used.

use barewire_verbs::Finding;

use super::{Absent, Component, DeviceInfo};
use crate::base::address::TransportId;
#[cfg(all(feature = "mlx5", any(feature = "soft", feature = "verbs")))]
use crate::base::attributes::Attributes;
#[cfg(any(feature = "soft", feature = "verbs"))]
use crate::base::config::InterfaceConfig;
#[cfg(all(feature = "mlx5", any(feature = "soft", feature = "verbs")))]
use crate::transport::{dc_mlx5, rc_mlx5, ud_mlx5, xrc_mlx5};
#[cfg(feature = "verbs")]
use crate::transport::{rc_verbs, rdma, ud_verbs};
#[cfg(all(feature = "mlx5", feature = "verbs"))]
use crate::{base::config::Choice, transport::mlx5};

/// Returns the components of the transports over RDMA devices.
pub(super) fn components() -> Vec<Component> {
    let findings = barewire_verbs::probe();
    let mut components = Vec::new();
    #[cfg(feature = "mlx5")]
    components.push(mlx5(&findings));
    let (devices, absent) = verbs(&findings);
    let description = "RDMA devices through libibverbs";
    components.push(Component { name: "verbs", description, devices, absent });
    components
}

#[cfg(feature = "mlx5")]
fn mlx5(findings: &[Finding]) -> Component {
    #[cfg_attr(not(feature = "soft"), expect(unused_mut, reason = "nothing is inserted"))]
    let (mut devices, absent) = hardware(findings);
    #[cfg(feature = "soft")]
    {
        let description = "software HCA of this process, RoCEv2 over UDP on loopback".to_owned();
        let config = InterfaceConfig::default().tag_matching(crate::base::config::Choice::Auto);
        let attributes = [
            rc_mlx5::attributes(&config),
            ud_mlx5::attributes(&config),
            dc_mlx5::attributes(&config),
            xrc_mlx5::attributes(&config),
        ];
        let [rc, ud, dc, xrc] = attributes.map(|mut attributes| {
            attributes.flags.note_software(true);
            attributes
        });
        let name = rc_mlx5::SOFT_DEVICE.to_owned();
        devices.insert(0, device(name, description, [rc, ud], [Some(dc), Some(xrc)]));
    }
    let description = "ConnectX devices through barewire's own driver";
    Component { name: "mlx5", description, devices, absent }
}

#[cfg(all(feature = "mlx5", any(feature = "soft", feature = "verbs")))]
fn device(
    name: String,
    description: String,
    [rc, ud]: [Attributes; 2],
    [dc, xrc]: [Option<Attributes>; 2],
) -> DeviceInfo {
    let transports = [(TransportId::RcMlx5, rc), (TransportId::UdMlx5, ud)];
    let dc = dc.map(|dc| (TransportId::DcMlx5, dc));
    let xrc = xrc.map(|xrc| (TransportId::XrcMlx5, xrc));
    DeviceInfo::new(name, description, transports.into_iter().chain(dc).chain(xrc))
}

/// The machine's devices that the driver drives, and why it does not drive the others.
#[cfg(all(feature = "mlx5", feature = "verbs"))]
fn hardware(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    for found in mlx5::hardware::found() {
        match found.setup {
            Ok(mlx5::hardware::SetUp { how, capabilities: has }) => {
                let rc = InterfaceConfig::default().tag_matching(Choice::Auto);
                let rc = rc_mlx5::attributes_of(&rc, &has);
                let ud = ud_mlx5::attributes(&InterfaceConfig::default());
                let dc = has
                    .dynamic_connections
                    .then(|| dc_mlx5::attributes(&InterfaceConfig::default()));
                let xrc = has.xrc.then(|| xrc_mlx5::attributes(&InterfaceConfig::default()));
                let description = format!("ConnectX device, {how}");
                devices.push(device(found.device, description, [rc, ud], [dc, xrc]));
            }
            Err(reason) => absent.push(Absent::new(found.device, reason)),
        }
    }
    if devices.is_empty() && absent.is_empty() {
        absent = without_verbs(findings);
    }
    (devices, absent)
}

#[cfg(all(feature = "mlx5", not(feature = "verbs")))]
fn hardware(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    (Vec::new(), without_verbs(findings))
}

/// Returns what the driver lacks on this machine, according to sysfs.
#[cfg(any(test, feature = "mlx5"))]
fn without_verbs(findings: &[Finding]) -> Vec<Absent> {
    let reason = |finding: &Finding| {
        if finding.usable {
            let rest =
                if cfg!(feature = "soft") { ", and so reaches the software HCA only" } else { "" };
            format!("the device is there, but this build lacks the feature verbs{rest}")
        } else {
            finding.reason.clone()
        }
    };
    let ours = findings.iter().filter(|finding| {
        // A finding that names no device is about the whole machine.
        finding.device.starts_with("mlx5") || finding.device == MACHINE
    });
    ours.map(|finding| Absent::new(hardware_name(finding), reason(finding))).collect()
}

/// The device of findings about the machine as a whole.
const MACHINE: &str = barewire_verbs::MACHINE;

#[cfg(any(test, feature = "mlx5"))]
fn hardware_name(finding: &Finding) -> String {
    if finding.device == MACHINE { "ConnectX hardware".to_owned() } else { finding.device.clone() }
}

/// The machine's devices that transports over verbs drive, and why there are not more.
#[cfg(feature = "verbs")]
fn verbs(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    let config = InterfaceConfig::default();
    for found in rdma::found() {
        match found.state {
            Ok(address) => devices.push(DeviceInfo::new(
                found.device,
                format!("RDMA device, {address}"),
                [
                    (TransportId::RcVerbs, rc_verbs::attributes(&config)),
                    (TransportId::UdVerbs, ud_verbs::attributes(&config)),
                ],
            )),
            Err(reason) => {
                for transport in VERBS_TRANSPORTS {
                    absent.push(Absent::new(
                        format!("{transport} on {}", found.device),
                        reason.clone(),
                    ));
                }
            }
        }
    }
    if devices.is_empty() && absent.is_empty() {
        absent = no_verbs(findings);
    }
    (devices, absent)
}

#[cfg(not(feature = "verbs"))]
fn verbs(findings: &[Finding]) -> (Vec<DeviceInfo>, Vec<Absent>) {
    (Vec::new(), no_verbs(findings))
}

/// The transports over verbs.
const VERBS_TRANSPORTS: [TransportId; 2] = [TransportId::RcVerbs, TransportId::UdVerbs];

/// Why there are no transports over verbs.
fn no_verbs(findings: &[Finding]) -> Vec<Absent> {
    let absent = |transport: TransportId, finding: &Finding| {
        let what = match finding.device.as_str() {
            MACHINE => transport.to_string(),
            device => format!("{transport} on {device}"),
        };
        let lacking = "this build lacks the feature verbs";
        Absent::new(
            what,
            if finding.usable {
                format!("the device is there, but {lacking}")
            } else if cfg!(feature = "verbs") {
                finding.reason.clone()
            } else {
                format!("{}; and {lacking}", finding.reason)
            },
        )
    };
    let of = |transport| findings.iter().map(move |finding| absent(transport, finding));
    VERBS_TRANSPORTS.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(device: &str, usable: bool) -> Finding {
        Finding { device: device.to_owned(), usable, reason: format!("{device} is so") }
    }

    #[test]
    fn every_absence_has_its_reason() {
        let findings = [finding("mlx5_0", true), finding("rxe0", false)];
        let absent = without_verbs(&findings);
        assert_eq!(absent.len(), 1);
        assert!(absent[0].what == "mlx5_0" && absent[0].reason.contains("lacks the feature verbs"));
        assert_eq!(absent[0].reason.contains("software HCA only"), cfg!(feature = "soft"));
        let names: Vec<_> = no_verbs(&findings).into_iter().map(|absent| absent.what).collect();
        assert_eq!(names[..2], ["rc_verbs on mlx5_0", "rc_verbs on rxe0"]);
        let nothing = [finding(MACHINE, false)];
        assert_eq!(without_verbs(&nothing), [Absent::new("ConnectX hardware", "rdma is so")]);
        let lacking = "; and this build lacks the feature verbs";
        let reason = format!("rdma is so{}", if cfg!(feature = "verbs") { "" } else { lacking });
        assert_eq!(no_verbs(&nothing)[1], Absent::new("ud_verbs", reason));
    }
}
