//! Two ends over a simulated network that loses, duplicates, delays and reorders packets, by seed,
//! with a simulated clock.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{
    ACK_NOW, Accepted, Acknowledged, Header, Kind, Overdue, Patience, Receiver, Sender, Sequence,
    TICK, Time,
};

/// Probabilities in 1/1000, and the largest extra delay of a packet in ticks.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lose: u64,
    double: u64,
    late: Time,
    /// The receiver has no room for messages that came too early.
    full: u64,
    /// The wire drops all packets from this time on, for this long.
    cut: Option<(Time, Time)>,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn chance(&mut self, of_1000: u64) -> bool {
        self.next() % 1000 < of_1000
    }
}

/// A message's bytes are its number, so that checking the content also checks the order.
type Payload = [u8; 8];

struct End {
    sender: Sender<Payload>,
    receiver: Receiver<Payload>,
    /// Messages that are still to be sent.
    to_send: VecDeque<u64>,
    got: Vec<u64>,
    done: u64,
    given_up: Option<Time>,
}

struct World {
    now: Time,
    random: Random,
    faults: Faults,
    ends: [End; 2],
    /// Packets in flight to an end, by time and a number that makes the key unique.
    wire: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    carried: u64,
}

const PATIENCE: Patience = Patience { between: 268 * TICK, whole: 30_000 * TICK };

impl World {
    fn new(seed: u64, faults: Faults, messages: [u64; 2]) -> Self {
        let end = |messages| End {
            sender: Sender::new(PATIENCE),
            receiver: Receiver::new(),
            to_send: (0..messages).collect(),
            got: Vec::new(),
            done: 0,
            given_up: None,
        };
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { now: 0, random, faults, ends: messages.map(end), wire: BTreeMap::new(), carried: 0 }
    }

    fn send(&mut self, from: usize, packet: &[u8]) {
        if self.faults.cut.is_some_and(|(start, long)| (start..start + long).contains(&self.now)) {
            return;
        }
        let copies = 1 + u32::from(self.random.chance(self.faults.double));
        for _ in 0..copies {
            if self.random.chance(self.faults.lose) {
                continue;
            }
            let late = self.random.next() % (self.faults.late + 1);
            self.carried += 1;
            self.wire.insert((self.now + 1 + late, self.carried), (1 - from, packet.to_vec()));
        }
    }

    fn message(&mut self, from: usize, sequence: Sequence, payload: Payload, flags: u8) {
        let end = &mut self.ends[from];
        let expected = end.receiver.expected();
        end.receiver.told();
        let header = Header { kind: Kind::Message, id: 0, flags, to: 0, sequence, expected };
        self.send(from, &[&header.to_bytes()[..], &payload].concat());
    }

    fn arrive(&mut self, at: usize, packet: &[u8]) {
        let (header, body) = Header::parse(packet).unwrap();
        let end = &mut self.ends[at];
        let told = match header.kind {
            Kind::Acknowledge => Acknowledged::parse(&header, body).unwrap(),
            _ => Acknowledged::of(&header),
        };
        let now = self.now;
        end.sender.acknowledged(told, || now);
        while let Some(payload) = end.sender.take_done() {
            assert_eq!(u64::from_le_bytes(payload), end.done, "done in order, each once");
            end.done += 1;
        }
        if header.kind != Kind::Message {
            return;
        }
        let payload: Payload = body.try_into().unwrap();
        let room = !self.random.chance(self.faults.full);
        if let Accepted::Next(payload) =
            end.receiver.accept(header.sequence, payload, header.flags & ACK_NOW != 0, || room)
        {
            end.got.push(u64::from_le_bytes(payload));
            while let Some(payload) = end.receiver.next_held() {
                end.got.push(u64::from_le_bytes(payload));
            }
        }
    }

    /// Does what progress of one end does.
    fn turn(&mut self, at: usize) {
        match self.ends[at].sender.look(self.now) {
            Overdue::GivenUp { .. } => {
                self.ends[at].given_up.get_or_insert(self.now);
            }
            Overdue::No | Overdue::Lost => {}
        }
        while let Some((sequence, &mut payload)) = self.ends[at].sender.next_lost() {
            self.ends[at].sender.resent();
            self.message(at, sequence, payload, ACK_NOW);
        }
        while self.ends[at].sender.has_room()
            && let Some(number) = self.ends[at].to_send.pop_front()
        {
            let sequence = self.ends[at].sender.next();
            let now = self.now;
            self.ends[at].sender.push(number.to_le_bytes(), || now);
            self.message(at, sequence, number.to_le_bytes(), 0);
        }
        if self.random.chance(self.faults.full / 50) {
            self.ends[at].receiver.drain().for_each(drop);
        }
        if self.ends[at].receiver.owes() {
            let packet = self.ends[at].receiver.acknowledge().to_packet(0);
            self.send(at, &packet);
        }
    }

    /// Runs until both ends have everything, or one gave up.
    fn run(&mut self) {
        let wanted = [self.ends[1].to_send.len(), self.ends[0].to_send.len()];
        let finished = |world: &Self| {
            let ends = world.ends.iter().zip(wanted);
            ends.into_iter().all(|(end, wanted)| {
                end.got.len() == wanted && end.sender.is_idle() && end.to_send.is_empty()
            })
        };
        while !finished(self) && self.ends.iter().all(|end| end.given_up.is_none()) {
            assert!(self.now < 3_600_000 * TICK, "an hour has passed");
            while let Some((&(time, number), _)) = self.wire.first_key_value()
                && time <= self.now
                && let Some((at, packet)) = self.wire.remove(&(time, number))
            {
                self.arrive(at, &packet);
            }
            (0..2).for_each(|at| self.turn(at));
            // Advances to the next event, or by a tick.
            let next = self.wire.first_key_value().map_or(Time::MAX, |(&(time, _), _)| time);
            self.now = next.clamp(self.now + 1, self.now + TICK);
        }
        let all_arrived = self.ends.iter().all(|end| end.given_up.is_none());
        for (end, wanted) in self.ends.iter().zip(wanted) {
            let wanted = if all_arrived { wanted } else { end.got.len() };
            assert!(end.got.iter().copied().eq(0..wanted as u64), "each once, in order");
        }
    }
}

#[test]
fn nothing_is_sent_twice_over_a_good_wire() {
    let good = Faults { lose: 0, double: 0, late: 0, full: 0, cut: None };
    let mut world = World::new(1, good, [10_000, 10_000]);
    world.run();
    assert_eq!(world.ends.each_ref().map(|end| end.sender.resends()), [0, 0]);
    assert!(
        world.carried < 41_000,
        "at most an acknowledgement for each message: {}",
        world.carried
    );
}

#[test]
fn one_percent_of_loss_costs_little() {
    let lossy = Faults { lose: 10, double: 0, late: 0, full: 0, cut: None };
    let mut world = World::new(2, lossy, [20_000, 0]);
    world.run();
    let resends = world.ends[0].sender.resends();
    assert!((150..400).contains(&resends), "about those that were lost: {resends}");
}

#[test]
fn a_cut_that_ends_is_survived_and_one_that_does_not_is_noticed() {
    let cut = |long| Faults { lose: 0, double: 0, late: 0, full: 0, cut: Some((20, long)) };
    let mut world = World::new(3, cut(5_000 * TICK), [5000, 5000]);
    world.run();
    assert!(world.ends.iter().all(|end| end.given_up.is_none()));
    let mut world = World::new(3, cut(Time::MAX / 2), [5000, 0]);
    world.run();
    let given_up = world.ends[0].given_up.unwrap();
    assert!(
        (PATIENCE.whole..PATIENCE.whole + 2 * PATIENCE.between).contains(&given_up),
        "{given_up}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each message arrives once, in order, over any wire that does not lose nearly everything.
    #[test]
    fn arrives_once_and_in_order(
        seed: u64, lose in 0u64..400, double in 0u64..300, late in 0u64..200_000, full in 0u64..1000, here in 0u64..300, there in 0u64..300,
    ) {
        let mut world = World::new(seed, Faults { lose, double, late, full, cut: None }, [here, there]);
        world.run();
        prop_assert!(world.ends.iter().all(|end| end.given_up.is_none()));
    }

    /// Forged acknowledgements complete nothing that was not sent, and do not panic.
    #[test]
    fn any_acknowledgements(sent in 0u32..64, told in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<bool>()), 1..50)) {
        let mut sender = Sender::new(PATIENCE);
        let mut pushed = 0;
        let (mut done, mut now) = (0, 0);
        for (expected, beyond, near) in told {
            while pushed < sent && sender.has_room() {
                sender.push(pushed, || now);
                pushed += 1;
            }
            let expected = Sequence(if near { expected % 80 } else { expected });
            sender.acknowledged(Acknowledged { expected, beyond }, || now);
            while let Some(message) = sender.take_done() {
                prop_assert_eq!(message, done);
                done += 1;
            }
            while sender.next_lost().is_some() {
                sender.resent();
            }
            now += 50 * TICK;
            let _ = sender.look(now);
            prop_assert!(done <= pushed);
        }
    }

    /// Forged numbers deliver no message twice.
    #[test]
    fn any_numbers(start: u32, numbers in proptest::collection::vec(0u32..100, 1..200)) {
        let receiver = Receiver::new();
        let mut next = 0;
        for number in numbers {
            let far = if number > 95 { start } else { number };
            if let Accepted::Next(got) = receiver.accept(Sequence(far), far, false, || number % 7 != 0) {
                prop_assert_eq!(got, next);
                next += 1;
                while let Some(got) = receiver.next_held() {
                    prop_assert_eq!(got, next);
                    next += 1;
                }
            }
            prop_assert_eq!(receiver.expected(), Sequence(next));
        }
    }
}
