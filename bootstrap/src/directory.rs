//! A job whose ranks share a directory, for example on a network file system.
//!
//! | file | meaning |
//! |---|---|
//! | `rank.R` | rank R of this run has started |
//! | `R.KEY` | a value; written under another name first, and renamed when it is whole |
//! | `fence.N.R` | rank R has reached fence N |
//!
//! Their names can be predicted, and values can be secrets. So the directory must belong to the user
//! of this process, and other users may not write to it. It is opened once, and files are named relative
//! to its descriptor: another user can neither replace it nor put anything in their place.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::{Bootstrap, Error, MAX_VALUE, Runtime, check, check_key, check_rank};

/// The first wait for a file; each later one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// The longest wait for a file.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// A rank of a job whose ranks share a directory.
#[derive(Debug)]
pub struct Directory {
    folder: OwnedFd,
    rank: u32,
    size: u32,
    fences: u64,
    put: BTreeSet<String>,
    failed: Option<String>,
}

fn failed<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> Error {
    move |source| Error::Io { runtime: Runtime::Directory, operation, source: source.into() }
}

fn refused(operation: &'static str, reason: String) -> Error {
    Error::Refused { runtime: Runtime::Directory, operation, reason }
}

/// The bits of `mode` that allow other users to write.
const OTHERS_WRITE: u32 = 0o022;

/// Opens the directory `path`, which is made if it does not exist, and checks that it is this user's.
fn open_own(path: &Path) -> Result<OwnedFd, Error> {
    const OPERATION: &str = "opening the directory";
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("creating the directory"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return Err(refused(OPERATION, format!("{shown} is a symbolic link")));
        }
        opened => opened.map_err(failed(OPERATION))?,
    };
    let found = rustix::fs::fstat(&directory).map_err(failed(OPERATION))?;
    let (owner, user) = (found.st_uid, rustix::process::geteuid().as_raw());
    if owner != user {
        let reason =
            format!("{shown} belongs to user {owner}, and this process runs as user {user}");
        return Err(refused(OPERATION, reason));
    }
    let mode = found.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        let reason = format!(
            "{shown} has mode {mode:03o}, so that others may write to it: chmod go-w {shown}"
        );
        return Err(refused(OPERATION, reason));
    }
    Ok(directory)
}

/// Creates a file that only this user can read. Fails if the name exists, whatever it is.
fn create(folder: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(folder, name, flags, mode).map(File::from)
}

impl Directory {
    /// Joins the job in the directory `path`, which is made if it does not exist. All ranks run as
    /// the user that owns the directory, and others may not write to it.
    ///
    /// # Errors
    /// [`Error::Refused`] if the directory is that of an earlier run or another user, if others may
    /// write to it, or if it is a symbolic link; [`Error::NoSuchRank`]; or the directory cannot be
    /// written to.
    pub fn open(path: &Path, rank: u32, size: u32) -> Result<Self, Error> {
        const OPERATION: &str = "joining the job";
        check_rank(rank, size)?;
        let folder = open_own(path)?;
        let claim = format!("rank.{rank}");
        match create(&folder, &claim) {
            Ok(_) => {}
            Err(rustix::io::Errno::EXIST) => {
                let claim = path.join(claim);
                return Err(refused(
                    OPERATION,
                    format!(
                        "{} exists: rank {rank} runs already, or the directory is of an earlier run; \
                         use an empty one for each run",
                        claim.display()
                    ),
                ));
            }
            Err(error) => return Err(failed(OPERATION)(error)),
        }
        Ok(Self { folder, rank, size, fences: 0, put: BTreeSet::new(), failed: None })
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
    fn publish(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = format!("unfinished.{}.{name}", self.rank);
        let mut file = create(&self.folder, &unfinished)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        Ok(rustix::fs::renameat(&self.folder, unfinished, &self.folder, name)?)
    }

    fn exists(&self, name: &str) -> bool {
        rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Opens a value that a rank has published. Never blocks, whatever the name refers to.
    fn open_value(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || found.st_uid != rustix::process::geteuid().as_raw() {
            let reason = format!("{name} is not a regular file of this user");
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
        Ok(file.into())
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
            missing.retain(|rank| !self.exists(&format!("fence.{fence}.{rank}")));
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
        let file = match self.open_value(&format!("{rank}.{key}")) {
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
