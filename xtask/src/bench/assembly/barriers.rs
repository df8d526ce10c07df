//! The order of barriers in aarch64 code: `mlx5/src/barrier.rs` and what hardware.md and rdma-core
//! demand of a doorbell and of a completion.
//!
//! A doorbell is: the WQE's stores, `dmb oshst`, the doorbell record (`stlr`), `dsb st`, the stores
//! to the register, and `hint #6` (DGH) or `dsb st`. A completion is read after `dmb oshld`, which
//! follows the test of its owner bit.

use super::program::{Function, Instruction};

/// How many orders were checked.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) doorbells: usize,
    pub(super) polls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Store,
    Record,
    WqeBeforeRecord,
    /// Before the register, and after it if the register was written partly.
    StoresDone,
    GatheringEnds,
}

fn event(instruction: &Instruction) -> Option<Event> {
    match (instruction.mnemonic.as_str(), instruction.operands.as_str()) {
        ("stlr", _) => Some(Event::Record),
        ("dmb", "oshst") => Some(Event::WqeBeforeRecord),
        ("dsb", "st") => Some(Event::StoresDone),
        ("hint", "#0x6") | ("dgh", _) => Some(Event::GatheringEnds),
        (store, _) if store.starts_with("st") => Some(Event::Store),
        _ => None,
    }
}

/// Returns what is missing in a function, and counts what is there.
pub(super) fn complaints(function: &Function, found: &mut Found) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |what: &str| complaints.push(format!("aarch64: {}: {what}", function.name));
    let events: Vec<Event> = function.instructions.iter().filter_map(event).collect();
    for (at, _) in events.iter().enumerate().filter(|(_, event)| **event == Event::Record) {
        if at == 0 || events[at - 1] != Event::WqeBeforeRecord {
            complain("no dmb oshst between the WQE and the doorbell record");
        }
        // Receive queues have a record and no register.
        if function.name.contains("receive") {
            continue;
        }
        found.doorbells += 1;
        let after = &events[at + 1..];
        let stores = after.iter().skip(1).take_while(|event| **event == Event::Store).count();
        if after.first() != Some(&Event::StoresDone) {
            complain("no dsb st between the doorbell record and the register");
        } else if stores == 0 {
            complain("no store to the register");
        } else if !matches!(after.get(stores + 1), Some(Event::GatheringEnds | Event::StoresDone)) {
            complain("neither hint #6 nor dsb st after the register");
        }
    }
    // The owner bit is bit 56 of the last word of a CQE, here 64 bytes.
    let owner = |i: &Instruction| {
        matches!(i.mnemonic.as_str(), "tbnz" | "tbz") && i.operands.contains("#56,")
    };
    if let Some(at) = function.instructions.iter().position(owner) {
        found.polls += 1;
        let mut after = function.instructions[at + 1..].iter();
        let next = after.find(|i| i.mnemonic.starts_with("ld") || i.operands == "oshld");
        if next.is_none_or(|next| next.operands != "oshld") {
            complain("no dmb oshld between the owner bit and the completion");
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::program;
    use super::*;

    fn judged(name: &str, code: &[&str]) -> Vec<String> {
        let lines: Vec<String> =
            code.iter().enumerate().map(|(at, code)| format!(" {:x}:\t{code}", 4 * at)).collect();
        let program = program(&format!("0000000000000000 <{name}>:\n{}\n", lines.join("\n")));
        complaints(program.exported(name).unwrap(), &mut Found::default())
    }

    const DOORBELL: [&str; 8] = [
        "str\tq3, [x10]",
        "dmb\toshst",
        "ldr\tx11, [x0, #16]",
        "stlr\tw10, [x11]",
        "dsb\tst",
        "str\tq3, [x11]",
        "hint\t#0x6",
        "str\tx11, [x10, #16]",
    ];

    #[test]
    fn a_doorbell_needs_each_of_its_barriers() {
        assert_eq!(judged("held_write_8", &DOORBELL), [""; 0]);
        for (without, complaint) in [(1, "dmb oshst"), (4, "dsb st"), (5, "store"), (6, "hint #6")]
        {
            let code: Vec<&str> = DOORBELL
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != without)
                .map(|(_, i)| *i)
                .collect();
            let judged = judged("held_write_8", &code);
            assert!(judged.len() == 1 && judged[0].contains(complaint), "{without}: {judged:?}");
        }
        let mut late = DOORBELL;
        late.swap(0, 1);
        assert_eq!(
            judged("held_write_8", &late).len(),
            1,
            "a store between dmb oshst and the record"
        );
    }

    #[test]
    fn a_receive_queue_has_no_register() {
        assert_eq!(judged("held_receive", &DOORBELL[..4]), [""; 0]);
        assert_eq!(judged("held_receive", &DOORBELL[2..4]).len(), 1);
    }

    #[test]
    fn a_completion_is_read_after_the_barrier() {
        let poll = ["ldr\tx8, [x8, #56]", "tbnz\tx1, #56, 18 <x>", "dmb\toshld", "ldr\tx8, [x0]"];
        assert_eq!(judged("held_poll", &poll), [""; 0]);
        let late = [poll[0], poll[1], poll[3], poll[2]];
        assert_eq!(judged("held_poll", &late).len(), 1);
        assert_eq!(judged("held_poll", &poll[..2]).len(), 1);
    }
}
