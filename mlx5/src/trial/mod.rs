//! Tests of the families of objects, through the device to itself.
//!
//! A device can accept the objects of one backend or family, and refuse or mistreat those of
//! another, so opening it and creating the objects is not enough to choose. Each test runs before
//! the first use of its family: once for each port, GID, partition and backend of a process, or for
//! each of a context of [`Context::open_tested`]. Only what the device has done is kept: a test
//! that something refused, by a limit for instance, runs again with the next use.

mod bench;
mod families;

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use self::bench::Failure;
use crate::context::Context;
use crate::error::{Error, system};
use crate::values::{Capabilities, Port};

/// Objects that work together, and that a device may lack or mistreat independently of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Reliable connections with receive rings of their own.
    Reliable,
    /// Reliable connections that share a receive queue (RMP), with small messages in completions.
    SharedReceive,
    /// Tag matching (XRQ).
    Tags,
    /// Dynamic connections (DC).
    Dynamic,
    /// Extended reliable connections (XRC).
    Xrc,
    /// Unreliable datagrams.
    Datagrams,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 6] = [
        Self::Reliable,
        Self::SharedReceive,
        Self::Tags,
        Self::Dynamic,
        Self::Xrc,
        Self::Datagrams,
    ];

    /// What to use instead.
    pub fn fallback(self) -> &'static str {
        match self {
            Self::Reliable => {
                "use rc_verbs and ud_verbs, or verbs objects if it was tested by DEVX"
            }
            Self::SharedReceive => "endpoints have receive rings of their own",
            Self::Tags => "tags are matched in software",
            Self::Dynamic | Self::Xrc => "use rc_mlx5",
            Self::Datagrams => "use ud_verbs",
        }
    }

    /// Returns whether a device with these capabilities has the family.
    pub fn is_offered(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::Reliable | Self::SharedReceive | Self::Datagrams => true,
            Self::Tags => capabilities.log_max_tags > 0,
            Self::Dynamic => capabilities.dynamic_connections,
            Self::Xrc => capabilities.xrc,
        }
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Reliable => "testing reliable connections",
            Self::SharedReceive => "testing shared receive queues",
            Self::Tags => "testing tag matching",
            Self::Dynamic => "testing dynamic connections",
            Self::Xrc => "testing XRC",
            Self::Datagrams => "testing datagrams",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reliable => "RC",
            Self::SharedReceive => "RMP",
            Self::Tags => "XRQ",
            Self::Dynamic => "DC",
            Self::Xrc => "XRC",
            Self::Datagrams => "UD",
        })
    }
}

/// The results of the tests of a port with one backend, as far as they have run.
#[derive(Debug, Default)]
pub(crate) struct Trials([Mutex<BTreeMap<Entries, Result<(), String>>>; Family::ALL.len()]);

/// The indices in the port's tables of GIDs and of partitions.
type Entries = (u8, u16);

impl Trials {
    /// Returns the result of the test of `family` on `entries`, which `run` runs the first time.
    fn result(
        &self,
        family: Family,
        entries: Entries,
        run: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Error> {
        let known = &self.0[family as usize];
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let explain = |error: &dyn fmt::Display| {
            let reason = format!("{error}; {}", family.fallback());
            tracing::warn!(%family, reason, "a family of objects does not work");
            reason
        };
        let result = match known.get(&entries) {
            Some(result) => result.clone(),
            None => match run() {
                Ok(()) => known.entry(entries).insert_entry(Ok(())).get().clone(),
                Err(failure @ Failure::Wrong(_)) => {
                    let reason = Err(explain(&failure.into_error()));
                    known.entry(entries).insert_entry(reason).get().clone()
                }
                Err(Failure::Refused(error)) => Err(explain(&error)),
            },
        };
        result.map_err(|reason| system(family.operation(), reason))
    }
}

impl Context {
    /// Returns the result of the test of a family. The test runs at the first call, if the device
    /// has the family and the context was opened by [`setup::open`](crate::setup::open) or
    /// [`Self::open_tested`]. If the device does not have the family, creating its objects fails.
    ///
    /// # Errors
    /// Why the family does not work, and [what to use instead](Family::fallback).
    pub fn test(&self, family: Family) -> Result<(), Error> {
        self.test_on(family, self.port())
    }

    /// As [`Self::test`], with the GID of `port`, and with its partition unless the port is a
    /// limited member, which does not receive its own packets. If the port of the context is a
    /// limited member of its own partition, too, there is no test, and the family counts as
    /// working.
    ///
    /// # Errors
    /// As there.
    pub fn test_on(&self, family: Family, port: &Port) -> Result<(), Error> {
        let Port { partition_index, limited_member, .. } = *self.port();
        let port = if port.limited_member {
            Port { partition_index, limited_member, ..*port }
        } else {
            *port
        };
        let run = || {
            if port.limited_member {
                let reason = "the port is a limited member of its partitions, and does not receive \
                              its own packets";
                tracing::warn!(%family, reason, "a family of objects is not tested");
                return Ok(());
            }
            self.run_test(family, port)
        };
        match self.trials() {
            Some(trials) if family.is_offered(self.capabilities()) => {
                trials.result(family, (port.gid_index, port.partition_index), run)
            }
            _ => Ok(()),
        }
    }

    /// Tests a family: connects its objects to themselves, and transfers messages or writes. A
    /// software HCA must have a thread (not [`hca::Mode::Stepped`](../hca/enum.Mode.html)), since
    /// the test waits for it.
    ///
    /// # Errors
    /// Why it does not work.
    pub fn test_now(&self, family: Family) -> Result<(), Error> {
        self.run_test(family, *self.port()).map_err(Failure::into_error)
    }

    fn run_test(&self, family: Family, port: Port) -> Result<(), Failure> {
        let test = match family {
            Family::Reliable => families::reliable,
            Family::SharedReceive => families::shared_receive,
            Family::Tags => families::tags,
            Family::Dynamic => families::dynamic,
            Family::Xrc => families::xrc,
            Family::Datagrams => families::datagrams,
        };
        test(&mut bench::Bench::new(self, port)?)
    }
}
