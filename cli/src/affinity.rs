//! The CPUs on which measuring threads run.
//!
//! Two ends that poll for each other's messages on one CPU measure its scheduler: a ping-pong over
//! shared memory takes 13 us instead of 0.2 us. So the ends of a pair run on different CPUs.

use crate::args::CpuList;
use crate::error::{Error, local};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// The CPUs of the two ends of a pair on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) this: usize,
    pub(crate) peer: usize,
}

impl Ends {
    /// Selects CPUs for the ends: two cores of one package if there are such, and one CPU for both
    /// only if there is no other. A list of the user takes the place of the CPUs of the process.
    pub(crate) fn choose(list: Option<&CpuList>) -> Result<Self, Error> {
        let cpus = match list {
            Some(CpuList(cpus)) => cpus.clone(),
            None => allowed()?,
        };
        Self::among(&cpus, &core)
            .ok_or_else(|| Error::Local("the kernel allows this process no CPU".into()))
    }

    fn among(cpus: &[usize], core: &dyn Fn(usize) -> Core) -> Option<Self> {
        let this = *cpus.first()?;
        let here = core(this);
        let distance = |cpu: &usize| {
            let there = core(*cpu);
            (there == here, there.package != here.package)
        };
        let others = cpus.iter().filter(|cpu| **cpu != this);
        let peer = others.min_by_key(|cpu| distance(cpu)).copied().unwrap_or(this);
        Some(Self { this, peer })
    }

    pub(crate) fn share_a_cpu(self) -> bool {
        self.this == self.peer
    }
}

/// The position of a CPU in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Core {
    package: Option<u32>,
    core: Option<u32>,
}

fn core(cpu: usize) -> Core {
    let number = |name: &str| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    Core { package: number("physical_package_id"), core: number("core_id") }
}

/// The CPUs on which the kernel lets this thread run, in ascending order.
fn allowed() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None).map_err(|error| local("cannot list the CPUs", &error))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Restricts this process and its children to these CPUs.
pub(crate) fn restrict(list: &CpuList) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for &cpu in &list.0 {
        set.set(cpu);
    }
    let allowed = allowed()?;
    let missing: Vec<usize> = list.0.iter().copied().filter(|cpu| !allowed.contains(cpu)).collect();
    if !missing.is_empty() {
        return Err(Error::Usage(format!(
            "cannot run on CPU {}: this process may run on {}",
            listed(&missing),
            listed(&allowed)
        )));
    }
    sched_setaffinity(None, &set)
        .map_err(|error| local(format!("cannot run on CPU {}", listed(&list.0)), &error))
}

/// Formats ascending numbers as a list with ranges: `0-3,8`.
fn listed(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|cpu, next| cpu + 1 == *next);
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(ToString::to_string).collect(),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

/// Keeps the calling thread on one CPU while it lives.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Moves the calling thread to the CPU. Threads that it starts inherit the CPU, so devices with
    /// threads are opened before.
    pub(crate) fn on(cpu: usize) -> Result<Self, Error> {
        let what = || format!("cannot run on CPU {cpu}");
        let before = sched_getaffinity(None).map_err(|error| local(what(), &error))?;
        if cpu >= CpuSet::MAX_CPU {
            return Err(Error::Local(format!("{}: there is none of this number", what())));
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).map_err(|error| local(what(), &error))?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The former CPUs may be gone; the thread then stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_run_on_two_cores_if_there_are_two() {
        // CPUs 0 and 1 share a core; CPU 4 and later are in another package.
        let core =
            |cpu: usize| Core { package: Some(u32::from(cpu >= 4)), core: Some(cpu as u32 / 2) };
        let among = |cpus: &[usize]| Ends::among(cpus, &core).map(|ends| (ends.this, ends.peer));
        assert_eq!(among(&[0, 1, 2, 3, 4]), Some((0, 2)));
        assert_eq!(among(&[0, 1, 4]), Some((0, 4)));
        assert_eq!(among(&[0, 1]), Some((0, 1)));
        assert_eq!(among(&[3, 3]), Some((3, 3)));
        assert_eq!(among(&[]), None);
    }

    #[test]
    fn a_pinned_thread_returns_to_its_cpus() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let pinned = Pinned::on(last).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
        drop(pinned);
        assert_eq!(allowed().unwrap(), before);
        assert!(Pinned::on(usize::MAX).is_err());
    }

    #[test]
    fn lists_have_ranges() {
        assert_eq!(listed(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
        assert_eq!(listed(&[]), "");
    }
}
