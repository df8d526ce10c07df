//! A job whose ranks share a directory, for example on a network file system.
//!
//! | file | meaning |
//! |---|---|
//! | `rank.R` | rank R of this run has started |
//! | `R.KEY` | a value; written under another name first, and renamed when it is whole |
//! | `fence.N.R` | rank R has reached fence N |

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Bootstrap, Error, MAX_VALUE, Runtime, check, check_key, check_rank};

/// The first wait for a file; each later one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// The longest wait for a file.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// A rank of a job whose ranks share a directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    rank: u32,
    size: u32,
    fences: u64,
    put: BTreeSet<String>,
    failed: Option<String>,
}

fn failed(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { runtime: Runtime::Directory, operation, source }
}

impl Directory {
    /// Joins the job in the directory `path`, which is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`] if the directory is that of an earlier run, [`Error::NoSuchRank`], or the
    /// directory cannot be written to.
    pub fn open(path: &Path, rank: u32, size: u32) -> Result<Self, Error> {
        check_rank(rank, size)?;
        fs::create_dir_all(path).map_err(failed("creating the directory"))?;
        let claim = path.join(format!("rank.{rank}"));
        match OpenOptions::new().write(true).create_new(true).open(&claim) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Error::Refused {
                    runtime: Runtime::Directory,
                    operation: "joining the job",
                    reason: format!(
                        "{} exists: rank {rank} runs already, or the directory is of an earlier run; \
                         use an empty one for each run",
                        claim.display()
                    ),
                });
            }
            Err(error) => return Err(failed("joining the job")(error)),
        }
        let path = path.to_owned();
        Ok(Self { path, rank, size, fences: 0, put: BTreeSet::new(), failed: None })
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => {
                Err(Error::Unusable { runtime: Runtime::Directory, reason: reason.clone() })
            }
        }
    }

    /// Writes a file that other ranks see either not at all or whole.
    fn publish(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let unfinished = self.path.join(format!("unfinished.{}.{name}", self.rank));
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&unfinished, self.path.join(name))
    }
}

impl Bootstrap for Directory {
    fn runtime(&self) -> Runtime {
        Runtime::Directory
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn node_peers(&self) -> Option<&[u32]> {
        None
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        check(key, value)?;
        self.check_usable()?;
        if !self.put.insert(key.to_owned()) {
            return Err(Error::KeyTaken { key: key.to_owned() });
        }
        self.publish(&format!("{}.{key}", self.rank), value).map_err(failed("writing a value"))
    }

    fn fence(&mut self, timeout: Duration) -> Result<(), Error> {
        self.check_usable()?;
        let fence = self.fences;
        self.fences += 1;
        self.publish(&format!("fence.{fence}.{}", self.rank), &[])
            .map_err(failed("reaching a fence"))?;
        let start = Instant::now();
        let mut wait = FIRST_WAIT;
        let mut missing: Vec<u32> = (0..self.size).collect();
        loop {
            missing.retain(|rank| !self.path.join(format!("fence.{fence}.{rank}")).exists());
            if missing.is_empty() {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                let error = Error::TimedOut {
                    runtime: Runtime::Directory,
                    operation: "a fence",
                    waited: timeout,
                    missing: format!(": {} is missing", ranks(&missing)),
                };
                self.failed = Some(error.to_string());
                return Err(error);
            }
            thread::sleep(wait.min(timeout.saturating_sub(start.elapsed())));
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error> {
        check_key(key)?;
        check_rank(rank, self.size)?;
        let file = match File::open(self.path.join(format!("{rank}.{key}"))) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NotFound { rank, key: key.to_owned() });
            }
            other => other.map_err(failed("reading a value"))?,
        };
        let mut value = Vec::new();
        file.take(MAX_VALUE as u64 + 1)
            .read_to_end(&mut value)
            .map_err(failed("reading a value"))?;
        if value.len() > MAX_VALUE {
            return Err(Error::ValueTooLong { key: key.to_owned(), length: value.len() });
        }
        Ok(value)
    }

    fn abort(&mut self, _: i32, reason: &str) {
        self.failed = Some(format!("this rank aborted the job: {reason}"));
    }
}

/// "rank 3", or "ranks 3, 5 and 2 more".
pub(crate) fn ranks(missing: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = missing.iter().take(SHOWN).map(u32::to_string).collect();
    match (missing.len(), missing.len().saturating_sub(SHOWN)) {
        (1, _) => format!("rank {}", shown[0]),
        (_, 0) => format!("one of ranks {}", shown.join(", ")),
        (_, more) => format!("one of ranks {} and {more} more", shown.join(", ")),
    }
}
