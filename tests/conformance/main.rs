//! Behaviours that all transports have in common, each tested once over every transport and device.
//!
//! A behaviour is tested if the transport has the capabilities that it requires; otherwise
//! docs/CONFORMANCE.md lists the capability as missing. `cargo test --test conformance -- 'shm::'`
//! runs the tests of one transport.
//!
//! `BAREWIRE_TEST_PLACES` selects places, as in `shm,rc_mlx5_soft0`, and `BAREWIRE_TEST_KINDS` kinds
//! of behaviours, as in `plain,operation`.
//!
//! With `BAREWIRE_TEST_REPORT`, each result is appended to that file: a line of place, module,
//! behaviour and result, separated by tabs.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use barewire::config::Choice;
use barewire::{Flags, InterfaceConfig};
use libtest_mimic::{Arguments, Trial};

mod atomics;
mod behaviours;
mod callbacks;
mod check;
mod closing;
mod counters;
mod device_memory;
mod events;
mod fences;
mod fork;
mod full_queues;
mod keepalive;
mod kept;
mod limits;
mod lists;
mod memory;
mod messages;
mod ordering;
mod panics;
mod peers;
mod pending;
mod place;
mod processes;
mod reentrancy;
mod registration;
mod rma;
mod setup;
mod sleeping;
#[allow(dead_code, reason = "what the transports' own tests use is there, too")]
#[path = "../transport/support.rs"]
mod support;
mod tags;
mod views;
mod volume;
mod windows;

use behaviours::{BEHAVIOURS, Behaviour};
use place::Place;

fn main() -> ExitCode {
    if processes::be_a_peer() {
        return ExitCode::SUCCESS;
    }
    // SAFETY: no other thread runs yet. The driver clears reserved bits, so a device may refuse
    // others.
    unsafe { std::env::set_var("BAREWIRE_HCA_RESERVED", "refuse") };
    if std::env::var_os("BAREWIRE_KEY").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("BAREWIRE_KEY", "5eed".repeat(16)) };
    }
    let arguments = Arguments::from_args();
    let (places, kinds) =
        (Selection::of("BAREWIRE_TEST_PLACES"), Selection::of("BAREWIRE_TEST_KINDS"));
    let mut trials = Vec::new();
    for place in Place::all() {
        let path = place.name.replace(' ', "_");
        if !places.contains(&path) {
            continue;
        }
        let properties = Properties::default();
        for behaviour in BEHAVIOURS.iter().filter(|one| kinds.contains(one.kind.name())) {
            let (place, properties) = (place.clone(), properties.clone());
            let name = format!("{path}::{}::{}", behaviour.module, behaviour.name);
            trials.push(Trial::test(name, move || {
                run(&place, &properties, behaviour);
                Ok(())
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Names in a variable, separated by commas; without the variable, every name.
struct Selection(Option<String>);

impl Selection {
    fn of(variable: &str) -> Self {
        Self(std::env::var(variable).ok())
    }

    fn contains(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.split(',').any(|one| one == name))
    }
}

/// The capabilities of a place, without and with tag matching, which the first behaviour reads.
#[derive(Clone, Default)]
struct Properties(Arc<[OnceLock<Flags>; 2]>);

impl Properties {
    fn flags(&self, place: &Place, tags: bool) -> Flags {
        *self.0[usize::from(tags)].get_or_init(|| {
            let config = InterfaceConfig::default();
            let wanted = if tags { Choice::Auto } else { Choice::No };
            let pair = place.pair_with(&config.tag_matching(wanted));
            let mut flags = pair.client.interface.attributes().flags;
            // It does not matter here what executes atomics.
            if flags.contains(Flags::ATOMIC_DEVICE) {
                flags |= Flags::ATOMIC_CPU;
            }
            flags
        })
    }
}

fn run(place: &Place, properties: &Properties, behaviour: &Behaviour) {
    let needs_tags = behaviour.needs.intersects(Flags::TAG_EAGER_SHORT | Flags::TAG_RNDV_ZCOPY);
    let lacks = behaviour.needs - properties.flags(place, needs_tags);
    if !lacks.is_empty() {
        let names: Vec<_> = lacks.iter_names().map(|(name, _)| name.to_lowercase()).collect();
        return report(place, behaviour, &format!("no {}", names.join(", ")));
    }
    match catch_unwind(AssertUnwindSafe(|| (behaviour.run)(place))) {
        Ok(()) => report(place, behaviour, "yes"),
        Err(panic) => {
            report(place, behaviour, "FAILED");
            resume_unwind(panic)
        }
    }
}

/// One write per line, since several processes append to the file.
fn report(place: &Place, behaviour: &Behaviour, result: &str) {
    let Some(path) = std::env::var_os("BAREWIRE_TEST_REPORT") else { return };
    let line = format!("{}\t{}\t{}\t{result}\n", place.name, behaviour.module, behaviour.name);
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the report is written");
}
