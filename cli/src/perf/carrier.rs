//! How either side sends one message of the size and in the way that the plan says.

use super::{DATA, WORD};
use crate::control::{Layout, PerfPlan};
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use barewire::{Memory, MemoryError};
use std::cell::Cell;
use std::rc::Rc;

/// What one side sends from and receives into.
#[derive(Debug)]
pub(super) struct Carrier {
    pub(super) layout: Layout,
    pub(super) size: usize,
    /// What the peer writes and reads, and where gets arrive.
    pub(super) own: Memory,
    pub(super) remote: Remote,
    /// What zero-copy operations send.
    source: Memory,
    /// What the others send.
    payload: Vec<u8>,
    received: Rc<Received>,
}

/// Messages that came.
#[derive(Debug, Default)]
struct Received {
    messages: Cell<u64>,
    /// The length of one that should not have come.
    foreign: Cell<Option<usize>>,
}

impl Carrier {
    /// Sets up the regions and the handler, and waits until the peer has done the same.
    pub(super) fn open(session: &mut Session<'_>, plan: &PerfPlan) -> Result<Self, Error> {
        const DURING: &str = "the set-up";
        let size = usize::try_from(plan.size).map_err(|error| local(DURING, &error))?;
        let (own, source) = (session.allocate(size)?, session.allocate(size)?);
        let remote = session.exchange(&own, size)?;
        let received = Rc::new(Received::default());
        let counter = Rc::clone(&received);
        session
            .interface
            .set_handler(DATA, move |message| {
                if message.data().len() == size {
                    counter.messages.set(counter.messages.get() + 1);
                } else {
                    counter.foreign.set(Some(message.data().len()));
                }
            })
            .map_err(|error| local(DURING, &error))?;
        let carrier =
            Self { layout: plan.layout, size, own, remote, source, payload: vec![0; size], received };
        if !session.wait.is_loopback() {
            session.wait.barrier(DURING)?;
        }
        Ok(carrier)
    }

    /// Sends an active message.
    pub(super) fn send(&self, session: &mut Session<'_>, during: &str) -> Result<(), Error> {
        let (endpoint, wait) = (&session.endpoint, &mut session.wait);
        match self.layout {
            Layout::Short => {
                let payload = self.payload.get(WORD..).unwrap_or_default();
                wait.post(during, || endpoint.am_short(DATA, 0, payload)).map(|_| ())
            }
            Layout::Bcopy => wait
                .post(during, || {
                    endpoint.am_bcopy(DATA, |buffer| {
                        buffer[..self.size].copy_from_slice(&self.payload);
                        self.size
                    })
                })
                .map(|_| ()),
            Layout::Zcopy => {
                let slice = self.source.slice(0, self.size).map_err(|error| local(during, &error))?;
                wait.post(during, || endpoint.am_zcopy(DATA, &[], &[slice], None)).map(|_| ())
            }
        }
    }

    /// Waits until this many messages came in all.
    pub(super) fn receive(&self, session: &mut Session<'_>, total: u64, during: &str) -> Result<(), Error> {
        session.wait.until(during, || match self.received.foreign.get() {
            Some(length) => Err(format!("a message of {length} bytes came, not of {}", self.size).into()),
            None => Ok((self.received.messages.get() >= total).then_some(())),
        })
    }

    /// Puts into the peer's memory; the last byte there becomes `mark`.
    pub(super) fn put(&mut self, session: &mut Session<'_>, mark: u8, during: &str) -> Result<(), Error> {
        let (endpoint, wait) = (&session.endpoint, &mut session.wait);
        let Remote { address, key } = &self.remote;
        if let Some(last) = self.payload.last_mut() {
            *last = mark;
        }
        let payload = &self.payload;
        match self.layout {
            Layout::Short => wait.post(during, || endpoint.put_short(payload, *address, key)).map(|_| ()),
            Layout::Bcopy => wait
                .post(during, || {
                    let pack = |buffer: &mut [u8]| {
                        buffer[..payload.len()].copy_from_slice(payload);
                        payload.len()
                    };
                    endpoint.put_bcopy(pack, *address, key)
                })
                .map(|_| ()),
            Layout::Zcopy => {
                // An earlier put may still read the byte, but only one whose arrival was seen already.
                let failed = |error: MemoryError| local(during, &error);
                self.source.write(self.size - 1, &[mark]).map_err(failed)?;
                let slice = self.source.slice(0, self.size).map_err(failed)?;
                wait.post(during, || endpoint.put_zcopy(&[slice], *address, key, None)).map(|_| ())
            }
        }
    }

    /// Waits until the last byte of this side's memory is `mark`.
    pub(super) fn marked(&self, session: &mut Session<'_>, mark: u8, during: &str) -> Result<(), Error> {
        let last = self.size - 1;
        session.wait.until(during, || Ok((self.own.load_u8(last)? == mark).then_some(())))
    }
}
