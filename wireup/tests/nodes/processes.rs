//! Two processes that have only the bytes of an address.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use barewire_wireup::address::WorkerAddress;
use barewire_wireup::link::{CloseMode, Options, State};

use crate::support::{DEADLINE, SETS, Side, rules, send, until, until_connected};

const ADDRESS: &str = "BAREWIRE_TEST_PEER";
const NAMES: &str = "BAREWIRE_TEST_NAMES";
const MESSAGES: u64 = 200;

/// Starts this test binary as the other process.
fn child(names: &[&str], address: &WorkerAddress) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::the_other_process", "--nocapture"])
        .env(ADDRESS, address.to_string())
        .env(NAMES, names.join(" "))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Connects, sends, receives and closes, in the process that [`child`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let (Ok(address), Ok(names)) = (std::env::var(ADDRESS), std::env::var(NAMES)) else { return };
    let names: Vec<&str> = names.split(' ').collect();
    let mut sides = [Side::new(&rules(&names))];
    let link = sides[0].node.connect(&address.parse().unwrap(), Options::default()).unwrap();
    until_connected(&mut sides, &[&link]);
    for number in 0..MESSAGES {
        send(&mut sides, &link, number);
    }
    until(&mut sides, "replies", |sides| sides[0].received.borrow().len() as u64 == MESSAGES);
    link.close(CloseMode::Flush);
    until(&mut sides, "closed", |_| matches!(link.state(), State::Closed(_)));
}

#[test]
fn two_processes_exchange_messages_and_close() {
    for names in SETS {
        let mut sides = [Side::new(&rules(names))];
        let mut child = child(names, &sides[0].node.address());
        until(&mut sides, "the child's link", |sides| sides[0].incoming.borrow().len() == 1);
        let link = sides[0].incoming.borrow()[0].clone();
        until(&mut sides, "messages", |sides| sides[0].received.borrow().len() as u64 == MESSAGES);
        assert_eq!(*sides[0].received.borrow(), (0..MESSAGES).collect::<Vec<_>>(), "{names:?}");
        for number in 0..MESSAGES {
            send(&mut sides, &link, number);
        }
        until(&mut sides, "closed", |_| matches!(link.state(), State::Closed(_)));
        let mut status = None;
        until(&mut sides, "the child's end", |_| {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{names:?}");
    }
}

#[test]
fn a_process_that_is_killed_is_noticed() {
    for names in [&["shm"][..], &["tcp/lo"]] {
        let mut sides = [Side::new(&rules(names))];
        let mut child = child(names, &sides[0].node.address());
        until(&mut sides, "the child's link", |sides| sides[0].incoming.borrow().len() == 1);
        let link = sides[0].incoming.borrow()[0].clone();
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        // Asleep: the kernel reports the end of the peer.
        while link.state() == State::Connected {
            sides[0].node.wait(Some(DEADLINE)).unwrap();
            assert!(start.elapsed() < DEADLINE, "{names:?}");
        }
        assert!(matches!(link.state(), State::Failed(_)), "{names:?}: {:?}", link.state());
    }
}
