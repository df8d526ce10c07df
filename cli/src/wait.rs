//! Waiting for the transport and the peer at the same time.

use crate::control::Message;
use crate::error::Error;
use crate::link::Link;
use crate::patience::Patience;
use barewire::{Attributes, Completion, Endpoint, PostError, Worker};
use indicatif::ProgressBar;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long an operation may make no progress although the peer lives.
const STALL: Duration = Duration::from_secs(8);
/// What a long operation may take beyond that: a slower wire counts as stalled.
const SLOWEST_BYTES_PER_SECOND: u64 = 2 << 20;
/// Looks without an event before the CPU is offered to others: the device of an emulator wants it, too.
const EAGER: u32 = 8;
/// As many in a row where an answer takes less than this many nanoseconds: the time that a CPU needs to come back would show.
const EAGER_WHEN_NEAR: u32 = 4096;
const NEAR: f64 = 500.0;
/// And where the system carries every post, which then takes this many: a look is a system call, and an offer of the CPU is one more.
const EAGER_BY_SYSTEM: u32 = 256;
const BY_SYSTEM: f64 = 500.0;
/// After this long without an event a wait sleeps between its looks.
const DROWSY: Duration = Duration::from_millis(2);
/// How long it sleeps.
const NAP: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock, the peer and the endpoint.
const CLOCK: u32 = 32;
const CLOCK_WHEN_NEAR: u32 = 1024;

/// Why a wait ended early; the wait adds the peer and what it was doing.
#[derive(Debug)]
pub(crate) struct Fault(String);

impl<E: Display> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The progress of one endpoint's interface, and the control connection to the peer unless the endpoint leads
/// back here.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    link: Option<&'a mut Link>,
    endpoint: Endpoint,
    worker: Worker,
    bar: Option<ProgressBar>,
    looks: u32,
    clock: u32,
    eager: u32,
}

impl<'a> Wait<'a> {
    /// The attributes are the endpoint's.
    pub(crate) fn new(
        link: Option<&'a mut Link>,
        worker: Worker,
        endpoint: Endpoint,
        attributes: &Attributes,
    ) -> Self {
        let (clock, eager) = if attributes.latency_ns < NEAR {
            (CLOCK_WHEN_NEAR, EAGER_WHEN_NEAR)
        } else if attributes.overhead_ns > BY_SYSTEM {
            (CLOCK, EAGER_BY_SYSTEM)
        } else {
            (CLOCK, EAGER)
        };
        Self { link, worker, endpoint, bar: None, looks: 0, clock, eager }
    }

    /// True if the endpoint leads back to this process.
    pub(crate) fn is_loopback(&self) -> bool {
        self.link.is_none()
    }

    /// The peer, for the user.
    pub(crate) fn peer_name(&self) -> String {
        self.link.as_ref().map_or_else(|| "this process".into(), |link| link.peer().to_string())
    }

    /// Shows a progress bar from now on, or none.
    pub(crate) fn show(&mut self, bar: Option<ProgressBar>) {
        if let Some(old) = std::mem::replace(&mut self.bar, bar) {
            old.finish_and_clear();
        }
    }

    /// How far the work on the progress bar is.
    pub(crate) fn at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Progresses until `ready` has an answer.
    ///
    /// Fails if the peer is gone or silent, if the endpoint failed, if `ready` fails, or if nothing at all
    /// happened for a long time.
    #[inline(always)]
    pub(crate) fn until<T>(
        &mut self,
        during: &str,
        ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        self.until_within::<T, true>(STALL, during, ready)
    }

    /// As [`Self::until`], but without progress: what is waited for comes without it.
    #[inline(always)]
    pub(crate) fn until_passively<T>(
        &mut self,
        during: &str,
        ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        self.until_within::<T, false>(STALL, during, ready)
    }

    /// In the caller, so that what comes between an arrival and the answer to it is short.
    #[inline(always)]
    fn until_within<T, const PROGRESS: bool>(
        &mut self,
        stall: Duration,
        during: &str,
        mut ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        let mut idle = 0u32;
        let mut patience: Option<Patience> = None;
        loop {
            if PROGRESS && self.worker.progress() > 0 {
                (idle, patience) = (0, None);
            }
            match ready() {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(Fault(cause)) => return Err(self.failed(during, cause)),
            }
            self.looks = self.looks.wrapping_add(1);
            idle = idle.saturating_add(1);
            if idle > self.eager || self.is_time() {
                self.pause(idle, &mut patience, stall, during)?;
            }
        }
    }

    /// The clock, the peer and the endpoint are to be looked at.
    #[inline(always)]
    fn is_time(&self) -> bool {
        // Both are powers of two.
        self.looks & (self.clock - 1) == 0
    }

    /// After so many looks without an event: looks at what is seldom looked at, and leaves the CPU to others.
    #[inline(never)]
    fn pause(
        &mut self,
        idle: u32,
        patience: &mut Option<Patience>,
        stall: Duration,
        during: &str,
    ) -> Result<(), Error> {
        let mut drowsy = patience.as_ref().is_some_and(|patience| patience.spent() >= DROWSY);
        if drowsy || self.is_time() {
            let now = Instant::now();
            self.look(now, during)?;
            if idle > self.clock {
                let spent = patience.get_or_insert_with(Patience::new).spend(now);
                drowsy = spent >= DROWSY;
                if spent >= stall {
                    return Err(self.stalled(during, spent));
                }
            }
        }
        if drowsy {
            std::thread::sleep(NAP);
        } else if idle > self.eager {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Looks at the peer and the endpoint.
    fn look(&mut self, now: Instant, during: &str) -> Result<(), Error> {
        if let Some(link) = &mut self.link {
            link.tend(now, during)?;
        }
        if let Some(bar) = &self.bar {
            bar.tick();
        }
        if self.endpoint.error().is_some() {
            return Err(self.failed(during, String::new()));
        }
        Ok(())
    }

    /// Gives the peer and the transport a moment between two pieces of other work.
    pub(crate) fn breathe(&mut self, during: &str) -> Result<(), Error> {
        self.worker.progress();
        self.look(Instant::now(), during)
    }

    /// An operation failed: says so in the endpoint's words if it has any, unless the peer's end explains it.
    #[cold]
    fn failed(&mut self, during: &str, cause: String) -> Error {
        let cause = self.endpoint.error().map_or(cause, |error| error.to_string());
        match &mut self.link {
            Some(link) => {
                let peer = link.peer().clone();
                link.explain(Error::Operation { peer, during: during.to_owned(), cause }, during)
            }
            None => Error::Local(format!("{during} failed: {cause}")),
        }
    }

    #[cold]
    fn stalled(&mut self, during: &str, silence: Duration) -> Error {
        match &mut self.link {
            Some(link) => {
                let peer = link.peer().clone();
                link.explain(Error::Stalled { peer, during: during.to_owned(), silence }, during)
            }
            None => Error::Local(format!("no progress for {:.0} s during {during}", silence.as_secs_f64())),
        }
    }

    /// Posts, as often as there are no resources.
    #[inline(always)]
    pub(crate) fn post<T>(
        &mut self,
        during: &str,
        mut post: impl FnMut() -> Result<T, PostError>,
    ) -> Result<T, Error> {
        // The first try costs no progress call.
        match post() {
            Ok(posted) => Ok(posted),
            Err(error) => self.post_later(during, error, &mut post),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_later<T>(
        &mut self,
        during: &str,
        error: PostError,
        post: &mut dyn FnMut() -> Result<T, PostError>,
    ) -> Result<T, Error> {
        if !matches!(error, PostError::NoResource) {
            return Err(self.failed(during, error.to_string()));
        }
        self.until(during, || match post() {
            Ok(posted) => Ok(Some(posted)),
            Err(PostError::NoResource) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Waits until `completion` has no operation left; they carry about `bytes`.
    pub(crate) fn complete(
        &mut self,
        during: &str,
        completion: &Completion,
        bytes: u64,
    ) -> Result<(), Error> {
        self.complete_down_to(during, completion, 0, bytes)
    }

    /// Waits until `completion` has no more than `left` operations left; they carry about `bytes`.
    pub(crate) fn complete_down_to(
        &mut self,
        during: &str,
        completion: &Completion,
        left: u32,
        bytes: u64,
    ) -> Result<(), Error> {
        let stall = STALL + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND);
        self.until_within::<_, true>(stall, during, || match completion.status() {
            Err(error) => Err(error.into()),
            Ok(()) => Ok((completion.pending() <= left).then_some(())),
        })
    }

    /// Sends the peer a control message.
    pub(crate) fn send(&mut self, message: &Message, during: &str) -> Result<(), Error> {
        match &mut self.link {
            Some(link) => link.send(message, during),
            None => Err(alone(during)),
        }
    }

    /// Waits for the peer's next control message, for as long as the peer lives.
    pub(crate) fn message(&mut self, during: &str) -> Result<Message, Error> {
        self.message_with(true, during)
    }

    fn message_with(&mut self, progress: bool, during: &str) -> Result<Message, Error> {
        loop {
            let events = if progress { self.worker.progress() } else { 0 };
            let now = Instant::now();
            let link = self.link.as_mut().ok_or_else(|| alone(during))?;
            if let Some(message) = link.next(now, during)? {
                return Ok(message);
            }
            // Not at the endpoint: a peer that has said its last word may close its end before that word is read.
            if events == 0 {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Waits until both sides are here.
    pub(crate) fn barrier(&mut self, during: &str) -> Result<(), Error> {
        self.barrier_with(true, during)
    }

    /// As [`Self::barrier`], but without progress.
    pub(crate) fn barrier_passively(&mut self, during: &str) -> Result<(), Error> {
        self.barrier_with(false, during)
    }

    fn barrier_with(&mut self, progress: bool, during: &str) -> Result<(), Error> {
        self.send(&Message::Ready, during)?;
        match self.message_with(progress, during)? {
            Message::Ready => Ok(()),
            other => Err(self.unexpected(&other, "ready")),
        }
    }

    /// An error: the peer does not keep to the protocol.
    pub(crate) fn protocol(&self, what: String) -> Error {
        match &self.link {
            Some(link) => link.protocol(what),
            None => Error::Local(what),
        }
    }

    /// An error: the peer sent another message than the one that is due.
    pub(crate) fn unexpected(&self, got: &Message, wanted: &str) -> Error {
        match &self.link {
            Some(link) => link.unexpected(got, wanted),
            None => alone(wanted),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.show(None);
    }
}

fn alone(during: &str) -> Error {
    Error::Local(format!("{during} needs a peer, and a loopback has none"))
}
