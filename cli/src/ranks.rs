//! `hello` and `perf` as the two ranks of a job: rank 0 serves, and rank 1 is its client.

use crate::control::{Role, Work};
use crate::error::{Error, local};
use crate::link::Link;
use crate::remote::{Door, part};
use crate::transports;
use barewire_bootstrap::{Bootstrap, Runtime, detect, runtime};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Time limit for the other rank to start.
const START: Duration = Duration::from_mins(1);
/// The key under which rank 0 publishes host and port.
const SERVER: &str = "server";

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

/// Serves rank 1. With a key, on an address that other hosts reach.
pub(crate) fn serve<T>(
    mut job: Box<dyn Bootstrap>,
    work: Work,
    follow: impl FnOnce(&mut Link) -> Result<T, Error>,
) -> Result<T, Error> {
    let same_host = job.node_peers().is_some_and(|peers| peers.len() == 2);
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut door = match transports::key()? {
        Some(_) if !same_host => Door::open(Some(any), 0)?,
        _ => Door::open(None, 0)?,
    };
    let host = if same_host { "localhost".to_owned() } else { host_name() };
    let failed = |error| local("cannot reach rank 1", &error);
    job.put(SERVER, format!("{host}:{}", door.port()).as_bytes()).map_err(failed)?;
    job.fence(START).map_err(failed)?;
    let absent = || {
        let seconds = START.as_secs();
        Error::Local(format!("rank 1 did not connect within {seconds} s: it may have ended"))
    };
    let channel = door.accept_within(START)?.ok_or_else(absent)?;
    let mut link = Link::open(channel, Role::Server, work, Some("rank 1".into()), None)?;
    let result = follow(&mut link);
    part(link, result)
}

/// Returns host and port of rank 0.
pub(crate) fn server(mut job: Box<dyn Bootstrap>) -> Result<(String, u16), Error> {
    let failed = |error| local("cannot reach rank 0", &error);
    job.fence(START).map_err(failed)?;
    let bytes = job.get(0, SERVER).map_err(failed)?;
    let place = String::from_utf8_lossy(&bytes).into_owned();
    let parsed = place.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parsed else {
        return Err(Error::Local(format!("rank 0 published '{place}', which is no host and port")));
    };
    // Without a key only this host can be reached, whatever its name.
    let host = if host == host_name() { "localhost" } else { host };
    Ok((host.to_owned(), port))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
