//! What a device requires of its driver beyond the PRM's commands, as some ports and hosts do.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use barewire_layouts::command::port::DEFAULT_PKEY;
use barewire_layouts::command::qp::{Enhancements, Mtu};
use barewire_layouts::roce::UDP_SOURCE_PORTS;
use thiserror::Error;

use crate::adapter::Adapter;
use crate::families::Families;
use crate::limits;

/// MTU of an Ethernet port on which packets of every path MTU fit.
const JUMBO_MTU: u16 = 4200;
/// Every UDP port.
const ALL_PORTS: (u16, u16) = (0, u16::MAX);
/// Largest number of partition keys of a port.
const PARTITIONS: usize = 4;
/// What adapters report in logs of NCCL.
const ENHANCEMENTS: Enhancements = Enhancements::from_bits(0x3000_0002);
/// Largest number of bonded ports.
const LAG_PORTS: u8 = 4;

/// Facts of a port and its host. The default is the most permissive: a driver that works only with
/// it fails on a part of the machines in use. See `docs/guide/hardware.md`.
///
/// As text, for [`REQUIREMENTS_VARIABLE`](crate::REQUIREMENTS_VARIABLE), each is named as in
/// [`REQUIREMENTS`]: `mtu=1500,udp-ports=50000-60000`. `all` stands for those that every driver
/// should work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirements {
    /// The adapter whose capabilities the device has. [`FromStr`] sets tag matching, enhancements
    /// and global routes with it, which later parts of the text may change.
    pub adapter: Adapter,
    /// The MTU of the port's Ethernet interface in bytes: 4200 by default, and at most that of the
    /// network interface with the port's address. A queue pair whose path MTU does not fit is
    /// refused.
    pub mtu: u16,
    /// The UDP source ports that RoCE queue pairs may use, the lowest and the highest: all by
    /// default. Other ports are refused.
    pub udp_source_ports: (u16, u16),
    /// The device's clock runs in real time only: queue pairs with time stamps of a free-running
    /// clock are refused.
    pub real_time_clock: bool,
    /// InfiniBand ports require a global route, as those of virtual functions do, which share the
    /// LID of their device. Connections without one are refused; an adapter would accept them, and
    /// their packets would be lost.
    pub global_route: bool,
    /// The host translates DMA addresses. Then user memory that a program registers by DEVX has
    /// the largest pages that divide its length, and memory keys whose first address has another
    /// offset in such a page are refused.
    pub iommu: bool,
    /// Memory keys without relaxed order of writes are refused.
    pub relaxed_keys: bool,
    /// The partition keys of each port: only the default one by default. Zero is no key. Packets
    /// of another partition, and those between two limited members of one, are dropped.
    pub partition_keys: [u16; PARTITIONS],
    /// The time that a command takes: none by default. Stepped devices ignore it.
    pub command_delay: Duration,
    /// The limit of queue pairs; further ones are refused.
    pub max_queue_pairs: usize,
    /// A doorbell concerns only the queue pair that it names, and a queue pair without a doorbell
    /// stays idle. Two doorbells in a row through one half of a BlueFlame register are a
    /// [finding](crate::Finding::DoorbellHalf).
    pub exact_doorbells: bool,
    /// Stores to UAR pages are not combined, as in many virtual machines: pages for BlueFlame are
    /// refused, and programs write 8 bytes per doorbell.
    pub no_write_combining: bool,
    /// Queue pairs that programs create by DEVX are refused: the limit of the firmware is reached.
    pub no_devx_queue_pairs: bool,
    /// The ports of the card are bonded: so many of them; 0 if they are not. A connected queue pair
    /// that names none of them is refused. An adapter would send the packets of all such queue
    /// pairs through one port.
    pub lag_ports: u8,
    /// The bonded card has no targets of DC (`lag_dct` is 0): creating one is refused.
    pub no_lag_dct: bool,
    /// log2 of the most reads and atomics that an initiator of DC may have outstanding: by default as
    /// many as queue pairs have.
    pub log_dc_reads: u8,
    /// Masked atomics of DC have 8 bytes only: a target that accepts those of 4 bytes is refused.
    pub dc_atomics_of_8: bool,
    /// The enhancements of connections (ECE) that the device supports: by default those of common
    /// adapters. Queue pairs use those of what drivers request, without effect on packets. A device
    /// with none refuses to set any.
    pub enhancements: Enhancements,
    /// Absent pages of memory that is paged in on demand are reported by events, and the work waits
    /// until PAGE_FAULT_RESUME: see [`Device::page_in`](crate::Device::page_in). Without it, or
    /// without an event queue that receives these events, the device pages memory in itself.
    pub page_faults: bool,
    /// Page faults name the WQE that met them, and not the memory (`mem_page_fault` is 0). Then the
    /// kernel resumes only faults of queues that verbs create: a queue that a program creates by DEVX
    /// stops at an absent page (linux odp.c: `odp_get_rsc`).
    pub faults_by_wqe: bool,
    /// The kernel does no more for DEVX than Linux does (devx.c, odp.c). For every device, page
    /// faults are those of [`faults_by_wqe`](Self::faults_by_wqe). Only for programs that use the
    /// device by libibverbs (`barewire-hca-uverbs`), user memory has the pages of
    /// [`iommu`](Self::iommu), also on a host without one, and the limit of a shared receive queue
    /// that a program creates has no event (`get_legacy_obj_type`).
    pub kernel_strict: bool,
    /// The time that the kernel takes to find the next hop of a RoCE address: none by default. On
    /// `soft0`, an address that no device of the wire can have is searched for as long, and not
    /// found. For programs that use the device by libibverbs, every address is found.
    pub address_delay: Duration,
    /// Reads return bytes from when their responses are sent, as IBTA 9.5 allows: later writes and
    /// sends of the same connection may change them, unless a fence holds these back. Without it,
    /// reads return bytes from when they are executed.
    pub late_reads: bool,
    /// log2 of one more than the entries of a tag matching list: 12 by default, 7 on published
    /// adapters of InfiniBand; 0 for no tag matching, as on Ethernet. Larger lists are refused.
    pub log_tags: u8,
    /// Objects of these families, created by a program and not by the kernel, are refused.
    pub refuse: Families,
    /// Objects of these families, created by a program and not by the kernel, get no packet: the
    /// device accepts them, and messages to them are lost.
    pub deaf: Families,
    /// Messages are not scattered to completions (`cs_res` is ignored), as on a device without it.
    pub ignores_cs_res: bool,
    /// A queue pair that a command moves to error is flushed after the command has returned.
    pub late_flush: bool,
    /// Completions after which the device is removed; 0 for never. See
    /// [`Fault::Unplug`](crate::Fault::Unplug).
    pub unplug_after: u64,
}

impl Default for Requirements {
    fn default() -> Self {
        Self {
            adapter: Adapter::Model,
            mtu: JUMBO_MTU,
            udp_source_ports: ALL_PORTS,
            real_time_clock: false,
            global_route: false,
            iommu: false,
            relaxed_keys: false,
            partition_keys: [DEFAULT_PKEY, 0, 0, 0],
            command_delay: Duration::ZERO,
            max_queue_pairs: usize::MAX,
            exact_doorbells: false,
            no_write_combining: false,
            no_devx_queue_pairs: false,
            lag_ports: 0,
            no_lag_dct: false,
            log_dc_reads: limits::LOG_RESPONDER_RESOURCES,
            dc_atomics_of_8: false,
            enhancements: ENHANCEMENTS,
            page_faults: false,
            faults_by_wqe: false,
            kernel_strict: false,
            address_delay: Duration::ZERO,
            late_reads: false,
            log_tags: limits::LOG_TAGS,
            refuse: Families::default(),
            deaf: Families::default(),
            ignores_cs_res: false,
            late_flush: false,
            unplug_after: 0,
        }
    }
}

impl Requirements {
    /// Returns the largest path MTU of the port.
    pub(crate) fn path_mtu(self) -> Mtu {
        Mtu::within(self.mtu).unwrap_or(Mtu::Bytes256)
    }

    /// Returns the requirements of ports at network interfaces with these MTUs.
    pub(crate) fn within(self, mtus: impl Iterator<Item = u16>) -> Self {
        Self { mtu: mtus.fold(self.mtu, u16::min), ..self }
    }

    /// Returns the UDP source ports among which drivers choose, the lowest and the highest.
    pub fn spread_ports(self) -> (u16, u16) {
        if self.udp_source_ports == ALL_PORTS { UDP_SOURCE_PORTS } else { self.udp_source_ports }
    }

    /// Returns the partition key at `index` of a port's table.
    pub(crate) fn partition_key(self, index: u16) -> Option<u16> {
        self.partition_keys.get(usize::from(index)).copied().filter(|&key| key != 0)
    }

    /// Returns whether the pages of user memory that programs register by DEVX are as large as
    /// their length allows.
    pub fn large_pages(self) -> bool {
        self.iommu || self.kernel_strict
    }

    /// Returns whether the kernel resumes only those page faults of WQEs that its own queues met.
    pub fn faults_name_wqes(self) -> bool {
        self.faults_by_wqe || self.kernel_strict || !self.adapter.facts().memory_faults
    }

    /// Returns the number of partition keys of a port.
    pub fn partitions(self) -> u16 {
        self.partition_keys.iter().filter(|&&key| key != 0).count() as u16
    }
}

/// A requirement as data, for command lines and for tests that visit all of them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Requirement {
    /// Its name in texts; with two hyphens before it, the option of `barewire hca run`.
    pub name: &'static str,
    /// A value; empty if it takes none.
    pub example: &'static str,
    /// What the device does, as the help of a command line.
    pub effect: &'static str,
    /// Part of `all`: a driver can meet it.
    pub in_all: bool,
    set: fn(&mut Requirements, &str) -> Option<()>,
    get: fn(&Requirements) -> Option<String>,
}

impl Requirement {
    /// Returns the requirement with the value of the example as text.
    pub fn text(&self) -> String {
        if self.example.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}={}", self.name, self.example)
        }
    }
}

macro_rules! value {
    ($name:literal = $example:literal, $in_all:literal, $effect:literal, $set:expr, $get:expr) => {
        Requirement {
            name: $name,
            example: $example,
            effect: $effect,
            in_all: $in_all,
            set: $set,
            get: $get,
        }
    };
}

macro_rules! switch {
    ($name:literal, $in_all:literal, $effect:literal, $field:ident) => {
        Requirement {
            name: $name,
            example: "",
            effect: $effect,
            in_all: $in_all,
            set: |to, value| {
                to.$field = true;
                value.is_empty().then_some(())
            },
            get: |from| from.$field.then(String::new),
        }
    };
}

/// Every requirement.
pub const REQUIREMENTS: &[Requirement] = &[
    value!(
        "device" = "cx6dx",
        false,
        "Have the capabilities of a published adapter: cx5, cx6, cx6dx, cx7 or vf",
        |to, text| {
            to.adapter = text.parse().ok()?;
            let facts = to.adapter.facts();
            to.log_tags = facts.log_tags;
            to.enhancements = if facts.ece { ENHANCEMENTS } else { Enhancements::from_bits(0) };
            to.global_route = to.adapter == Adapter::Vf;
            Some(())
        },
        |from| (from.adapter != Adapter::Model).then(|| from.adapter.to_string())
    ),
    value!(
        "mtu" = "1500",
        true,
        "MTU of the ports' Ethernet interfaces in bytes; path MTUs above it are refused",
        |to, text| {
            to.mtu = text.parse().ok().filter(|&mtu| Mtu::within(mtu).is_some())?;
            Some(())
        },
        |from| Some(from.mtu.to_string())
    ),
    value!(
        "udp-ports" = "50000-60000",
        true,
        "UDP source ports that RoCE queue pairs may use; others are refused",
        |to, text| {
            let (first, last) = text.split_once('-')?;
            let ports = (first.parse().ok()?, last.parse().ok()?);
            to.udp_source_ports = Some(ports).filter(|(first, last)| first <= last)?;
            Some(())
        },
        |from| {
            let (first, last) = from.udp_source_ports;
            ((first, last) != ALL_PORTS).then(|| format!("{first}-{last}"))
        }
    ),
    switch!(
        "real-time-clock",
        true,
        "Run the clock in real time: queue pairs with free-running time stamps are refused",
        real_time_clock
    ),
    switch!(
        "grh-required",
        true,
        "Require a global route on InfiniBand ports, as virtual functions do",
        global_route
    ),
    switch!(
        "iommu",
        true,
        "Choose the pages of user memory as on a host that translates DMA addresses",
        iommu
    ),
    switch!(
        "relaxed-only",
        true,
        "Refuse memory keys without relaxed order of writes, and so those of most verbs programs",
        relaxed_keys
    ),
    value!(
        "pkeys" = "7fff:8001",
        true,
        "Partition keys of the ports, in hexadecimal; packets of other partitions are dropped",
        |to, text| {
            let keys = text.split(':').map(|key| u16::from_str_radix(key, 16).ok());
            let keys: Vec<u16> = keys.collect::<Option<_>>()?;
            to.partition_keys = [0; PARTITIONS];
            to.partition_keys.get_mut(..keys.len())?.copy_from_slice(&keys);
            keys.iter().all(|key| key & !LIMITED != 0).then_some(())
        },
        |from| {
            let keys = from.partition_keys.iter().filter(|&&key| key != 0);
            let keys: Vec<_> = keys.map(|key| format!("{key:x}")).collect();
            (keys != ["ffff"]).then(|| keys.join(":"))
        }
    ),
    value!(
        "command-delay" = "2",
        true,
        "Milliseconds that a command takes",
        |to, text| {
            to.command_delay = Duration::from_millis(text.parse::<u16>().ok()?.into());
            Some(())
        },
        |from| {
            let delay = from.command_delay;
            (!delay.is_zero()).then(|| delay.as_millis().to_string())
        }
    ),
    value!(
        "max-qps" = "256",
        true,
        "Number of queue pairs; further ones are refused with BAD_RESOURCE",
        |to, text| {
            to.max_queue_pairs = text.parse().ok()?;
            Some(())
        },
        |from| (from.max_queue_pairs != usize::MAX).then(|| from.max_queue_pairs.to_string())
    ),
    switch!(
        "exact-doorbells",
        true,
        "Start only the queue pair that a doorbell names; report bursts to one register half",
        exact_doorbells
    ),
    value!(
        "lag" = "2",
        true,
        "Bond so many ports; connections that name none of them are refused",
        |to, text| {
            to.lag_ports = text.parse().ok().filter(|ports| (2..=LAG_PORTS).contains(ports))?;
            Some(())
        },
        |from| (from.lag_ports > 0).then(|| from.lag_ports.to_string())
    ),
    switch!(
        "no-lag-dct",
        false,
        "Refuse targets of DC on bonded ports, as firmware whose lag_dct is 0",
        no_lag_dct
    ),
    value!(
        "log-dc-reads" = "2",
        true,
        "log2 of the reads and atomics that an initiator of DC may have outstanding",
        |to, text| {
            let most = limits::LOG_RESPONDER_RESOURCES;
            to.log_dc_reads = text.parse().ok().filter(|&log| log <= most)?;
            Some(())
        },
        |from| {
            let log = from.log_dc_reads;
            (log != limits::LOG_RESPONDER_RESOURCES).then(|| log.to_string())
        }
    ),
    switch!(
        "dc-atomics-of-8",
        true,
        "Refuse targets of DC that accept masked atomics of 4 bytes",
        dc_atomics_of_8
    ),
    value!(
        "ece" = "10000001",
        true,
        "Enhancements of connections (ECE) that the device supports, in hexadecimal; 0 for none",
        |to, text| {
            let bits = Enhancements::from_bits(u32::from_str_radix(text, 16).ok()?);
            to.enhancements = Some(bits).filter(|bits| !bits.is_none() || bits.bits() == 0)?;
            Some(())
        },
        |from| {
            let enhancements = from.enhancements;
            (enhancements != ENHANCEMENTS).then(|| format!("{:x}", enhancements.bits()))
        }
    ),
    switch!(
        "page-faults",
        true,
        "Report page faults by events; work waits until the kernel has paged the memory in",
        page_faults
    ),
    switch!(
        "odp-v1",
        true,
        "Resume page faults only of queues that verbs create, as where they name WQEs",
        faults_by_wqe
    ),
    switch!(
        "kernel-strict",
        true,
        "Do no more for DEVX than Linux: large pages, no WQE page faults, no events of limits",
        kernel_strict
    ),
    value!(
        "ah-delay" = "2",
        true,
        "Milliseconds that the kernel searches for the next hop of a RoCE address",
        |to, text| {
            to.address_delay = Duration::from_millis(text.parse::<u16>().ok()?.into());
            Some(())
        },
        |from| {
            let delay = from.address_delay;
            (!delay.is_zero()).then(|| delay.as_millis().to_string())
        }
    ),
    switch!(
        "late-reads",
        true,
        "Let reads return what later writes and sends change, unless there is a fence between",
        late_reads
    ),
    value!(
        "log-tags" = "7",
        true,
        "log2 of the entries of a tag matching list, of which one is not used; 0 for no tag matching",
        |to, text| {
            to.log_tags = text.parse().ok().filter(|&log| log <= limits::LOG_TAGS)?;
            Some(())
        },
        |from| (from.log_tags != limits::LOG_TAGS).then(|| from.log_tags.to_string())
    ),
    switch!(
        "no-wc",
        false,
        "Refuse UAR pages for BlueFlame, as where the CPU cannot combine stores to them",
        no_write_combining
    ),
    switch!(
        "no-devx-qps",
        false,
        "Refuse queue pairs that programs create by DEVX, with LIMITS_EXCEEDED",
        no_devx_queue_pairs
    ),
    switch!(
        "ignore-cs-res",
        true,
        "Write small messages to buffers, also where a queue asks for them in completions (cs_res)",
        ignores_cs_res
    ),
    switch!(
        "late-flush",
        true,
        "Flush a queue pair that a command moves to error after the command has returned",
        late_flush
    ),
    value!(
        "refuse" = "rmp:dct:dci:xrc:ud:xrq",
        false,
        "Refuse objects of these families that programs create by DEVX, or on soft0",
        |to, text| {
            to.refuse = text.parse().ok()?;
            Some(())
        },
        |from| (!from.refuse.is_empty()).then(|| from.refuse.to_string())
    ),
    value!(
        "deaf" = "rmp:dct:dci:xrc:ud:xrq",
        false,
        "Accept objects of these families as for 'refuse', but drop all packets to them",
        |to, text| {
            to.deaf = text.parse().ok()?;
            Some(())
        },
        |from| (!from.deaf.is_empty()).then(|| from.deaf.to_string())
    ),
    value!(
        "unplug-after" = "100",
        false,
        "Remove the device after this many completions: commands fail with ENODEV",
        |to, text| {
            to.unplug_after = text.parse().ok()?;
            Some(())
        },
        |from| (from.unplug_after > 0).then(|| from.unplug_after.to_string())
    ),
];

/// The bit of a partition key that full members set; without the others a key is invalid.
const LIMITED: u16 = 1 << 15;

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for requirement in REQUIREMENTS {
            let Some(value) = (requirement.get)(self) else { continue };
            write!(f, "{separator}{}", requirement.name)?;
            if !value.is_empty() {
                f.write_char('=')?;
                f.write_str(&value)?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for Requirements {
    type Err = RequirementsError;

    fn from_str(text: &str) -> Result<Self, RequirementsError> {
        let mut requirements = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let mut set = |requirement: &Requirement, value| {
                let wrong = || RequirementsError::Value { name: name.to_owned() };
                (requirement.set)(&mut requirements, value).ok_or_else(wrong)
            };
            if part == "all" {
                REQUIREMENTS
                    .iter()
                    .filter(|requirement| requirement.in_all)
                    .try_for_each(|requirement| set(requirement, requirement.example))?;
                continue;
            }
            let known = REQUIREMENTS.iter().find(|requirement| requirement.name == name);
            let known = known.ok_or_else(|| RequirementsError::Name { name: name.to_owned() })?;
            set(known, value)?;
        }
        Ok(requirements)
    }
}

/// A text does not describe requirements.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequirementsError {
    /// A requirement does not exist.
    #[error("there is no requirement '{name}'")]
    Name {
        /// Its name.
        name: String,
    },
    /// A value is missing, superfluous, or out of range.
    #[error("the value of '{name}' is missing, not expected, or out of range")]
    Value {
        /// Name of the requirement.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_both_ways() {
        let every: Vec<_> = REQUIREMENTS.iter().map(Requirement::text).collect();
        for text in ["mtu=1500", "mtu=4200,ece=0,no-wc", &every.join(",")] {
            assert_eq!(text.parse::<Requirements>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(Requirements::default()));
        let name = "mut=1".parse::<Requirements>().unwrap_err();
        assert_eq!(name, RequirementsError::Name { name: "mut".to_owned() });
        for text in [
            "mtu",
            "mtu=300",
            "mtu=65536",
            "udp-ports=5",
            "udp-ports=6-5",
            "iommu=1",
            "pkeys=",
            "pkeys=8000",
            "pkeys=1:2:3:4:5",
            "ece=1",
            "ece=0x10000000",
            "log-tags=13",
            "refuse=rmp:dc",
            "deaf=",
        ] {
            let name = text.split('=').next().unwrap_or("").to_owned();
            let error = text.parse::<Requirements>().unwrap_err();
            assert_eq!(error, RequirementsError::Value { name }, "{text}");
        }
    }

    #[test]
    fn all_stands_for_those_that_a_driver_can_meet() {
        let all: Requirements = "all,mtu=2200,no-wc".parse().unwrap();
        assert!(all.iommu && all.relaxed_keys && all.exact_doorbells && all.no_write_combining);
        assert_eq!((all.mtu, all.unplug_after, all.partitions()), (2200, 0, 2));
        assert_eq!((all.partition_key(1), all.partition_key(2)), (Some(0x8001), None));
    }

    #[test]
    fn path_mtus_of_ports() {
        for (mtu, bytes) in [(1500, 1024), (2200, 2048), (4200, 4096), (9000, 4096), (352, 256)] {
            let requirements = Requirements { mtu, ..Requirements::default() };
            assert_eq!(requirements.path_mtu().bytes(), bytes);
        }
    }
}
