//! Ends that close while messages are on their way.

use std::time::Instant;

use super::{CANARY, LENGTHS, Run, SIZE, SPACE, all_steps};
use crate::pair::DEADLINE;

/// Closes one end at every step. The other one completes what it has, or fails.
fn an_end_closes(is_sender: bool) {
    let all = all_steps(2);
    let mut left = Vec::new();
    for at in 0..=all {
        let mut run = Run::new(2);
        run.steps(at);
        if is_sender {
            run.sender = None;
            run.sending.clear();
        } else {
            run.receiver = None;
            run.receiving.clear();
        }
        run.steps(100);
        left.push((at, run));
    }
    let end = usize::from(is_sender);
    for (at, mut run) in left {
        let begun = Instant::now();
        loop {
            run.step();
            let rest = if is_sender {
                run.receiving.is_empty()
            } else {
                run.sending.is_empty() && run.next == LENGTHS.len()
            };
            if rest || run.errors[end].is_some() {
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "step {at}");
        }
        if let Some(error) = &run.errors[end] {
            assert!(error.contains("closed"), "{error}");
            // What was received was sent, even if the last acknowledgement is missing.
            let lost = run.sending.iter().find(|(_, message)| run.arrived[*message]);
            assert_eq!(lost, None, "step {at}");
        }
        // What was received was overwritten; the rest may be there in part, inside its buffer.
        let mut bytes = vec![0; SIZE];
        run.target.read(0, &mut bytes).unwrap();
        for (at, length) in LENGTHS.iter().enumerate() {
            let rest = &bytes[at * SPACE + length..(at + 1) * SPACE];
            assert!(rest.iter().all(|byte| *byte == CANARY));
        }
    }
}

#[test]
fn a_sender_closes_at_every_step() {
    an_end_closes(true);
}

#[test]
fn a_receiver_closes_at_every_step() {
    an_end_closes(false);
}
