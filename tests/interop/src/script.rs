//! The operations: every kind in both directions, window by window, each checked at both ends.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Result;
use crate::content::{self, GUARD};
use crate::link::{Link, Plan};
use crate::side::{Done, LOCAL, Operation, Place, SLOT, Side, TARGET, WINDOW};

/// Time limit for completions of a slow device.
const PATIENCE: Duration = Duration::from_mins(1);
/// Every this many windows the receives are posted late, so that the sender gets an RNR NAK.
const LATE: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
}

const KINDS: [Kind; 6] =
    [Kind::Send, Kind::Write, Kind::WriteImmediate, Kind::Read, Kind::FetchAdd, Kind::CompareSwap];

impl Kind {
    fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns whether the operation consumes a receive WQE of the peer.
    fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::WriteImmediate)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImmediate => "write with immediate",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
        })
    }
}

/// Runs all operations of `plan`, first those of this side if `begins`, else those of the peer.
pub(crate) fn run(side: &mut dyn Side, link: &mut Link, plan: Plan, begins: bool) -> Result<()> {
    for active in [begins, !begins] {
        for kind in KINDS {
            let started = Instant::now();
            let mut phase = Phase { side, link, plan, kind, value: content::START };
            let mut number = 0;
            while number < plan.operations {
                let window = number..plan.operations.min(number + WINDOW as u64);
                number = window.end;
                let outcome =
                    if active { phase.ask(window.clone()) } else { phase.serve(window.clone()) };
                outcome.map_err(|error| format!("{kind} {window:?}: {error}"))?;
            }
            if active {
                let took = started.elapsed().as_secs_f64();
                println!("{kind:>22}: {} in {took:.1} s", plan.operations);
            }
        }
    }
    Ok(())
}

/// All operations of one kind in one direction.
struct Phase<'a> {
    side: &'a mut dyn Side,
    link: &'a mut Link,
    plan: Plan,
    kind: Kind,
    /// The expected value of the target of atomics.
    value: u64,
}

type Window = std::ops::Range<u64>;

fn place(area: usize, number: u64) -> usize {
    area + number as usize % WINDOW * SLOT
}

impl Phase<'_> {
    /// Posts operations of this side.
    fn ask(&mut self, window: Window) -> Result<()> {
        let takes_bytes = self.kind == Kind::Read || self.kind.is_atomic();
        for number in window.clone() {
            let bytes = if takes_bytes { vec![GUARD; SLOT] } else { self.slot(number) };
            self.side.write(place(LOCAL, number), &bytes)?;
        }
        self.link.wait_ready()?;
        let mut originals = Vec::new();
        for number in window.clone() {
            originals.push(self.value);
            let operation = self.operation(number);
            self.side.post(&operation)?;
        }
        for _ in window.clone() {
            match self.wait()? {
                Done::Posted => {}
                done @ Done::Received { .. } => {
                    return Err(format!("{done:?}, and nothing was to come").into());
                }
            }
        }
        for (number, original) in window.zip(originals) {
            let expected = if self.kind.is_atomic() {
                [original.to_ne_bytes().as_slice(), &[GUARD; SLOT - 8]].concat()
            } else {
                self.slot(number)
            };
            self.compare(place(LOCAL, number), &expected, number)?;
        }
        self.link.tell_done()
    }

    /// Serves operations of the peer.
    fn serve(&mut self, window: Window) -> Result<()> {
        for number in window.clone() {
            let bytes = if self.kind == Kind::Read { self.slot(number) } else { vec![GUARD; SLOT] };
            self.side.write(place(TARGET, number), &bytes)?;
        }
        if self.kind.is_atomic() {
            self.side.write(TARGET, &self.value.to_ne_bytes())?;
        }
        let late = window.start / WINDOW as u64 % LATE == LATE - 1;
        if self.kind.is_received() && !late {
            self.post_receives(window.clone())?;
        }
        self.link.tell_ready()?;
        if self.kind.is_received() && late {
            std::thread::sleep(Duration::from_millis(20));
            self.post_receives(window.clone())?;
        }
        self.link.wait_done()?;
        if self.kind.is_received() {
            for number in window.clone() {
                let length = content::length(self.plan, self.kind, number) as u32;
                let immediate = content::immediate(self.plan, self.kind, number);
                let (done, expected) = (self.wait()?, Done::Received { length, immediate });
                if done != expected {
                    return Err(
                        format!("number {number}: {done:?} in place of {expected:?}").into()
                    );
                }
            }
        }
        if self.kind.is_atomic() {
            for number in window {
                self.value = content::atomic(self.plan, self.kind, number, self.value).after;
            }
            let expected = [self.value.to_ne_bytes().as_slice(), &[GUARD; SLOT - 8]].concat();
            return self.compare(TARGET, &expected, 0);
        }
        window
            .into_iter()
            .try_for_each(|number| self.compare(place(TARGET, number), &self.slot(number), number))
    }

    /// Posts receives: for sends to the memory that is compared, for writes with immediates
    /// elsewhere.
    fn post_receives(&mut self, window: Window) -> Result<()> {
        let area = if self.kind == Kind::Send { TARGET } else { LOCAL };
        window.into_iter().try_for_each(|number| {
            self.side.post_receive(Place { offset: place(area, number), length: SLOT })
        })
    }

    fn operation(&mut self, number: u64) -> Operation {
        let length = content::length(self.plan, self.kind, number);
        let (local, remote) =
            (Place { offset: place(LOCAL, number), length }, place(TARGET, number));
        let immediate = content::immediate(self.plan, self.kind, number);
        if !self.kind.is_atomic() {
            return match self.kind {
                Kind::Send => Operation::Send { local, immediate },
                Kind::Read => Operation::Read { local, remote },
                _ => Operation::Write { local, remote, immediate },
            };
        }
        let (local, remote) = (Place { length: 8, ..local }, TARGET);
        let content::Atomic { operand, compare, after } =
            content::atomic(self.plan, self.kind, number, self.value);
        self.value = after;
        if self.kind == Kind::FetchAdd {
            Operation::FetchAdd { local, remote, operand }
        } else {
            Operation::CompareSwap { local, remote, compare, swap: operand }
        }
    }

    fn slot(&self, number: u64) -> Vec<u8> {
        content::slot(self.plan, self.kind, number)
    }

    fn wait(&mut self) -> Result<Done> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(done) = self.side.poll()? {
                return Ok(done);
            }
            if Instant::now() > deadline {
                self.side.finish()?;
                return Err(format!("no completion within {} s", PATIENCE.as_secs()).into());
            }
            std::thread::yield_now();
        }
    }

    fn compare(&self, offset: usize, expected: &[u8], number: u64) -> Result<()> {
        let mut bytes = vec![0; expected.len()];
        self.side.read(offset, &mut bytes)?;
        match bytes.iter().zip(expected).position(|(byte, expected)| byte != expected) {
            None => Ok(()),
            Some(at) => Err(format!(
                "number {number}: byte {at} is {:#04x} in place of {:#04x}",
                bytes[at], expected[at]
            )
            .into()),
        }
    }
}
