//! The rows, in order.

use std::time::Duration;

use barewire_mlx5::Family;

use super::outcome::Checked;
use super::rows::{
    atomics, data, device, errors, events, families, host, limits, memory, peer, queues,
};
use super::target::Target;

/// What a row is about. It runs once for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Host,
    Device,
    /// A transport, on devices with one backend.
    Path,
    /// A transport whose device has queues.
    Queues,
    /// `rc_mlx5`, on devices with one backend: a family of objects, of whichever transport.
    Family,
    /// A path to another host.
    Peer,
}

/// One test.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    /// The row of the same target without which this one cannot run.
    pub(super) needs: Option<&'static str>,
    /// The most time for it.
    pub(super) deadline: Duration,
    /// What a failure means, and what to do.
    pub(super) meaning: &'static str,
    pub(super) check: fn(&Target) -> Checked,
}

const SHORT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_mins(1);

pub(super) const ROWS: [Row; 20] = [
    Row {
        name: "host",
        scope: Scope::Host,
        needs: None,
        deadline: SHORT,
        meaning: "the host lacks something that every transport needs",
        check: host::host,
    },
    Row {
        name: "device",
        scope: Scope::Device,
        needs: None,
        deadline: SHORT,
        meaning: "the device cannot be opened: check the permissions of /dev/infiniband and the driver",
        check: device::device,
    },
    Row {
        name: "port",
        scope: Scope::Device,
        needs: Some("device"),
        deadline: SHORT,
        meaning: "the port carries no traffic: check the cable, the switch and the network interface",
        check: device::port,
    },
    Row {
        name: "setup",
        scope: Scope::Path,
        needs: None,
        deadline: SHORT,
        meaning: "this path cannot set up the device; another may",
        check: queues::setup,
    },
    Row {
        name: "capabilities",
        scope: Scope::Queues,
        needs: Some("setup"),
        deadline: SHORT,
        meaning: "the device lacks something that the transport needs: update its firmware",
        check: queues::capabilities,
    },
    Row {
        name: "memory",
        scope: Scope::Queues,
        needs: Some("setup"),
        deadline: LONG,
        meaning: "memory cannot be registered: check ulimit -l and the IOMMU",
        check: memory::memory,
    },
    Row {
        name: "doorbells",
        scope: Scope::Queues,
        needs: Some("setup"),
        deadline: SHORT,
        meaning: "the device does not receive doorbells: use rc_verbs, ud_verbs or tcp",
        check: queues::doorbells,
    },
    Row {
        name: "objects",
        scope: Scope::Queues,
        needs: Some("doorbells"),
        deadline: SHORT,
        meaning: "the device refuses queues or their state changes: send the status and the syndrome",
        check: queues::objects,
    },
    Row {
        name: "readback",
        scope: Scope::Queues,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "the device reports other values than were set: send the text",
        check: queues::readback,
    },
    Row {
        name: "rmp",
        scope: Scope::Family,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "shared receive queues do not work: rc_mlx5 does without, dc_mlx5 does not",
        check: |target| families::family(target, Family::SharedReceive),
    },
    Row {
        name: "xrq",
        scope: Scope::Family,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "tag matching does not work: leave tag_matching=no, which is the default",
        check: |target| families::family(target, Family::Tags),
    },
    Row {
        name: "dc",
        scope: Scope::Family,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "dc_mlx5 does not work: use rc_mlx5",
        check: |target| families::family(target, Family::Dynamic),
    },
    Row {
        name: "xrc",
        scope: Scope::Family,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "xrc_mlx5 does not work: use rc_mlx5",
        check: |target| families::family(target, Family::Xrc),
    },
    Row {
        name: "ud",
        scope: Scope::Family,
        needs: Some("objects"),
        deadline: SHORT,
        meaning: "ud_mlx5 does not work: use ud_verbs",
        check: |target| families::family(target, Family::Datagrams),
    },
    Row {
        name: "data",
        scope: Scope::Path,
        needs: Some("objects"),
        deadline: LONG,
        meaning: "bytes are lost or wrong: try a smaller BAREWIRE_PATH_MTU, and do not use this path",
        check: data::data,
    },
    Row {
        name: "atomics",
        scope: Scope::Path,
        needs: Some("data"),
        deadline: SHORT,
        meaning: "atomics return or store other values: do not use them on this path",
        check: atomics::atomics,
    },
    Row {
        name: "events",
        scope: Scope::Path,
        needs: Some("data"),
        deadline: SHORT,
        meaning: "completions do not wake a sleeping thread: call Worker::progress instead",
        check: events::events,
    },
    Row {
        name: "errors",
        scope: Scope::Queues,
        needs: Some("data"),
        deadline: SHORT,
        meaning: "errors of remote memory are not reported as documented",
        check: errors::errors,
    },
    Row {
        name: "limits",
        scope: Scope::Queues,
        needs: Some("data"),
        deadline: LONG,
        meaning: "queues at their limit lose operations",
        check: limits::limits,
    },
    Row {
        name: "peer",
        scope: Scope::Peer,
        needs: Some("data"),
        deadline: LONG,
        meaning: "the path works within this host only: check addresses, MTU, partitions and routes",
        check: peer::peer,
    },
];

/// Returns the row with this name.
pub(super) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_what_they_need() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(find(row.name).map(|found| found.name), Some(row.name));
            let before = &ROWS[..at];
            let needed = |name| before.iter().any(|row| row.name == name);
            assert!(row.needs.is_none_or(needed), "{}", row.name);
        }
    }
}
