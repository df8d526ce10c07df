//! The device and its port.

use super::super::outcome::{Checked, Halt};
use super::super::target::Target;

/// Opens the device.
pub(in super::super) fn device(target: &Target) -> Checked {
    if target.is_soft() {
        drop(target.context()?);
        return Ok("software HCA of this process".to_owned());
    }
    opened(target)
}

/// Reports the state and the MTU of the port.
pub(in super::super) fn port(target: &Target) -> Checked {
    if target.is_soft() {
        let context = target.context()?;
        let port = context.port();
        return Ok(facts(true, port.mtu.bytes() as u32, port.global_route));
    }
    queried(target)
}

fn facts(ethernet: bool, mtu: u32, global_route: bool) -> String {
    let link = if ethernet { "RoCE" } else { "InfiniBand" };
    let most = barewire::InterfaceConfig::default().path_mtu;
    let limit = if mtu < most {
        format!(", to which the default of {most} bytes is reduced")
    } else {
        String::new()
    };
    let route = if global_route && !ethernet { ", global route required: used" } else { "" };
    format!("{link}, active, path MTU {mtu} bytes{limit}{route}")
}

#[cfg(feature = "verbs")]
fn opened(target: &Target) -> Checked {
    let (name, port) = target.name_and_port()?;
    let context = barewire_verbs::Context::open(name)?;
    if port == 0 || port > context.port_count() {
        let count = context.port_count();
        return Err(Halt::failed(format!("it has no port {port}: there are {count}")));
    }
    // libibverbs reads the same variable.
    let root = std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into());
    let sysfs = std::path::Path::new(&root).join("class/infiniband").join(name);
    let read = |file: &str| {
        let text = std::fs::read_to_string(sysfs.join(file)).unwrap_or_default();
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let facts = [
        ("type", "hca_type"),
        ("firmware", "fw_ver"),
        ("PSID", "board_id"),
        ("NUMA node", "device/numa_node"),
        ("PCIe", "device/current_link_speed"),
        ("lanes", "device/current_link_width"),
    ];
    let known = facts.iter().filter_map(|(what, file)| Some(format!("{what} {}", read(file)?)));
    let text: Vec<String> = known.collect();
    Ok(format!("{} ports, {}", context.port_count(), text.join(", ")))
}

#[cfg(feature = "verbs")]
fn queried(target: &Target) -> Checked {
    use barewire_verbs::{LinkLayer, PortState};

    let (name, number) = target.name_and_port()?;
    let port = barewire_verbs::Context::open(name)?.query_port(number)?;
    if port.state != PortState::Active {
        return Err(Halt::failed(format!("its state is {:?}", port.state)));
    }
    Ok(facts(port.link_layer == LinkLayer::Ethernet, port.active_mtu, port.global_route))
}

#[cfg(not(feature = "verbs"))]
fn opened(_: &Target) -> Checked {
    Err(Halt::Skipped("this build lacks the feature verbs".to_owned()))
}

#[cfg(not(feature = "verbs"))]
fn queried(_: &Target) -> Checked {
    Err(Halt::Skipped("this build lacks the feature verbs".to_owned()))
}
