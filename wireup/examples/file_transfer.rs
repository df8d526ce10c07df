//! Rank 0 sends a file to rank 1, which writes each part when it arrives.
//!
//! `barewire run -n 2 -- target/debug/examples/file_transfer FROM TO`

use barewire::Report;
use barewire_wireup::link::{CloseMode, State};
use barewire_wireup::{Node, Peers, Rules};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
/// The handlers of the parts, which arrive in order, and of the length of the file.
const PART: u8 = 0;
const END: u8 = 1;
/// Bytes of a part, which every transport sends in one message.
const LENGTH: usize = 4000;

fn main() -> Result<(), Report> {
    let mut files = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (files.next(), files.next()) else {
        return Err(Report::new("usage: file_transfer FROM TO"));
    };
    let mut job = barewire_bootstrap::detect()?;
    if job.size() != 2 {
        return Err(Report::new("start two ranks"));
    }
    let mut node = Node::open(&Rules::from_env()?)?;
    if job.rank() == 0 {
        // ANCHOR: send
        let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
        let link = peers.connect(&mut node, 1, TIMEOUT)?;
        let (mut file, mut part, mut total) = (File::open(from)?, [0; LENGTH], 0);
        loop {
            let length = file.read(&mut part)?;
            if length == 0 {
                break;
            }
            let fill = |buffer: &mut [u8]| {
                buffer[..length].copy_from_slice(&part[..length]);
                length
            };
            node.post(|| link.am_bcopy(PART, fill))?;
            total += length as u64;
        }
        node.post(|| link.am_short(END, total, &[]))?;
        // The receiver closes when it has everything.
        while !matches!(link.state(), State::Closed(_)) {
            link.error().map_or(Ok(()), Err)?;
            node.wait(Some(TIMEOUT))?;
        }
        println!("sent {total} bytes");
        // ANCHOR_END: send
    } else {
        // ANCHOR: receive
        let mut file = File::create(to)?;
        let (written, end) = (Rc::new(RefCell::new((0, Ok(())))), Rc::new(Cell::new(None)));
        let (writing, ended) = (Rc::clone(&written), Rc::clone(&end));
        node.set_handler(PART, move |message| {
            let (bytes, outcome) = &mut *writing.borrow_mut();
            // After an error, nothing more is written.
            if outcome.is_ok() {
                *outcome = file.write_all(message.data());
                *bytes += message.data().len() as u64;
            }
        })?;
        node.set_handler(END, move |message| {
            ended.set(message.split_short().map(|(total, _)| total));
        })?;
        let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
        let link = peers.connect(&mut node, 0, TIMEOUT)?;
        link.until(&mut node, TIMEOUT, || end.get().is_some())?;
        let (bytes, outcome) = written.replace((0, Ok(())));
        outcome?;
        if end.get() != Some(bytes) {
            return Err(Report::new(format!("{bytes} bytes arrived of {:?}", end.get())));
        }
        link.close(CloseMode::Flush);
        node.until(TIMEOUT, || matches!(link.state(), State::Closed(_) | State::Failed(_)));
        println!("received {bytes} bytes");
        // ANCHOR_END: receive
    }
    Ok(())
}
