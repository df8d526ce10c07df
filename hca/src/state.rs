//! The state of a device, behind its lock.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use barewire_layouts::eqe::{Eqe, EventType};
use barewire_layouts::management::MAD_BYTES;
use barewire_layouts::page_fault::PageFault;

use crate::command;
use crate::counters::Counters;
use crate::engine::{
    Context, Engine, Objects, Reports, ReservedBits, StepClock, Strict, fatal, link_changed,
};
use crate::limits;
use crate::memory::AbsentPages;
use crate::object::{EventWatch, Management};
use crate::sentry::Sentry;
use crate::wire::{Faults, PhysicalPort};

/// All state of a device.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) objects: Objects,
    pub(crate) reports: Reports,
    engine: Engine,
    ports: Vec<PhysicalPort>,
    counters: Counters,
    clock: Clock,
    /// Whether each link was up after the last pass.
    links_up: Vec<bool>,
    /// Completions until an injected fault, and the fault; 0 for never.
    overrun_after: u64,
    fatal_after: u64,
    unplug_after: u64,
    /// The device broke down: only commands are executed.
    broken: bool,
    /// The device was removed: nothing is executed.
    unplugged: bool,
}

/// A fault for [`crate::Device::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The links of all ports go down: packets in either direction are lost. Reported by an
    /// asynchronous event.
    LinkDown,
    /// The links come up again. Reported by an asynchronous event.
    LinkUp,
    /// Completion queue `cqn` overruns: it takes no more entries, and its queue pairs fail.
    CqOverrun {
        /// The completion queue.
        cqn: u32,
    },
    /// The device breaks down and reports this by an asynchronous event. It executes no WQE and
    /// responds to no packet. Commands still run, so that a driver can tear down.
    Fatal,
    /// The device is removed, or its driver is unbound, and this is reported as [`Fault::Fatal`].
    /// Commands are refused ([`crate::CommandSyndrome::Unplugged`]) but for those that destroy
    /// objects, and doorbells have no effect.
    Unplug,
}

/// The device's clock, in nanoseconds from an arbitrary start.
#[derive(Debug)]
enum Clock {
    Running(Instant),
    Stepped(StepClock),
}

impl Clock {
    fn now(&self) -> u64 {
        match self {
            Self::Running(start) => start.elapsed().as_nanos() as u64,
            Self::Stepped(clock) => clock.now(),
        }
    }
}

impl State {
    pub(crate) fn new(
        ports: Vec<PhysicalPort>,
        strict: (Strict, ReservedBits),
        stepped: bool,
        objects: Objects,
    ) -> Self {
        Self {
            links_up: vec![true; ports.len()],
            broken: false,
            unplugged: false,
            unplug_after: objects.requirements.unplug_after,
            overrun_after: 0,
            fatal_after: 0,
            objects,
            reports: Reports::new(strict.0, strict.1),
            engine: Engine::new(stepped),
            ports,
            counters: Counters::default(),
            clock: if stepped {
                Clock::Stepped(StepClock::default())
            } else {
                Clock::Running(Instant::now())
            },
        }
    }

    /// Calls the engine with the rest of the state.
    fn with_engine<R>(&mut self, work: impl FnOnce(&mut Engine, &mut Context<'_>) -> R) -> R {
        let mut context = Context {
            objects: &mut self.objects,
            ports: &mut self.ports,
            counters: &mut self.counters,
            reports: &mut self.reports,
            now: self.clock.now(),
        };
        work(&mut self.engine, &mut context)
    }

    /// Executes a command of `sender`.
    pub(crate) fn execute(&mut self, sender: command::Sender, input: &[u8], output: &mut [u8]) {
        if self.unplugged && !command::destroys(input) {
            return command::refuse(output, command::CommandSyndrome::Unplugged);
        }
        self.with_engine(|engine, context| {
            command::execute(engine, context, sender, input, output);
        });
    }

    /// Runs one pass of the engine. Returns whether there was work, and in how many nanoseconds the
    /// next pass is due without an event.
    pub(crate) fn pass(&mut self) -> (bool, Option<u64>) {
        let busy = self.run();
        let deadline = self.deadline();
        (busy, deadline.map(|deadline| deadline.saturating_sub(self.clock.now())))
    }

    /// Runs one pass and a step of the virtual clock. Returns whether another pass may find work.
    pub(crate) fn step(&mut self) -> bool {
        let busy = self.run();
        let deadline = self.deadline();
        match &mut self.clock {
            Clock::Stepped(clock) => clock.after_pass(busy, deadline),
            Clock::Running(_) => busy,
        }
    }

    fn run(&mut self) -> bool {
        if self.broken {
            return false;
        }
        let busy = self.with_engine(Engine::pass);
        self.go_wrong();
        for (number, (port, was_up)) in (1..).zip(self.ports.iter_mut().zip(&mut self.links_up)) {
            if let Some(up) = port.wire.take_link_command() {
                port.wire.set_link(up);
            }
            let up = port.wire.is_link_up();
            if std::mem::replace(was_up, up) != up {
                link_changed(&mut self.objects.events, number, up);
            }
        }
        busy
    }

    /// Injects the configured faults whose time has come.
    fn go_wrong(&mut self) {
        let due = |after: &mut u64, cqes| *after > 0 && *after <= cqes && std::mem::take(after) > 0;
        if due(&mut self.overrun_after, self.counters.cqes) {
            let victim =
                self.objects.cqs.iter().filter(|(_, cq)| cq.producer > 0).map(|(cqn, _)| cqn).min();
            if let Some(cqn) = victim {
                self.inject(Fault::CqOverrun { cqn });
            }
        }
        if due(&mut self.fatal_after, self.counters.cqes) {
            self.inject(Fault::Fatal);
        }
        if due(&mut self.unplug_after, self.counters.cqes) {
            self.inject(Fault::Unplug);
        }
    }

    /// Returns the absent pages that the work of a page fault waits for.
    pub(crate) fn absent_pages(&mut self, fault: &PageFault) -> Vec<AbsentPages> {
        self.with_engine(|_, context| context.absent_pages(fault))
    }

    /// Returns a watch of the device's events.
    pub(crate) fn watch(&mut self) -> io::Result<Arc<EventWatch>> {
        let watch = self.objects.events.watch()?;
        if self.broken {
            watch.push(EventType::InternalError, Eqe::queue(EventType::InternalError, 0));
        }
        Ok(watch)
    }

    /// Returns the management datagrams that the ports receive.
    pub(crate) fn management(&mut self) -> io::Result<Arc<Management>> {
        if let Some(management) = &self.objects.management {
            return Ok(Arc::clone(management));
        }
        let management = Arc::new(Management::new()?);
        self.objects.management = Some(Arc::clone(&management));
        Ok(management)
    }

    /// Sends a management datagram.
    pub(crate) fn send_management(
        &mut self,
        port: u8,
        to: IpAddr,
        bytes: &[u8; MAD_BYTES],
    ) -> bool {
        !self.broken
            && self.with_engine(|engine, context| engine.send_management(context, port, to, bytes))
    }

    /// Returns whether the device broke down.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether the device was removed.
    pub(crate) fn is_unplugged(&self) -> bool {
        self.unplugged
    }

    /// Injects a fault. Returns false if its object does not exist.
    pub(crate) fn inject(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::LinkDown | Fault::LinkUp => {
                for port in &mut self.ports {
                    port.wire.set_link(fault == Fault::LinkUp);
                }
            }
            Fault::CqOverrun { cqn } => {
                return self.with_engine(|engine, context| engine.overrun(context, cqn));
            }
            Fault::Fatal | Fault::Unplug => {
                self.unplugged |= fault == Fault::Unplug;
                self.engine.stop();
                if !std::mem::replace(&mut self.broken, true) {
                    fatal(&mut self.objects.events);
                }
            }
        }
        true
    }

    /// Applies those of `faults` that are not the wire's.
    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.engine.set_slow_dma(faults.slow_dma_us.saturating_mul(1000));
        (self.overrun_after, self.fatal_after) = (faults.cq_overrun_after, faults.fatal_after);
    }

    /// Returns when the engine or the moderation of events is due next.
    fn deadline(&self) -> Option<u64> {
        if self.broken {
            return None;
        }
        let deadlines = [self.engine.next_deadline(), self.objects.events.next_deadline()];
        let wires = self.ports.iter().map(|port| port.wire.deadline());
        deadlines.into_iter().chain(wires).flatten().min()
    }

    /// Returns whether a pass can find work.
    pub(crate) fn is_idle(&self) -> bool {
        // Targets of dynamic connections respond to packets without any queue pair.
        self.objects.qps.len() == 0 && self.objects.dcts.len() == 0
    }

    /// Protects the UAR pages if no work is pending. Returns false if there is.
    pub(crate) fn arm(&mut self, sentry: &mut Sentry) -> io::Result<bool> {
        let (version, pages) = self.engine.uar_pages();
        sentry.watch(version, pages)?;
        sentry.close()?;
        // Finds stores made before the pages were protected. Only loads: a store would block this
        // thread.
        Ok(self.engine.is_quiet(&self.objects))
    }

    /// Returns whether there are queue pairs in error, whose receive queues are flushed without a
    /// doorbell.
    pub(crate) fn has_failed(&self) -> bool {
        self.engine.has_failed()
    }

    /// Counts a doorbell that ended the thread's sleep.
    pub(crate) fn count_doorbell_wake(&mut self) {
        self.counters.doorbell_wakes += 1;
    }

    /// Returns the time on the device's clock.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.now()
    }

    /// Returns a copy of all counters.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        for port in &self.ports {
            port.wire.count(&mut counters);
        }
        counters.events_lost = self.objects.events.lost();
        counters
    }

    /// Prepares for a sleep that [`Self::descriptors`] end. Returns false if packets have arrived.
    pub(crate) fn rest(&mut self) -> bool {
        self.ports.iter_mut().all(|port| port.wire.rest())
    }

    /// Returns the descriptors that are readable when packets arrive, after [`Self::rest`].
    pub(crate) fn descriptors(&self) -> [Option<std::os::fd::RawFd>; limits::PORTS] {
        std::array::from_fn(|at| self.ports.get(at).and_then(|port| port.wire.descriptor()))
    }
}
