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

impl Row {
    const fn new(name: &'static str, scope: Scope, check: fn(&Target) -> Checked) -> Self {
        let deadline = Duration::from_secs(20);
        Self { name, scope, needs: None, deadline, meaning: "", check }
    }

    const fn needs(self, needs: &'static str) -> Self {
        Self { needs: Some(needs), ..self }
    }

    const fn long(self) -> Self {
        Self { deadline: Duration::from_mins(1), ..self }
    }

    const fn means(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }
}

pub(super) const ROWS: [Row; 20] = [
    Row::new("host", Scope::Host, host::host)
        .means("the host lacks something that every transport needs"),
    Row::new("device", Scope::Device, device::device).means(
        "the device cannot be opened: check the permissions of /dev/infiniband and the driver",
    ),
    Row::new("port", Scope::Device, device::port).needs("device").means(
        "the port carries no traffic: check the cable, the switch and the network interface",
    ),
    Row::new("setup", Scope::Path, queues::setup)
        .means("this path cannot set up the device; another may"),
    Row::new("capabilities", Scope::Queues, queues::capabilities)
        .needs("setup")
        .means("the device lacks something that the transport needs: update its firmware"),
    Row::new("memory", Scope::Queues, memory::memory)
        .needs("setup")
        .long()
        .means("memory cannot be registered: check ulimit -l and the IOMMU"),
    Row::new("doorbells", Scope::Queues, queues::doorbells)
        .needs("setup")
        .means("the device does not receive doorbells: use rc_verbs, ud_verbs or tcp"),
    Row::new("objects", Scope::Queues, queues::objects).needs("doorbells").means(
        "the device refuses queues or their state changes: send the status and the syndrome",
    ),
    Row::new("readback", Scope::Queues, queues::readback)
        .needs("objects")
        .means("the device reports other values than were set: send the text"),
    Row::new("rmp", Scope::Family, |target| families::family(target, Family::SharedReceive))
        .needs("objects")
        .means("shared receive queues do not work: rc_mlx5 does without, dc_mlx5 does not"),
    Row::new("xrq", Scope::Family, |target| families::family(target, Family::Tags))
        .needs("objects")
        .means("tag matching does not work: leave tag_matching=no, which is the default"),
    Row::new("dc", Scope::Family, |target| families::family(target, Family::Dynamic))
        .needs("objects")
        .means("dc_mlx5 does not work: use rc_mlx5"),
    Row::new("xrc", Scope::Family, |target| families::family(target, Family::Xrc))
        .needs("objects")
        .means("xrc_mlx5 does not work: use rc_mlx5"),
    Row::new("ud", Scope::Family, |target| families::family(target, Family::Datagrams))
        .needs("objects")
        .means("ud_mlx5 does not work: use ud_verbs"),
    Row::new("data", Scope::Path, data::data).needs("objects").long().means(
        "bytes are lost or wrong: try a smaller BAREWIRE_PATH_MTU, and do not use this path",
    ),
    Row::new("atomics", Scope::Path, atomics::atomics)
        .needs("data")
        .means("atomics return or store other values: do not use them on this path"),
    Row::new("events", Scope::Path, events::events)
        .needs("data")
        .means("completions do not wake a sleeping thread: call Worker::progress instead"),
    Row::new("errors", Scope::Queues, errors::errors)
        .needs("data")
        .means("errors of remote memory are not reported as documented"),
    Row::new("limits", Scope::Queues, limits::limits)
        .needs("data")
        .long()
        .means("queues at their limit lose operations"),
    Row::new("peer", Scope::Peer, peer::peer)
        .needs("data")
        .long()
        .means("the path works within this host only: check addresses, MTU, partitions and routes"),
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
