//! Rank 0 hands out tasks, and the other ranks do them. The last rank leaves in the middle of its
//! first task, which another rank then does. `barewire run -n 4 target/debug/examples/work_queue`,
//! or `mpirun -n 4 ...`

use barewire::Report;
use barewire_bootstrap::{Bootstrap, all_gather, detect};
use barewire_wireup::address::WorkerAddress;
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, TagLink, Tags};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Report>;
const TIMEOUT: Duration = Duration::from_mins(1);
/// The longest sleep: a send or a receive may have made the progress that it would wait for.
const TICK: Duration = Duration::from_millis(10);
const TASKS: u64 = 300;
/// There is no task to report, or to do.
const NONE: u64 = u64::MAX;
/// Tags of a worker's result, which also asks for a task, and of a task.
const READY: u64 = 1;
const TASK: u64 = 2;

fn main() -> Result<()> {
    let mut job = detect()?;
    if job.size() < 2 {
        return Err(Report::new("start two ranks or more: barewire run -n 4 -- work_queue"));
    }
    let mut node = Node::open(&Rules::from_env()?)?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let addresses = all_gather(&mut *job, "address", node.address().as_bytes(), TIMEOUT)?;
    match job.rank() {
        0 => lead(&mut node, &tags, &addresses[1..]),
        _ => work(job, &mut node, &tags, &addresses[0]),
    }
}

fn connect(node: &mut Node, tags: &Tags, address: &[u8]) -> Result<(Link, TagLink)> {
    let link = node.connect(&WorkerAddress::from_bytes(address)?, Options::default())?;
    Ok((link.clone(), tags.link(&link)?))
}

// ANCHOR: sleep
/// Sleeps until `done` returns true. Ends with the link.
fn until(node: &mut Node, tags: &Tags, link: &TagLink, done: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        // A receive may match messages of any link, so it does not end with one.
        tags.failure(link).map_or(Ok(()), Err)?;
        if start.elapsed() > TIMEOUT {
            return Err(Report::new("the peer does not reply"));
        }
        tags.wait(node, Some(TICK))?;
    }
    Ok(())
}

fn complete(node: &mut Node, tags: &Tags, link: &TagLink, request: &Request) -> Result<()> {
    until(node, tags, link, || request.poll().is_some())?;
    Ok(request.poll().transpose().map(|_| ())?)
}
// ANCHOR_END: sleep

fn word(buffer: &Buffer, offset: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(buffer.to_vec()[offset..offset + 8].try_into()?))
}

fn lead(node: &mut Node, tags: &Tags, addresses: &[Vec<u8>]) -> Result<()> {
    let links: Vec<_> =
        addresses.iter().map(|address| connect(node, tags, address)).collect::<Result<_>>()?;
    // The task of each worker; `None` for one that has left.
    let mut current = vec![Some(NONE); links.len()];
    let (mut tasks, mut idle) = ((0..TASKS).collect::<VecDeque<u64>>(), Vec::new());
    let (mut done, mut sum, mut started) = (0, 0, false);
    let report = Buffer::new(16)?;
    while done < TASKS && current.iter().any(Option::is_some) {
        tags.wait(node, Some(TICK))?;
        for (worker, (_, link)) in links.iter().enumerate() {
            if let (Some(error), Some(task)) = (tags.failure(link), current[worker]) {
                println!("rank {} has left with task {task}: {error}", worker + 1);
                current[worker] = None;
                idle.retain(|&other| other != worker);
                tasks.extend((task != NONE).then_some(task));
            }
        }
        while let Some(found) = tags.probe(READY, FULL_MASK) {
            let from = found.envelope().link;
            let worker = links.iter().position(|(_, link)| link.key() == from);
            let worker = worker.ok_or_else(|| Report::new("a message of a stranger"))?;
            complete(node, tags, &links[worker].1, &found.receive(&report))?;
            done += u64::from(word(&report, 0)? != NONE);
            sum += word(&report, 8)?;
            idle.push(worker);
        }
        // The first tasks wait for every worker that is left, so that each gets one.
        started |= idle.len() == current.iter().flatten().count();
        let ready = if started { idle.len().min(tasks.len()) } else { 0 };
        for (worker, task) in idle.drain(..ready).zip(tasks.drain(..ready)) {
            current[worker] = Some(task);
            drop(tags.send(&links[worker].1, TASK, &task.to_le_bytes(), Mode::Auto));
        }
    }
    println!("{done} tasks, sum {sum}");
    for ((link, tag_link), _) in links.iter().zip(&current).filter(|(_, task)| task.is_some()) {
        drop(tags.send(tag_link, TASK, &NONE.to_le_bytes(), Mode::Auto));
        until(node, tags, tag_link, || {
            matches!(link.state(), State::Closed(_) | State::Failed(_))
        })?;
    }
    Ok(())
}

fn work(job: Box<dyn Bootstrap>, node: &mut Node, tags: &Tags, leader: &[u8]) -> Result<()> {
    let (link, leader) = connect(node, tags, leader)?;
    let buffer = Buffer::new(8)?;
    let mut report = [NONE, 0];
    loop {
        let task = tags.receive(TASK, FULL_MASK, &buffer);
        drop(tags.send(&leader, READY, &report.map(u64::to_le_bytes).concat()[..], Mode::Auto));
        complete(node, tags, &leader, &task)?;
        report = [word(&buffer, 0)?, 0];
        if report[0] == NONE {
            break;
        }
        if job.size() > 2 && job.rank() + 1 == job.size() {
            // After a crash the launcher would end the whole job, so it is left in order.
            drop(job);
            std::process::exit(0);
        }
        report[1] = report[0] * report[0];
    }
    link.close(CloseMode::Flush);
    until(node, tags, &leader, || matches!(link.state(), State::Closed(_) | State::Failed(_)))
}
