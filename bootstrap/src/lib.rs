//! How the processes of a parallel program find each other: rank, size and an exchange of bytes.
//!
//! A launcher starts the processes of a job and gives each a rank. Before they can connect, they
//! have to exchange addresses. [`detect`] finds out which launcher started this process, and
//! returns a [`Bootstrap`] with four operations: [`put`](Bootstrap::put) publishes a value,
//! [`fence`](Bootstrap::fence) waits for all ranks, and [`get`](Bootstrap::get) reads what another
//! rank published before the fence. This crate transfers bytes and knows nothing of transports.
//!
//! | [`Runtime`] | launchers | chosen if |
//! |---|---|---|
//! | [`Pmix`](Runtime::Pmix) | Open MPI's `mpirun`, `srun --mpi=pmix` | `PMIX_NAMESPACE` is set |
//! | [`Pmi1`](Runtime::Pmi1) | `mpiexec.hydra` (MPICH), `srun --mpi=pmi2` | `PMI_FD` is set |
//! | [`Directory`](Runtime::Directory) | tests, hosts with a shared file system | `BAREWIRE_BOOTSTRAP_DIR` is set; needs `RANK` and `WORLD_SIZE` |
//! | [`Tcp`](Runtime::Tcp) | `barewire run`, torchrun, a loop of ssh | `RANK`, `WORLD_SIZE` or `MASTER_ADDR` is set; needs them and `MASTER_PORT` |
//! | [`Single`](Runtime::Single) | none | otherwise |
//!
//! A launcher may pass rank 0 a socket that listens at `MASTER_ADDR` and `MASTER_PORT`, so that no
//! other process can take the port meanwhile. [`LISTENER_VARIABLE`] names its descriptor. Under
//! torchrun, whose store has `MASTER_PORT` (`TORCHELASTIC_USE_AGENT_STORE=True`), rank 0 listens at
//! the next port; `BAREWIRE_BOOTSTRAP_PORT` names another.
//!
//! Variables that a runtime needs and that are not set are an error, which names all of them.
//! Variables of Slurm and Open MPI that none of the above understands are none, since an
//! interactive allocation sets them, too; if they say that this process is one of several,
//! [`detect`] writes a line to standard error.
//!
//! `BAREWIRE_BOOTSTRAP` names one of them (`pmix`, `pmi1`, `tcp`, `directory`, `single`) if more
//! than one would do.
//!
//! ```
//! use barewire_bootstrap::{all_gather, detect};
//! use std::time::Duration;
//!
//! let mut job = detect()?;
//! let address = format!("address of rank {}", job.rank());
//! let addresses = all_gather(&mut *job, "address", address.as_bytes(), Duration::from_secs(30))?;
//! assert_eq!(addresses.len(), job.size() as usize);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod detect;
mod directory;
mod error;
mod inherited;
mod parts;
mod pmi1;
#[cfg(feature = "pmix")]
mod pmix;
mod single;
mod tcp;

use std::fmt;
use std::time::Duration;

pub use detect::{
    Environment, LISTENER_VARIABLE, PORT_VARIABLE, STORE_VARIABLE, detect, detect_in, runtime,
};
pub use directory::Directory;
pub use error::{DetectError, Error, MissingVariable};
pub use pmi1::Pmi1;
#[cfg(feature = "pmix")]
pub use pmix::Pmix;
pub use single::Single;
/// For tests in which a process with the key breaks the protocol.
#[doc(hidden)]
pub use tcp::CLAIM;
pub use tcp::{Tcp, TcpConfig};

/// Bytes of the longest value.
pub const MAX_VALUE: usize = 1 << 20;
/// Ranks of the largest job.
pub const MAX_SIZE: u32 = 1 << 20;
/// Characters of the longest key.
pub const MAX_KEY: usize = 32;

/// What connects the processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Runtime {
    /// A PMIx server, through `libpmix.so.2`.
    Pmix,
    /// A PMI-1 server, over the socket that `PMI_FD` names.
    Pmi1,
    /// A connection of each rank to rank 0.
    Tcp,
    /// Files in a directory.
    Directory,
    /// A job of one process.
    Single,
}

impl Runtime {
    /// The name that `BAREWIRE_BOOTSTRAP` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pmix => "pmix",
            Self::Pmi1 => "pmi1",
            Self::Tcp => "tcp",
            Self::Directory => "directory",
            Self::Single => "single",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One process of a job.
///
/// After [`Error::Unusable`], [`Error::TimedOut`] or an error of the connection, every later call
/// that needs other ranks returns [`Error::Unusable`]: a rank cannot tell how far the others are.
pub trait Bootstrap: fmt::Debug + Send {
    /// What connects the job.
    fn runtime(&self) -> Runtime;

    /// The number of this process, from 0 to [`size`](Self::size) - 1.
    fn rank(&self) -> u32;

    /// How many processes the job has.
    fn size(&self) -> u32;

    /// The ranks on this host in ascending order, this one included. `None` if the launcher does
    /// not tell. It is a hint: containers may separate processes of one host.
    fn node_peers(&self) -> Option<&[u32]>;

    /// Publishes a value. Other ranks can read it after the next [`fence`](Self::fence).
    ///
    /// A key has 1 to [`MAX_KEY`] characters: ASCII letters, digits, `_` and `-`. A value has up to
    /// [`MAX_VALUE`] bytes. Each rank has keys of its own, and puts each once.
    ///
    /// # Errors
    /// [`Error::InvalidKey`], [`Error::KeyTaken`], [`Error::ValueTooLong`], or the runtime fails.
    /// [`Error::Refused`] by [`Runtime::Tcp`] if a rank publishes more than four of the longest
    /// values between two fences, or many small ones that need as much memory.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// Waits until every rank has called this as often as this one.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if a rank has not called it within `timeout`, or the runtime fails.
    fn fence(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Returns the value that `rank` published under `key` before the last fence.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::NotFound`], or the runtime fails.
    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error>;

    /// Asks the launcher to end the whole job with this exit code. Returns once the request is
    /// sent. The caller ends its own process.
    fn abort(&mut self, code: i32, reason: &str);
}

/// Publishes `value` under `key`, waits for all ranks, and returns the values of all ranks in
/// order.
///
/// # Errors
/// As [`Bootstrap::put`], [`Bootstrap::fence`] and [`Bootstrap::get`].
pub fn all_gather(
    job: &mut dyn Bootstrap,
    key: &str,
    value: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    job.put(key, value)?;
    job.fence(timeout)?;
    (0..job.size()).map(|rank| job.get(rank, key)).collect()
}

/// Checks what every runtime requires of a key and a value.
fn check(key: &str, value: &[u8]) -> Result<(), Error> {
    check_key(key)?;
    if value.len() > MAX_VALUE {
        return Err(Error::ValueTooLong { key: key.to_owned(), length: value.len() });
    }
    Ok(())
}

fn check_key(key: &str) -> Result<(), Error> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(is_valid) {
        return Err(Error::InvalidKey { key: key.chars().take(2 * MAX_KEY).collect() });
    }
    Ok(())
}

fn check_rank(rank: u32, size: u32) -> Result<(), Error> {
    if size > MAX_SIZE {
        return Err(Error::TooManyRanks { size });
    }
    if rank < size { Ok(()) } else { Err(Error::NoSuchRank { rank, size }) }
}
