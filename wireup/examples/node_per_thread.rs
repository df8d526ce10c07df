//! Ranks with a node per thread: thread 1 of a rank has links to the threads 1 of the others.
//!
//! `barewire run -n 3 -- target/debug/examples/node_per_thread`

use barewire::Report;
use barewire_bootstrap::Bootstrap;
use barewire_wireup::{Node, Peers, Rules};
use std::sync::{Barrier, Mutex};
use std::time::Duration;
use std::{cell::Cell, rc::Rc, thread};

const TIMEOUT: Duration = Duration::from_mins(1);
const THREADS: usize = 2;
const HELLO: u8 = 0;

// ANCHOR: turns
type Job = Mutex<Box<dyn Bootstrap>>;

/// Has the threads use the job in turn: every rank has to use it in the same order.
fn in_turn<R>(
    number: usize,
    turns: &Barrier,
    job: &Job,
    run: impl FnOnce(&mut dyn Bootstrap) -> R,
) -> R {
    for _ in 0..number {
        turns.wait();
    }
    let result = run(&mut **job.lock().expect("no thread panics"));
    for _ in number..THREADS {
        turns.wait();
    }
    result
}

fn work(number: usize, turns: &Barrier, job: &Job) -> Result<(), Report> {
    let mut node = Node::open(&Rules::from_env()?)?;
    let from = Rc::new(Cell::new(None));
    let seen = Rc::clone(&from);
    node.set_handler(HELLO, move |message| {
        seen.set(message.split_short().map(|(rank, _)| rank));
    })?;
    // The nodes of one name are each other's peers.
    let name = format!("thread-{number}");
    let exchange = |job: &mut dyn Bootstrap| Peers::exchange_as(&mut node, job, &name, TIMEOUT);
    let peers = in_turn(number, turns, job, exchange)?;
    let link = peers.connect(&mut node, (peers.rank() + 1) % peers.size(), TIMEOUT)?;
    node.post(|| link.am_short(HELLO, peers.rank().into(), &[]))?;
    let greeted = node.until(TIMEOUT, || from.get().is_some());
    // Until then, others may need this node.
    in_turn(number, turns, job, |job| peers.fence(&mut node, job, TIMEOUT))?;
    match from.get().filter(|_| greeted) {
        Some(from) => println!("rank {}: thread {number} of rank {from} says hello", peers.rank()),
        None => return Err(Report::new("no hello")),
    }
    Ok(())
}

fn main() -> Result<(), Report> {
    let (job, turns) = (Mutex::new(barewire_bootstrap::detect()?), Barrier::new(THREADS));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (job, turns) = (&job, &turns);
            scope.spawn(move || {
                if let Err(error) = work(number, turns, job) {
                    eprintln!("thread {number}: {error}");
                    std::process::exit(1); // Other threads and ranks wait for this thread.
                }
            });
        }
    });
    Ok(())
}
// ANCHOR_END: turns
