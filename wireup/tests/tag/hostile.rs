//! A member of the job sends tagged messages and greetings in the name of another one.

use std::time::Instant;

use barewire::PostError;
use barewire_wireup::link::{Link, State};
use barewire_wireup::plan::Kind;
use barewire_wireup::tag::message::VERSION;
use barewire_wireup::tag::{Buffer, FULL_MASK, HANDLER, Mode, Request, TagLink, protocol};

use crate::nodes::{Side, TAGGED};
use crate::support::DEADLINE;

const SETS: [&[&str]; 3] = [&["shm"], &["tcp/lo"], &["rc_mlx5/soft0:1", "tcp/lo", TAGGED]];

fn until(sides: &mut [Side], what: &str, mut done: impl FnMut(&[Side]) -> bool) {
    let begun = Instant::now();
    while !done(sides) {
        for side in &mut *sides {
            side.tags.progress(&mut side.node);
        }
        assert!(begun.elapsed() < DEADLINE, "not within the deadline: {what}");
    }
}

fn finish(sides: &mut [Side], requests: &[&Request]) {
    until(sides, "the requests", |_| requests.iter().all(|request| request.poll().is_some()));
    for request in requests {
        assert!(request.poll().is_some_and(|result| result.is_ok()), "{request:?}");
    }
}

/// The first two of three nodes have a link with tags. The last one is hostile, and has a link to
/// the first.
struct Job {
    sides: Vec<Side>,
    ours: TagLink,
    theirs: TagLink,
    hostile: Link,
    of_hostile: TagLink,
}

impl Job {
    fn new(names: &[&str]) -> Self {
        let mut sides: Vec<_> = (0..3).map(|_| Side::new(names)).collect();
        let [a, b, c] = &mut sides[..] else { panic!("three") };
        let (first, hostile) = (a.connect(b), c.connect(a));
        let links = [&first, &hostile];
        until(&mut sides, "connected", |sides| {
            links.iter().all(|link| link.state() == State::Connected)
                && !sides[0].incoming.borrow().is_empty()
                && !sides[1].incoming.borrow().is_empty()
        });
        let attach = |side: &Side, link: &Link| side.tags.link(link).expect("a link");
        let ours = attach(&sides[0], &first);
        let theirs = attach(&sides[1], &sides[1].next_link().expect("announced"));
        let at_hostile = attach(&sides[2], &hostile);
        let of_hostile = attach(&sides[0], &sides[0].next_link().expect("announced"));
        let job = Self { sides, ours, theirs, hostile, of_hostile };
        job.exchange(at_hostile)
    }

    /// A message on both links, so that they are open.
    fn exchange(mut self, at_hostile: TagLink) -> Self {
        let target = Buffer::new(64).expect("memory");
        for (at, link) in [(1, self.theirs.clone()), (2, at_hostile)] {
            let receive = self.sides[0].tags.receive(1, FULL_MASK, &target);
            let send = self.sides[at].tags.send(&link, 1, b"hello", Mode::Auto);
            finish(&mut self.sides, &[&receive, &send]);
            // Any tag, but no other link.
            let envelope = receive.poll().expect("complete").expect("received");
            let expected = if at == 1 { &self.ours } else { &self.of_hostile };
            assert_eq!(envelope.link, expected.key());
        }
        self
    }

    /// The hostile node sends these bytes to the handler of tags.
    fn forge(&mut self, bytes: &[u8]) {
        let pack = |room: &mut [u8]| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let lane = self.hostile.lane(Kind::Messages).expect("connected").clone();
        until(&mut self.sides, "room", |_| match lane.am_bcopy(HANDLER, pack) {
            Err(PostError::NoResource) => false,
            sent => sent.is_ok(),
        });
    }

    /// What the first node gets from the second one, and from no other.
    fn check(&mut self, tag: u64) {
        let target = Buffer::new(64).expect("memory");
        let receive = self.sides[0].tags.receive(tag, FULL_MASK, &target);
        let send = self.sides[1].tags.send(&self.theirs, tag, b"of B", Mode::Auto);
        finish(&mut self.sides, &[&receive, &send]);
        let envelope = receive.poll().expect("complete").expect("received");
        assert_eq!((envelope.link, envelope.length), (self.ours.key(), 4));
        assert_eq!(&target.to_vec()[..4], b"of B");
        assert_eq!(self.sides[0].tags.failure(&self.ours), None);
    }
}

/// A header of the tag protocol, with credit.
fn header(kind: u8, number: u8, link: u64) -> Vec<u8> {
    let mut bytes = 7_u64.to_le_bytes().to_vec();
    bytes.extend([kind | 1 << 7, number]);
    bytes.extend(&link.to_le_bytes()[..6]);
    bytes.extend((256_u32 << 10).to_le_bytes());
    bytes.extend(64_u32.to_le_bytes());
    bytes
}

#[test]
fn messages_for_a_link_whose_number_the_sender_does_not_have_are_dropped() {
    for names in SETS {
        let mut job = Job::new(names);
        // Small numbers, and those near the number of the sender's link, name no other link.
        let own = job.of_hostile.opening().link;
        let guesses: Vec<u64> = (1..5)
            .flat_map(|step| [own.wrapping_add(step), own.wrapping_sub(step)])
            .chain(0..8)
            .collect();
        assert!(!guesses.contains(&job.ours.opening().link));
        let before = job.sides[0].tags.counters().stray;
        for kind in 1..10 {
            for guess in &guesses {
                for number in 0..3 {
                    job.forge(&[&header(kind, number, *guess)[..], b"of C"].concat());
                }
            }
        }
        let sent = 9 * guesses.len() as u64 * 3;
        until(&mut job.sides, "all of them", |sides| {
            sides[0].tags.counters().stray == before + sent
        });
        job.check(7);
    }
}

#[test]
fn greetings_for_a_link_whose_number_the_sender_does_not_have_are_dropped() {
    for names in SETS {
        let mut job = Job::new(names);
        let [a, b, _] = &mut job.sides[..] else { panic!("three") };
        let link = a.connect(b);
        until(&mut job.sides, "connected", |sides| {
            link.state() == State::Connected && !sides[1].incoming.borrow().is_empty()
        });
        let opening = job.of_hostile.opening();
        let opening = protocol::Opening { link: opening.link ^ 0x55, ..opening };
        for guess in 0..200_u64 {
            let own = opening.link.wrapping_add(guess);
            for link in [guess, own] {
                let greeting =
                    [&link.to_le_bytes()[..], &[0, VERSION], &opening.to_bytes()].concat();
                job.forge(&greeting);
            }
        }
        let ours = job.sides[0].tags.link(&link).expect("a link");
        let back = job.sides[1].next_link().expect("announced");
        let theirs = job.sides[1].tags.link(&back).expect("a link");
        let target = Buffer::new(64).expect("memory");
        let receive = job.sides[1].tags.receive(9, FULL_MASK, &target);
        let send = job.sides[0].tags.send(&ours, 9, b"to B", Mode::Auto);
        finish(&mut job.sides, &[&receive, &send]);
        let envelope = receive.poll().expect("complete").expect("received");
        assert_eq!(envelope.link, theirs.key());
        job.check(7);
    }
}

/// The immediate of a tagged message has only a part of the number, which the sender may guess: the
/// queue pair on which it arrives decides.
#[test]
fn a_tagged_message_counts_for_the_link_on_whose_queue_pair_it_arrives() {
    let mut job = Job::new(SETS[2]);
    let immediate = protocol::immediate(job.ours.opening().link);
    let lane = job.hostile.lane(Kind::Messages).expect("connected").clone();
    let before = job.sides[0].tags.counters().stray;
    for immediate in [immediate, immediate | protocol::ANNOUNCED] {
        let pack = |room: &mut [u8]| {
            room[..4].copy_from_slice(b"of C");
            4
        };
        until(&mut job.sides, "room", |_| lane.tag_bcopy(7, immediate, pack).is_ok());
    }
    until(&mut job.sides, "both", |sides| sides[0].tags.counters().stray == before + 2);
    assert_eq!(job.sides[0].tags.peek(7, FULL_MASK), None);
    job.check(7);
}

/// The window bounds what a peer leaves here, and what breaks the rules ends its own link.
#[test]
fn a_flood_of_tagged_messages_ends_the_link_of_its_sender_only() {
    // The window ends by its bytes, and by its messages.
    for (names, length) in [(&SETS[0], 4000), (&SETS[1], 4000), (&SETS[0], 8), (&SETS[1], 8)] {
        let mut job = Job::new(names);
        let own = job.of_hostile.opening().link;
        // Its first message had the number 0.
        for number in 1..2000_u32 {
            job.forge(&[&header(1, number as u8, own)[..], &vec![3; length]].concat());
        }
        until(&mut job.sides, "the end of its link", |sides| {
            sides[0].tags.failure(&job.of_hostile).is_some()
        });
        let counters = job.sides[0].tags.counters();
        assert!(counters.unexpected_messages <= 1024, "{counters:?}");
        assert!(counters.unexpected_bytes <= 256 << 10, "{counters:?}");
        job.check(8);
    }
}
