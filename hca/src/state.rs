//! What a device is made of, behind its lock.

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::command;
use crate::engine::{Context, Counters, Engine, Reports, StepClock, Strict};
use crate::object::Objects;
use crate::wire::Wire;

/// The whole device.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) objects: Objects,
    pub(crate) reports: Reports,
    engine: Engine,
    wire: Box<dyn Wire>,
    counters: Counters,
    address: Ipv4Addr,
    clock: Clock,
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
    pub(crate) fn new(address: Ipv4Addr, wire: Box<dyn Wire>, strict: Strict, stepped: bool) -> Self {
        Self {
            objects: Objects::new(),
            reports: Reports::new(strict),
            engine: Engine::new(address, stepped),
            wire,
            counters: Counters::default(),
            address,
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
            wire: &mut *self.wire,
            counters: &mut self.counters,
            reports: &mut self.reports,
            now: self.clock.now(),
        };
        work(&mut self.engine, &mut context)
    }

    /// Carries out a command.
    pub(crate) fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        let address = self.address;
        self.with_engine(|engine, context| command::execute(engine, context, address, input, output));
    }

    /// One pass of the engine: whether it did anything, and the nanoseconds until one is due although nothing happens.
    pub(crate) fn pass(&mut self) -> (bool, Option<u64>) {
        let busy = self.with_engine(Engine::pass);
        let deadline = self.engine.next_deadline();
        (busy, deadline.map(|deadline| deadline.saturating_sub(self.clock.now())))
    }

    /// One pass and a step of the virtual clock: whether another pass may bring anything.
    pub(crate) fn step(&mut self) -> bool {
        let busy = self.with_engine(Engine::pass);
        let deadline = self.engine.next_deadline();
        match &mut self.clock {
            Clock::Stepped(clock) => clock.after_pass(busy, deadline),
            Clock::Running(_) => busy,
        }
    }

    /// Whether there is anything for a pass to look at.
    pub(crate) fn is_idle(&self) -> bool {
        self.objects.qps.len() == 0
    }

    /// A copy of all counters.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.wire.count(&mut counters);
        counters
    }

    /// What can be polled for packets.
    pub(crate) fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.wire.descriptor()
    }
}
