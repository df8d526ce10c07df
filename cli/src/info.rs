//! `barewire info`: lists the devices and transports of this machine, and the reason for each that
//! is absent.

use crate::args::InfoArgs;
use crate::doctor;
use crate::error::{Error, local};
use crate::output::{Output, columns, entry, wrapped};
use crate::transports::{is_first_port, unknown, unknown_transport};
use barewire::config::{Setting, VARIABLES};
use barewire::transport::tcp;
use barewire::{
    AmLimits, AtomicOperations, Attributes, Component, Flags, InterfaceConfig, RmaLimits,
    TagLimits, TransportId, components,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The column in which the values of attributes begin.
const VALUES: usize = 25;

pub(crate) fn run(args: &InfoArgs, out: &mut Output) -> Result<(), Error> {
    if let Some(peer) = args.to {
        let (interface, source) = tcp::toward(peer).map_err(|error| local("tcp", &error))?;
        let note = interface.reason.map_or(String::new(), |reason| {
            format!("; without a route it would not be used: {reason}")
        });
        return out.line(format!(
            "tcp to {peer}: device {}, since the route to {peer} leaves from its address {source}{note}",
            interface.name
        ));
    }
    if args.config {
        return config(args.json, out);
    }
    if args.explain {
        return explain(out);
    }
    let components = selected(args)?;
    if args.json {
        let list: Vec<Value> = components.iter().map(component_json).collect();
        let version = env!("CARGO_PKG_VERSION");
        return out.line(format!("{:#}", json!({ "version": version, "components": list })));
    }
    if !args.verbose && wanted(args).is_empty() {
        return summary(&components, out);
    }
    for (index, component) in components.iter().enumerate() {
        if index > 0 {
            out.line("")?;
        }
        print(component, out)?;
    }
    Ok(())
}

/// The transports of the command line; none means all.
fn wanted(args: &InfoArgs) -> Vec<&String> {
    args.names.iter().chain(&args.transports).collect()
}

/// The components with the devices and transports of the command line.
fn selected(args: &InfoArgs) -> Result<Vec<Component>, Error> {
    let mut all = components();
    let wanted = wanted(args);
    if wanted.is_empty() && args.devices.is_empty() {
        return Ok(all);
    }
    let transport = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name);
    let is = |wanted: &str, name: &str| wanted == name || is_first_port(name, wanted);
    let device =
        |name: &str| args.devices.is_empty() || args.devices.iter().any(|wanted| is(wanted, name));
    let is_known = |name: &str| TransportId::ALL.iter().any(|id| id.name() == name);
    if let Some(name) = wanted.iter().find(|name| !is_known(name)) {
        return Err(unknown_transport(name));
    }
    let devices = all.iter().flat_map(|component| &component.devices);
    let devices = devices.map(|device| device.name.as_str());
    if let Some(name) =
        args.devices.iter().find(|name| !devices.clone().any(|known| is(name, known)))
    {
        return Err(unknown("device", name, devices));
    }
    for component in &mut all {
        component.devices.retain(|each| device(&each.name));
        for each in &mut component.devices {
            each.transports.retain(|each| transport(each.transport().name()));
        }
        component.devices.retain(|each| !each.transports.is_empty());
        component.absent.retain(|absent| args.devices.is_empty() && transport(&absent.what));
    }
    all.retain(|component| !component.devices.is_empty() || !component.absent.is_empty());
    if all.is_empty() {
        return Err(Error::Local("none of these transports is on any of these devices".to_owned()));
    }
    Ok(all)
}

/// Prints a line for every path to a device, with the reason if it is rejected.
fn explain(out: &mut Output) -> Result<(), Error> {
    doctor::explain(out)?;
    // The transports over devices of RDMA are above.
    let others = components();
    for component in others.iter().filter(|other| !["mlx5", "verbs"].contains(&other.name)) {
        for transport in component.devices.iter().flat_map(|device| &device.transports) {
            out.line(format!("{}: works", transport.device))?;
        }
        for absent in &component.absent {
            out.line(entry(&format!("{}: rejected: {}", absent.what, absent.reason)))?;
        }
    }
    Ok(())
}

/// Prints the settings of interfaces and the other environment variables.
fn config(as_json: bool, out: &mut Output) -> Result<(), Error> {
    let config = InterfaceConfig::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if as_json {
        let settings = config.settings().into_iter().map(|setting| {
            let variable = setting.variable();
            json!({ "name": setting.name, "variable": variable, "value": setting.value, "default": setting.default,
                "unit": setting.unit, "doc": plain(&setting.doc) })
        });
        let others = VARIABLES.iter().map(
            |other| json!({ "variable": other.name, "set": set(other.name).is_some(), "doc": plain(other.doc) }),
        );
        let (settings, others): (Vec<_>, Vec<_>) = (settings.collect(), others.collect());
        return out.line(format!("{:#}", json!({ "settings": settings, "variables": others })));
    }
    let comment =
        |text: &str| format!("# {}", wrapped(text, 0, columns() - 2).replace('\n', "\n# "));
    out.line("# Settings of an interface. A shell reads these lines: set -a; . FILE")?;
    for setting in config.settings() {
        let Setting { name, unit, default, value, doc, .. } = &setting;
        let from = if value == default {
            String::new()
        } else {
            format!(", by the environment; default {default}")
        };
        let doc = comment(&plain(doc));
        out.line(format!("\n# {name}, {unit}{from}\n{doc}\n{}={value}", setting.variable()))?;
    }
    out.line("\n# Other variables")?;
    for other in VARIABLES {
        // Keys are secret.
        let is_key = [barewire_tcp::key::KEY_VARIABLE, barewire_hca::KEY_VARIABLE];
        let value = match set(other.name) {
            Some(_) if is_key.contains(&other.name) => {
                format!("# {} is set", other.name)
            }
            Some(value) => format!("{}='{}'", other.name, value.replace('\'', "'\\''")),
            None => format!("# {}=", other.name),
        };
        out.line(format!("\n{}\n{value}", comment(&plain(other.doc))))?;
    }
    Ok(())
}

/// Removes the markup of rustdoc: backticks, and the targets of links.
fn plain(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, after)) = rest.split_once("](") {
        let (before, label) = before.rsplit_once('[').unwrap_or((before, ""));
        text.push_str(before);
        text.push_str(label);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    text.replace('`', "")
}

/// Prints a line for each transport on each device, and for each absent one.
fn summary(components: &[Component], out: &mut Output) -> Result<(), Error> {
    let mut lines = vec![SUMMARY.map(str::to_owned)];
    for device in components.iter().flat_map(|component| &component.devices) {
        for transport in &device.transports {
            lines.push(cells(transport.transport().name(), &device.name, &transport.attributes));
        }
    }
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max();
    let widths: [usize; SUMMARY.len()] = std::array::from_fn(|at| width(at).unwrap_or(0));
    for cells in &lines {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            // The last three are numbers.
            let _ = if at < SUMMARY.len() - 3 {
                write!(line, "{gap}{cell:<width$}")
            } else {
                write!(line, "{gap}{cell:>width$}")
            };
        }
        out.line(line)?;
    }
    for absent in components.iter().flat_map(|component| &component.absent) {
        let absent = format!("absent {}: {}", absent.what, absent.reason);
        out.line(wrapped(&absent, 4, columns()))?;
    }
    out.line(wrapped(
        "Latency and bandwidth are declared, for plans; 'barewire perf' measures. All limits: \
         'barewire info TRANSPORT' or -v.",
        0,
        columns(),
    ))
}

/// The columns of [`summary`].
const SUMMARY: [&str; 6] = ["transport", "device", "operations", "short", "latency", "bandwidth"];

fn cells(transport: &str, device: &str, attributes: &Attributes) -> [String; SUMMARY.len()] {
    let Attributes { put, get, am, tag, atomic32, atomic64, latency_ns, bandwidth, .. } =
        attributes;
    let longest = |limits: &RmaLimits| limits.max_short.max(limits.max_bcopy).max(limits.max_zcopy);
    let operations = [
        (longest(put) > 0, "put"),
        (longest(get) > 0, "get"),
        (am.max_short.max(am.max_bcopy).max(am.max_zcopy) > 0, "am"),
        (tag.max_receives > 0, "tags"),
        (!(*atomic32 | *atomic64).is_empty(), "atomics"),
    ];
    let operations = operations.iter().filter(|(has, _)| *has).map(|(_, name)| *name);
    let short = match put.max_short.max(am.max_short) {
        0 => "-".to_owned(),
        usize::MAX => "any".to_owned(),
        short => format!("{short} B"),
    };
    [
        transport.to_owned(),
        device.to_owned(),
        operations.collect::<Vec<_>>().join(" "),
        short,
        format!("{latency_ns:.0} ns"),
        format!("{:.1} GB/s", bandwidth / 1e9),
    ]
}

fn print(component: &Component, out: &mut Output) -> Result<(), Error> {
    let heading = format!("component {}: {}", component.name, component.description);
    out.line(entry(&heading))?;
    for device in &component.devices {
        out.line(entry(&format!("  device {}: {}", device.name, device.description)))?;
        for transport in &device.transports {
            out.line(format!("    transport {}", transport.transport()))?;
            for (name, value) in rows(&transport.attributes) {
                let value = wrapped(&value, VALUES, columns());
                out.line(format!("      {name:<18} {value}"))?;
            }
        }
    }
    for absent in &component.absent {
        let absent = format!("absent {}: {}", absent.what, absent.reason);
        out.line(format!("  {}", wrapped(&absent, 4, columns() - 2)))?;
    }
    Ok(())
}

/// The attributes as pairs of name and text.
fn rows(attributes: &Attributes) -> Vec<(&'static str, String)> {
    let Attributes {
        put,
        get,
        am,
        tag,
        atomic32,
        atomic64,
        flags,
        overhead_ns,
        latency_ns,
        bandwidth,
        max_endpoints,
        ..
    } = attributes;
    vec![
        ("put", rma(put)),
        ("get", rma(get)),
        ("active message", active_message(am)),
        ("tags in the device", tagged(tag)),
        ("atomic 32 bit", or_none(atomics(*atomic32).join(", "))),
        ("atomic 64 bit", or_none(atomics(*atomic64).join(", "))),
        ("capabilities", or_none(capabilities(*flags).join(", "))),
        ("overhead", format!("{overhead_ns:.0} ns per message, declared for plans")),
        ("latency", format!("{latency_ns:.0} ns, declared for plans")),
        ("bandwidth", format!("{:.1} GB/s, declared for plans", bandwidth / 1e9)),
        (
            "endpoints",
            if *max_endpoints == u32::MAX { "no limit".into() } else { max_endpoints.to_string() },
        ),
    ]
}

fn rma(limits: &RmaLimits) -> String {
    let RmaLimits { max_short, max_bcopy, min_zcopy, max_zcopy, max_iov, .. } = *limits;
    or_none(sizes(max_short, max_bcopy, min_zcopy, max_zcopy, max_iov))
}

fn active_message(limits: &AmLimits) -> String {
    let AmLimits { max_short, max_bcopy, min_zcopy, max_zcopy, max_iov, max_header, .. } = *limits;
    let sizes = or_none(sizes(max_short, max_bcopy, min_zcopy, max_zcopy, max_iov));
    if max_header == 0 { sizes } else { format!("{sizes}, header {}", range(0, max_header)) }
}

fn tagged(limits: &TagLimits) -> String {
    let TagLimits {
        max_short, max_bcopy, max_zcopy, max_iov, max_rendezvous, max_receives, ..
    } = *limits;
    let sizes = or_none(sizes(max_short, max_bcopy, 0, max_zcopy, max_iov));
    if max_receives == 0 {
        return sizes;
    }
    let rendezvous = range(0, max_rendezvous);
    format!("{sizes}, rendezvous {rendezvous}, up to {max_receives} receives, with tag_matching")
}

fn sizes(short: usize, bcopy: usize, min_zcopy: usize, max_zcopy: usize, iov: usize) -> String {
    let mut parts = Vec::new();
    if short > 0 {
        parts.push(format!("short {}", range(0, short)));
    }
    if bcopy > 0 {
        parts.push(format!("bcopy {}", range(0, bcopy)));
    }
    if max_zcopy > 0 {
        parts.push(format!("zcopy {} in up to {iov} slices", range(min_zcopy, max_zcopy)));
    }
    parts.join(", ")
}

/// Formats inclusive limits in bytes.
fn range(least: usize, most: usize) -> String {
    match (least, most) {
        (0, usize::MAX) => "of any size".into(),
        (least, usize::MAX) => format!("from {least} B"),
        (0, most) => format!("up to {most} B"),
        (least, most) => format!("from {least} to {most} B"),
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".into() } else { text }
}

fn atomics(operations: AtomicOperations) -> Vec<String> {
    operations.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

fn capabilities(flags: Flags) -> Vec<String> {
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

/// An unlimited size is `null`.
fn limit_json(limit: usize) -> Value {
    if limit == usize::MAX { Value::Null } else { limit.into() }
}

fn component_json(component: &Component) -> Value {
    let devices: Vec<Value> = component
        .devices
        .iter()
        .map(|device| {
            let transports: Vec<Value> = device
                .transports
                .iter()
                .map(|transport| {
                    let mut attributes = attributes_json(&transport.attributes);
                    attributes["name"] = transport.transport().name().into();
                    attributes
                })
                .collect();
            json!({ "name": device.name, "description": device.description, "transports": transports })
        })
        .collect();
    let absent: Vec<Value> = component
        .absent
        .iter()
        .map(|absent| json!({ "name": absent.what, "reason": absent.reason }))
        .collect();
    json!({
        "name": component.name,
        "description": component.description,
        "devices": devices,
        "absent": absent,
    })
}

fn attributes_json(attributes: &Attributes) -> Value {
    let rma = |limits: &RmaLimits| {
        json!({
            "max_short_bytes": limit_json(limits.max_short),
            "max_bcopy_bytes": limit_json(limits.max_bcopy),
            "min_zcopy_bytes": limits.min_zcopy,
            "max_zcopy_bytes": limit_json(limits.max_zcopy),
            "max_iov": limits.max_iov,
        })
    };
    let (am, tag) = (&attributes.am, &attributes.tag);
    json!({
        "put": rma(&attributes.put),
        "get": rma(&attributes.get),
        "active_message": {
            "max_short_bytes": limit_json(am.max_short),
            "max_bcopy_bytes": limit_json(am.max_bcopy),
            "min_zcopy_bytes": am.min_zcopy,
            "max_zcopy_bytes": limit_json(am.max_zcopy),
            "max_iov": am.max_iov,
            "max_header_bytes": limit_json(am.max_header),
        },
        "tag": {
            "max_short_bytes": tag.max_short,
            "max_bcopy_bytes": tag.max_bcopy,
            "max_zcopy_bytes": tag.max_zcopy,
            "max_iov": tag.max_iov,
            "max_rendezvous_bytes": tag.max_rendezvous,
            "max_header_bytes": tag.max_header,
            "max_receives": tag.max_receives,
        },
        "atomic32": atomics(attributes.atomic32),
        "atomic64": atomics(attributes.atomic64),
        "capabilities": capabilities(attributes.flags),
        "overhead_ns": attributes.overhead_ns,
        "latency_ns": attributes.latency_ns,
        "bandwidth_bytes_per_s": attributes.bandwidth,
        "max_endpoints": if attributes.max_endpoints == u32::MAX {
            Value::Null
        } else {
            attributes.max_endpoints.into()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_removed() {
        assert_eq!(
            plain("How long [`Worker::wait`](crate::Worker::wait) polls"),
            "How long Worker::wait polls"
        );
        assert_eq!(plain("`auto` [default: devx], a [b](c) d](e"), "auto [default: devx], a b d");
        assert_eq!(plain("[default: devx]"), "[default: devx]");
    }
}
