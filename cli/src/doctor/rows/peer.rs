//! The path to another host, whose doctor listens.

use std::collections::BTreeMap;
use std::fs;

use barewire::{Flags, TransportId};
use barewire_hca::ADDRESS_VARIABLE;

use super::super::outcome::{Checked, Halt};
use super::super::target::Target;
use crate::args::{Sizes, TestArgs};
use crate::peer::Work;
use crate::test::Test;
use crate::{perf, transports};

/// Bytes of a message of the test of bandwidth, unless the transport's are shorter.
const LARGE: usize = 1 << 20;

/// Latency of a short message and bandwidth of long ones, with the counters of the port that
/// changed meanwhile.
pub(in super::super) fn peer(target: &Target) -> Checked {
    let (host, port) = target.peer.as_ref().ok_or_else(|| Halt::failed("no host is given"))?;
    let transport = target.transport()?.name();
    let here_alone = match target.transport()? {
        TransportId::Shm | TransportId::Cma => {
            Some(format!("{transport} joins processes of one machine"))
        }
        TransportId::Tcp if transports::key()?.is_none() => {
            let key = "tcp between processes needs a key: see 'barewire key --help'";
            return Err(Halt::Skipped(key.to_owned()));
        }
        _ if target.is_on_loopback()? => Some(format!(
            "soft0 is on the loopback: set {ADDRESS_VARIABLE} to an address of the host, on both"
        )),
        _ => None,
    };
    // Of an open interface: the longest datagram depends on the MTU of the port.
    let attributes = super::session(target)?.attributes().clone();
    let puts = attributes.flags.contains(Flags::PUT_ZCOPY);
    let (stream, size) = if puts {
        (Test::PutBw, attributes.put.max_zcopy)
    } else {
        (Test::AmBw, attributes.am.max_bcopy)
    };
    let device = (target.transport()? != TransportId::Tcp).then(|| target.device.clone());
    let first = if attributes.am.max_short > 0 { Test::AmLat } else { Test::PutLat };
    let tests = [(first, 8, 1000), (stream, size.min(LARGE), 64)];
    let tests = tests.map(|(test, size, count)| TestArgs {
        test: Some(test),
        iterations: Some(count),
        transport: Some(transport.to_owned()),
        device: device.clone(),
        sizes: Some(Sizes(vec![size])),
        ..TestArgs::default()
    });
    let before = counters(&target.device);
    let own = here_alone.is_some();
    let Some(results) = perf::against((host, *port), Work::Doctor, &tests, own)? else {
        return Err(Halt::Skipped(here_alone.unwrap_or_default()));
    };
    let [message, stream] = &results[..] else { return Err(Halt::failed("tests are missing")) };
    let changes = counters(&target.device).into_iter().filter_map(|(name, after)| {
        let change = after.wrapping_sub(before.get(&name).copied().unwrap_or_default());
        (change > 0).then(|| format!(", {name} +{change}"))
    });
    let changes: String = changes.collect();
    let (short, long) = (message.size, stream.size);
    let (latency, bandwidth) = (message.latency, stream.bandwidth / 1e9);
    Ok(format!("to {host}: {short} B in {latency:.2} us, {long} B at {bandwidth:.3} GB/s{changes}"))
}

/// The port's counters of the hardware, such as `out_of_sequence`; none for a software device.
fn counters(device: &str) -> BTreeMap<String, u64> {
    let (name, port) = device.split_once(':').unwrap_or((device, "1"));
    let folder = format!("/sys/class/infiniband/{name}/ports/{port}/hw_counters");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let value = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), text.trim().parse().ok()?))
    };
    // Settings of the kernel, not counters.
    entries.filter_map(value).filter(|(name, _)| name != "lifespan").collect()
}
