//! `hello` and `perf` as the two ranks of a job: rank 0 serves, and rank 1 is its client.

use crate::error::{Error, local};
use crate::link::Link;
use crate::peer::{Role, Work};
use crate::remote::{Door, part};
use crate::transports;
use barewire::address::network;
use barewire_bootstrap::{Bootstrap, Runtime, all_gather, detect, runtime};
use barewire_tcp::interfaces::source_of;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Time limit for the other rank to start.
const START: Duration = Duration::from_mins(1);
/// The key under which rank 0 publishes its port, and its addresses and name.
const SERVER: &str = "server";
/// The key under which each rank publishes its network namespace.
const NETWORK: &str = "network";

/// This process is a rank of a job that a launcher started, according to its environment.
pub(crate) fn launched() -> bool {
    let environment = |name: &str| std::env::var(name).ok();
    runtime(&environment).is_ok_and(|(runtime, _)| runtime != Runtime::Single)
}

/// The part of this process in a job of two ranks.
pub(crate) enum Rank {
    Server(Box<dyn Bootstrap>),
    Client(Box<dyn Bootstrap>),
}

impl Rank {
    /// `None` if no launcher started this process, or it is the only rank.
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        if !launched() {
            return Ok(None);
        }
        let job = detect().map_err(|error| local("cannot join the job", &error))?;
        match (job.rank(), job.size()) {
            (_, 1) => Ok(None),
            (0, 2) => Ok(Some(Self::Server(job))),
            (_, 2) => Ok(Some(Self::Client(job))),
            (_, size) => Err(Error::Usage(format!(
                "the job has {size} ranks, and this needs 2, a server and a client: start it with -n 2"
            ))),
        }
    }
}

/// Serves rank 1. With a key, on addresses that other hosts reach.
pub(crate) fn serve<T>(
    mut job: Box<dyn Bootstrap>,
    work: Work,
    follow: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let failed = |error| local("cannot reach rank 1", &error);
    let same_network = share_network(&mut *job).map_err(failed)?;
    let (addresses, unused) = if same_network { (Vec::new(), String::new()) } else { addresses() };
    let any = match addresses.first() {
        Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let mut door = match transports::key()? {
        Some(_) if !same_network => Door::open(Some(any.into()), 0)?,
        _ => Door::open(None, 0)?,
    };
    let mut hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    hosts.push(if same_network { "localhost".to_owned() } else { host_name() });
    job.put(SERVER, format!("{} {}", door.port(), hosts.join(",")).as_bytes()).map_err(failed)?;
    job.fence(START).map_err(failed)?;
    let absent = || {
        let seconds = START.as_secs();
        Error::Local(format!(
            "rank 1 did not connect to any of {} within {seconds} s: it may have ended, or none of \
             these leads here{unused}",
            hosts.join(", ")
        ))
    };
    let channel = door.accept_within(START)?.ok_or_else(absent)?;
    let mut link = Link::open(channel, Role::Server, work, Some("rank 1".into()), None)?;
    let result = follow(&mut link);
    part(link, result)
}

/// Returns the addresses and the name of rank 0, separated by commas, and its port.
pub(crate) fn server(mut job: Box<dyn Bootstrap>) -> Result<(String, u16), Error> {
    let failed = |error| local("cannot reach rank 0", &error);
    let same_network = share_network(&mut *job).map_err(failed)?;
    job.fence(START).map_err(failed)?;
    let bytes = job.get(0, SERVER).map_err(failed)?;
    let place = String::from_utf8_lossy(&bytes).into_owned();
    let parsed = place.split_once(' ').and_then(|(port, hosts)| Some((hosts, port.parse().ok()?)));
    let Some((hosts, port)) = parsed else {
        return Err(Error::Local(format!("rank 0 published '{place}', which is no port and host")));
    };
    // An address of rank 0 that this host has, too, leads to this host.
    let leads_here = |host: &str| {
        let address: Option<IpAddr> = host.parse().ok();
        address.is_some_and(|address| {
            source_of(address.into()).is_ok_and(|source| source.ip() == address)
        })
    };
    let mut hosts: Vec<&str> = hosts.split(',').collect();
    hosts.retain(|host| same_network || !leads_here(host));
    Ok((hosts.join(","), port))
}

/// Whether both ranks are in one network namespace, where `localhost` leads from one to the other.
fn share_network(job: &mut dyn Bootstrap) -> Result<bool, barewire_bootstrap::Error> {
    let networks = all_gather(job, NETWORK, &network(), START)?;
    Ok(networks.iter().all(|other| *other == networks[0]))
}

/// The addresses of this host that others may reach, IPv4 first; and the interfaces that are not
/// used, with the reasons.
fn addresses() -> (Vec<IpAddr>, String) {
    let (mut addresses, mut unused) = (Vec::new(), String::new());
    for interface in barewire::transport::tcp::devices().unwrap_or_default() {
        match interface.reason {
            // Writing to a string does not fail.
            Some(reason) => drop(write!(unused, "\n{}: {reason}", interface.name)),
            // Link-local addresses are of use only if both hosts have no others.
            None => addresses.extend(interface.addresses.into_iter().filter_map(|address| {
                (!address.is_loopback()).then_some((address.is_link_local(), address.ip()))
            })),
        }
    }
    addresses.sort_by_key(|(link_local, ip)| (*link_local, ip.is_ipv6()));
    let has_others = addresses.first().is_some_and(|(link_local, _)| !link_local);
    addresses.retain(|(link_local, _)| !has_others || !link_local);
    (addresses.into_iter().map(|(_, ip)| ip).collect(), unused)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
