//! Transfer of the file: reading, sending and checking what arrived.

use super::table::Outcome;
use crate::control::{Hex, Message, Step};
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use crate::units;
use barewire::{Completion, Memory, MemoryError};
use indicatif::{ProgressBar, ProgressStyle};
use ring::digest::{Context, SHA256};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{IsTerminal, Read, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// The active-message ids of pieces of the file and of the response to the last.
const PIECE: u8 = 1;
const RECEIVED: u8 = 2;
/// Every piece starts with its number.
const NUMBER: usize = size_of::<u64>();
/// Bytes to read, copy or hash between two checks of the peer.
const CHUNK: usize = 1 << 20;
/// Files of at least this size get a progress bar.
const LONG: u64 = 8 << 20;

/// The file to send.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    path: PathBuf,
    length: u64,
}

/// The file in registered memory, and its destination.
#[derive(Debug)]
pub(super) struct Sent {
    memory: Memory,
    length: usize,
    sha256: Vec<u8>,
    remote: Remote,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed =
            |error: &dyn std::error::Error| local(format!("cannot read {}", path.display()), error);
        let file = File::open(path).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if !metadata.is_file() {
            return Err(Error::Local(format!(
                "cannot send {}: it is not a regular file",
                path.display()
            )));
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Self { file, path, length: metadata.len() })
    }

    /// The path below the current directory, otherwise the whole path.
    pub(super) fn name(&self) -> String {
        let here = std::env::current_dir().and_then(|here| here.canonicalize());
        let below = here.ok().and_then(|here| self.path.strip_prefix(here).ok());
        below.unwrap_or(&self.path).display().to_string()
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Reads the file into registered memory, hashes it, and receives the destination from the
    /// peer.
    pub(super) fn load(&self, session: &mut Session<'_>) -> Result<Sent, Error> {
        const DURING: &str = "reading the file";
        let failed =
            |error: &dyn std::error::Error| local(format!("cannot read {}", self.name()), error);
        let length = usize::try_from(self.length).map_err(|error| failed(&error))?;
        let memory = session.allocate(length)?;
        let mut reader = &self.file;
        reader.rewind().map_err(|error| failed(&error))?;
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; CHUNK.min(length)];
        let mut offset = 0;
        while offset < length {
            let piece = &mut buffer[..CHUNK.min(length - offset)];
            reader.read_exact(piece).map_err(|error| failed(&error))?;
            hash.update(piece);
            memory.write(offset, piece).map_err(|error| failed(&error))?;
            offset += piece.len();
            session.wait.breathe(DURING)?;
        }
        let remote = session.exchange(&memory, length)?;
        Ok(Sent { memory, length, sha256: hash.finish().as_ref().to_vec(), remote })
    }
}

impl Sent {
    /// The result of a transfer, after the peer has reported the contents.
    fn outcome(
        &self,
        session: &mut Session<'_>,
        started: Instant,
        ended: Instant,
    ) -> Result<Outcome, Error> {
        let time = ended.duration_since(started);
        let bytes = self.length as u64;
        match session.wait.message("the check at the far side")? {
            Message::Arrived { bytes: arrived, sha256 } => Ok(Outcome {
                bytes,
                time,
                rate: units::rate(bytes, time),
                correct: arrived == bytes && sha256.0 == self.sha256,
            }),
            other => Err(session.wait.unexpected(&other, "arrived")),
        }
    }

    fn bar(&self, what: &'static str) -> Option<ProgressBar> {
        let length = self.length as u64;
        if length < LONG || !std::io::stderr().is_terminal() {
            return None;
        }
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}")
                .ok()?;
        Some(ProgressBar::new(length).with_style(style).with_message(what))
    }
}

/// Puts the whole file, in one operation if the limits allow it.
pub(super) fn put(session: &mut Session<'_>, sent: &Sent) -> Result<Outcome, Error> {
    const DURING: &str = "the RDMA write";
    let most = session.attributes().put.max_zcopy;
    let completion = Completion::counter();
    session.wait.show(sent.bar("RDMA write"));
    let started = Instant::now();
    let mut offset = 0;
    while offset < sent.length {
        let length = most.min(sent.length - offset);
        let slice = sent.memory.slice(offset, length).map_err(|error| local(DURING, &error))?;
        let (endpoint, remote) = (&session.endpoint, &sent.remote);
        let post = || {
            endpoint.put_zcopy(
                &[slice],
                remote.address + offset as u64,
                &remote.key,
                Some(&completion),
            )
        };
        let _ = session.wait.post(DURING, post)?;
        offset += length;
        session.wait.at(offset as u64);
    }
    session.wait.complete(DURING, &completion, sent.length as u64)?;
    session.flush(DURING, sent.length as u64)?;
    let ended = Instant::now();
    session.wait.show(None);
    session.wait.send(&Message::Demo(Step::PutDone), DURING)?;
    sent.outcome(session, started, ended)
}

/// Sends the whole file as active messages, with as many in flight as the queue accepts. The time
/// ends when the peer has reported all of them.
pub(super) fn send_messages(session: &mut Session<'_>, sent: &Sent) -> Result<Outcome, Error> {
    const DURING: &str = "the active messages";
    let segment = session.attributes().am.max_bcopy.saturating_sub(NUMBER);
    if segment == 0 {
        return Err(Error::Local("this transport has no room for numbered active messages".into()));
    }
    // An empty file is sent as one empty message.
    let messages = sent.length.div_ceil(segment).max(1) as u64;
    let received = Rc::new(Cell::new(false));
    let flag = Rc::clone(&received);
    session
        .interface
        .set_handler(RECEIVED, move |_| flag.set(true))
        .map_err(|error| local(DURING, &error))?;
    let step = Step::Am { messages, segment: segment as u64 };
    session.wait.send(&Message::Demo(step), DURING)?;
    session.wait.barrier(DURING)?;

    session.wait.show(sent.bar("active messages"));
    let started = Instant::now();
    for number in 0..messages {
        let offset = number as usize * segment;
        let length = segment.min(sent.length - offset);
        let endpoint = &session.endpoint;
        let pack = |buffer: &mut [u8]| {
            let (head, body) = buffer.split_at_mut(NUMBER);
            head.copy_from_slice(&number.to_le_bytes());
            // The piece lies in the region; otherwise the peer would report missing bytes.
            sent.memory.read(offset, &mut body[..length]).map_or(NUMBER, |()| NUMBER + length)
        };
        session.wait.post(DURING, || endpoint.am_bcopy(PIECE, pack))?;
        session.wait.at((offset + length) as u64);
    }
    session.wait.until(DURING, || Ok(received.get().then_some(())))?;
    let ended = Instant::now();
    session.wait.show(None);
    sent.outcome(session, started, ended)
}

/// The destination of the file.
#[derive(Debug)]
pub(super) struct Arrival {
    memory: Rc<Memory>,
    length: usize,
}

impl Arrival {
    pub(super) fn new(session: &mut Session<'_>, length: usize) -> Result<Self, Error> {
        let memory = session.allocate(length)?;
        session.exchange(&memory, 0)?;
        Ok(Self { memory: Rc::new(memory), length })
    }

    /// Reports the contents of the region to the peer, and clears it for the next test.
    pub(super) fn report(&self, session: &mut Session<'_>) -> Result<(), Error> {
        const DURING: &str = "the check";
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; CHUNK.min(self.length)];
        let zeros = vec![0; buffer.len()];
        let mut offset = 0;
        while offset < self.length {
            let length = CHUNK.min(self.length - offset);
            let piece = &mut buffer[..length];
            let moved = self.memory.read(offset, piece);
            moved
                .and_then(|()| self.memory.write(offset, &zeros[..length]))
                .map_err(|error| local(DURING, &error))?;
            hash.update(piece);
            offset += length;
            session.wait.breathe(DURING)?;
        }
        let sha256 = Hex(hash.finish().as_ref().to_vec());
        session.wait.send(&Message::Arrived { bytes: self.length as u64, sha256 }, DURING)
    }

    /// Receives the file as numbered messages in order, and responds after the last.
    pub(super) fn receive_messages(
        &self,
        session: &mut Session<'_>,
        messages: u64,
        segment: u64,
    ) -> Result<(), Error> {
        const DURING: &str = "the active messages";
        let pieces = Rc::new(Pieces {
            memory: Rc::clone(&self.memory),
            next: Cell::new(0),
            fault: RefCell::default(),
        });
        let handler = Rc::clone(&pieces);
        session
            .interface
            .set_handler(PIECE, move |message| handler.take(message.data(), segment))
            .map_err(|error| local(DURING, &error))?;
        session.wait.barrier(DURING)?;
        session.wait.until(DURING, || match pieces.fault.borrow_mut().take() {
            Some(fault) => Err(fault.into()),
            None => Ok((pieces.next.get() == messages).then_some(())),
        })?;
        let endpoint = &session.endpoint;
        session.wait.post(DURING, || endpoint.am_short(RECEIVED, messages, &[]))?;
        session.flush(DURING, 0)?;
        self.report(session)
    }
}

/// The received pieces.
#[derive(Debug)]
struct Pieces {
    memory: Rc<Memory>,
    next: Cell<u64>,
    fault: RefCell<Option<String>>,
}

impl Pieces {
    fn take(&self, data: &[u8], segment: u64) {
        if let Err(fault) = self.place(data, segment) {
            self.fault.borrow_mut().get_or_insert(fault);
        }
    }

    fn place(&self, data: &[u8], segment: u64) -> Result<(), String> {
        let expected = self.next.get();
        let Some((number, piece)) = data.split_first_chunk::<NUMBER>() else {
            return Err(format!("message {expected} has only {} bytes", data.len()));
        };
        let number = u64::from_le_bytes(*number);
        if number != expected {
            return Err(format!("message {number} came where message {expected} was due"));
        }
        let offset = number.checked_mul(segment).and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or_else(|| format!("message {number} has no place in the file"))?;
        self.memory
            .write(offset, piece)
            .map_err(|error: MemoryError| format!("message {number}: {error}"))?;
        self.next.set(expected + 1);
        Ok(())
    }
}
