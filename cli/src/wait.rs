//! Waiting for the transport and the peer at the same time.

use crate::control::Message;
use crate::error::Error;
use crate::link::Link;
use barewire::{Attributes, Completion, Endpoint, PostError, Worker};
use barewire_tcp::HostAddress;
use barewire_tcp::stall_timer::StallTimer;
use indicatif::ProgressBar;
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Most time without progress of an operation while the peer is alive.
const STALL: Duration = Duration::from_secs(8);
/// The slowest accepted rate, which extends the time limit of long operations.
const SLOWEST_BYTES_PER_SECOND: u64 = 2 << 20;
/// Polls without an event before the CPU is yielded, which the thread of an emulator needs as well.
const EAGER: u32 = 8;
/// The same for latencies below `NEAR` nanoseconds, which the time to get the CPU back would
/// exceed.
const EAGER_WHEN_NEAR: u32 = 4096;
const NEAR: f64 = 500.0;
/// The same for overheads above `BY_SYSTEM` nanoseconds, where every post and poll is a system
/// call.
const EAGER_BY_SYSTEM: u32 = 256;
const BY_SYSTEM: f64 = 500.0;
/// After this long without an event a wait sleeps between its polls.
const DROWSY: Duration = Duration::from_millis(2);
/// Duration of the sleep.
const NAP: Duration = Duration::from_micros(50);
/// Polls between two checks of the clock, the peer and the endpoint.
const CLOCK: u32 = 32;
const CLOCK_WHEN_NEAR: u32 = 1024;

/// The reason why a wait ended early; the wait adds the peer and the activity.
#[derive(Debug)]
pub(crate) struct Fault(String);

impl<E: Display> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Polls without an event.
#[derive(Debug, Default)]
struct Idle {
    polls: u32,
    /// Set once the peer and the clock were checked.
    timer: Option<StallTimer>,
    sleeps: bool,
}

/// The progress of one endpoint's interface, and the control connection to the peer unless the
/// endpoint is a loopback.
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
    /// `attributes` are those of the endpoint.
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

    /// Returns `true` if the endpoint is connected to this process.
    pub(crate) fn is_loopback(&self) -> bool {
        self.link.is_none()
    }

    /// The address of this host towards the peer.
    pub(crate) fn local(&self) -> HostAddress {
        let local = self.link.as_ref().and_then(|link| link.local());
        local.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// The peer, as text for the user.
    pub(crate) fn peer_name(&self) -> String {
        self.link.as_ref().map_or_else(|| "this process".into(), |link| link.peer().to_string())
    }

    /// Shows a progress bar from now on, or none.
    pub(crate) fn show(&mut self, bar: Option<ProgressBar>) {
        if let Some(old) = std::mem::replace(&mut self.bar, bar) {
            old.finish_and_clear();
        }
    }

    /// Sets the position of the progress bar.
    pub(crate) fn at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Progresses until `ready` returns a value.
    ///
    /// Fails if the peer has ended or sends nothing, if the endpoint failed, if `ready` fails, or
    /// if there was no event for a long time.
    #[inline(always)]
    pub(crate) fn until<T>(
        &mut self,
        during: &str,
        ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        self.until_within::<T, true>(STALL, during, ready)
    }

    /// Like [`Self::until`], but makes no progress if `ready` is ready at once.
    #[inline(always)]
    pub(crate) fn unless_ready_until<T>(
        &mut self,
        during: &str,
        mut ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        match ready() {
            Ok(Some(value)) => Ok(value),
            _ => self.until(during, ready),
        }
    }

    /// Like [`Self::until`], but without progress, for events that do not need it.
    #[inline(always)]
    pub(crate) fn until_passively<T>(
        &mut self,
        during: &str,
        ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        self.until_within::<T, false>(STALL, during, ready)
    }

    /// Inlined into the caller, to keep the path from an arrival to the response short.
    #[inline(always)]
    fn until_within<T, const PROGRESS: bool>(
        &mut self,
        stall: Duration,
        during: &str,
        mut ready: impl FnMut() -> Result<Option<T>, Fault>,
    ) -> Result<T, Error> {
        let mut idle = Idle::default();
        loop {
            if PROGRESS && self.worker.progress() > 0 {
                idle = Idle::default();
            }
            match ready() {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(Fault(cause)) => return Err(self.failed(during, cause)),
            }
            self.looks = self.looks.wrapping_add(1);
            idle.polls = idle.polls.saturating_add(1);
            if idle.polls > self.eager || self.is_time() {
                self.pause(&mut idle, stall, during)?;
            }
        }
    }

    /// Returns whether the clock, the peer and the endpoint are due for a check.
    #[inline(always)]
    fn is_time(&self) -> bool {
        // Both are powers of two.
        self.looks & (self.clock - 1) == 0
    }

    /// After polls without an event: makes the rare checks, and yields the CPU.
    #[inline(never)]
    fn pause(&mut self, idle: &mut Idle, stall: Duration, during: &str) -> Result<(), Error> {
        if idle.sleeps || self.is_time() {
            let now = Instant::now();
            self.look(now, during)?;
            if idle.polls > self.clock {
                let timer = idle.timer.get_or_insert_with(|| StallTimer::new(stall, now));
                let spent = timer.update(now);
                idle.sleeps = spent >= DROWSY;
                if spent >= stall {
                    return Err(self.stalled(during, spent));
                }
            }
        }
        if idle.sleeps {
            std::thread::sleep(NAP);
        } else if idle.polls > self.eager {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Checks the peer and the endpoint.
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

    /// Makes progress and checks the peer during other work.
    pub(crate) fn breathe(&mut self, during: &str) -> Result<(), Error> {
        self.worker.progress();
        self.look(Instant::now(), during)
    }

    /// The error of a failed operation: that of the endpoint if it has one, unless the end of the
    /// peer explains it.
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
            None => Error::Local(format!(
                "no progress for {:.0} s during {during}",
                silence.as_secs_f64()
            )),
        }
    }

    /// Returns the worker, to open more interfaces.
    pub(crate) fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Posts, and repeats the post while resources are exhausted.
    #[inline(always)]
    pub(crate) fn post<T>(
        &mut self,
        during: &str,
        mut post: impl FnMut() -> Result<T, PostError>,
    ) -> Result<T, Error> {
        // The first attempt makes no progress call.
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

    /// Waits until `completion` has no outstanding operations; they carry about `bytes`.
    pub(crate) fn complete(
        &mut self,
        during: &str,
        completion: &Completion,
        bytes: u64,
    ) -> Result<(), Error> {
        self.complete_down_to(during, completion, 0, bytes)
    }

    /// Waits until `completion` has at most `left` outstanding operations; they carry about
    /// `bytes`.
    pub(crate) fn complete_down_to(
        &mut self,
        during: &str,
        completion: &Completion,
        left: usize,
        bytes: u64,
    ) -> Result<(), Error> {
        let stall = STALL.saturating_add(Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND));
        self.until_within::<_, true>(stall, during, || match completion.status() {
            Err(error) => Err(error.into()),
            Ok(()) => Ok((completion.pending() <= left).then_some(())),
        })
    }

    /// Sends a control message to the peer.
    pub(crate) fn send(&mut self, message: &Message, during: &str) -> Result<(), Error> {
        match &mut self.link {
            Some(link) => link.send(message, during),
            None => Err(alone(during)),
        }
    }

    /// Waits for the peer's next control message while the peer is alive.
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
            // The endpoint is not checked: a peer may close its end before its last message is
            // read.
            if events == 0 {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Waits until both sides have called this function.
    pub(crate) fn barrier(&mut self, during: &str) -> Result<(), Error> {
        self.barrier_with(true, during)
    }

    /// Like [`Self::barrier`], but without progress.
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

    /// The error for a peer that violates the protocol.
    pub(crate) fn protocol(&self, what: String) -> Error {
        match &self.link {
            Some(link) => link.protocol(what),
            None => Error::Local(what),
        }
    }

    /// The error for an unexpected message.
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
