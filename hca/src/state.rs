//! What a device is made of, behind its lock.

use std::io;
use std::time::Instant;

use crate::command;
use crate::counters::Counters;
use crate::engine::{Context, Engine, Objects, Reports, StepClock, Strict, fatal, link_changed};
use crate::limits;
use crate::sentry::Sentry;
use crate::wire::{Faults, PhysicalPort};

/// The whole device.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) objects: Objects,
    pub(crate) reports: Reports,
    engine: Engine,
    ports: Vec<PhysicalPort>,
    counters: Counters,
    clock: Clock,
    /// Whether the links were up after the last pass.
    links_up: Vec<bool>,
    /// Completions after which something goes wrong, and what; 0 for never.
    overrun_after: u64,
    fatal_after: u64,
    /// The device broke down: commands go on, nothing else does.
    broken: bool,
}

/// Something that goes wrong when asked to, for [`crate::Device::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The links of all ports go down: what is sent or arrives is lost. Told by an asynchronous event.
    LinkDown,
    /// The links come up again. Told by an asynchronous event.
    LinkUp,
    /// Completion queue `cqn` is overrun: it takes no more entries, and the queue pairs that complete to it fail.
    CqOverrun {
        /// The completion queue.
        cqn: u32,
    },
    /// The device breaks down, which an asynchronous event tells: it executes and answers nothing more. Commands still run, so
    /// that a driver can tear down.
    Fatal,
}

/// The device's clock, in nanoseconds from any start.
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
    pub(crate) fn new(ports: Vec<PhysicalPort>, strict: Strict, stepped: bool, objects: Objects) -> Self {
        Self {
            links_up: vec![true; ports.len()],
            broken: false,
            overrun_after: 0,
            fatal_after: 0,
            objects,
            reports: Reports::new(strict),
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

    /// Calls the engine with everything else.
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

    /// Carries out a command.
    pub(crate) fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        self.with_engine(|engine, context| command::execute(engine, context, input, output));
    }

    /// One pass of the engine: whether it did anything, and the nanoseconds until one is due although nothing happens.
    pub(crate) fn pass(&mut self) -> (bool, Option<u64>) {
        let busy = self.run();
        let deadline = self.deadline();
        (busy, deadline.map(|deadline| deadline.saturating_sub(self.clock.now())))
    }

    /// One pass and a step of the virtual clock: whether another pass may bring anything.
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
        for (number, (port, was_up)) in (1..).zip(self.ports.iter().zip(&mut self.links_up)) {
            let up = port.wire.is_link_up();
            if std::mem::replace(was_up, up) != up {
                link_changed(&mut self.objects.events, number, up);
            }
        }
        busy
    }

    /// Lets what the configuration asked for go wrong, once its time has come.
    fn go_wrong(&mut self) {
        let due = |after: &mut u64, cqes| *after > 0 && *after <= cqes && std::mem::take(after) > 0;
        if due(&mut self.overrun_after, self.counters.cqes) {
            let victim = self.objects.cqs.iter().filter(|(_, cq)| cq.producer > 0).map(|(cqn, _)| cqn).min();
            if let Some(cqn) = victim {
                self.inject(Fault::CqOverrun { cqn });
            }
        }
        if due(&mut self.fatal_after, self.counters.cqes) {
            self.inject(Fault::Fatal);
        }
    }

    /// Makes something go wrong. False if there is nothing that could.
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
            Fault::Fatal => {
                if !std::mem::replace(&mut self.broken, true) {
                    fatal(&mut self.objects.events);
                }
            }
        }
        true
    }

    /// Takes from `faults` what is not the wire's.
    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.engine.set_slow_dma(faults.slow_dma_us.saturating_mul(1000));
        (self.overrun_after, self.fatal_after) = (faults.cq_overrun_after, faults.fatal_after);
    }

    /// When the engine or the moderation of events is due next.
    fn deadline(&self) -> Option<u64> {
        if self.broken {
            return None;
        }
        let deadlines = [self.engine.next_deadline(), self.objects.events.next_deadline()];
        let wires = self.ports.iter().map(|port| port.wire.deadline());
        deadlines.into_iter().chain(wires).flatten().min()
    }

    /// Whether there is anything for a pass to look at.
    pub(crate) fn is_idle(&self) -> bool {
        // Targets of dynamic connections answer packets, with no queue pair of the device's own.
        self.objects.qps.len() == 0 && self.objects.dcts.len() == 0
    }

    /// Stops the next store to a UAR page, if nothing waits to be done. False if something does.
    pub(crate) fn arm(&mut self, sentry: &mut Sentry) -> io::Result<bool> {
        let (version, pages) = self.engine.uar_pages();
        sentry.watch(version, pages)?;
        sentry.close()?;
        // What was stored before the pages closed shows now. Loads only: this thread must not wait for itself.
        Ok(self.engine.is_quiet(&self.objects))
    }

    /// Whether there are queue pairs in error, whose receive queues are flushed without a doorbell.
    pub(crate) fn has_failed(&self) -> bool {
        self.engine.has_failed()
    }

    /// A doorbell ended the thread's sleep.
    pub(crate) fn count_doorbell_wake(&mut self) {
        self.counters.doorbell_wakes += 1;
    }

    /// The device's clock.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.now()
    }

    /// A copy of all counters.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        for port in &self.ports {
            port.wire.count(&mut counters);
        }
        counters.events_lost = self.objects.events.lost();
        counters
    }

    /// What can be polled for packets.
    pub(crate) fn descriptors(&self) -> [Option<std::os::fd::RawFd>; limits::PORTS] {
        std::array::from_fn(|at| self.ports.get(at).and_then(|port| port.wire.descriptor()))
    }
}
