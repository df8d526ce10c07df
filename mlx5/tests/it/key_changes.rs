//! Random binds, invalidations and layouts of views, and accesses by current, stale and wrong keys,
//! compared with a model: on the software HCA, with packets that are lost, repeated and delayed,
//! and on a device of the machine.
//!
//! `BAREWIRE_KEY_CHANGES=20000` runs as many steps, `BAREWIRE_SEED` repeats a run.

use crate::machine;

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::cqe::Syndrome;
use barewire_mlx5::memory::{Interleaved, View, Window};
use barewire_mlx5::request::{Read, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, MemoryRegion,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, RemoteAddressSegment, Uar, hca,
};

const SIZE: usize = 4096;
const VIEWS: usize = 3;
const WINDOWS: usize = 3;
const DONE: ControlFlags = ControlFlags::COMPLETION;

struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// What a key covers: where its addresses start, the byte of memory behind each address, and the
/// rights of peers.
#[derive(Clone)]
struct Open {
    key: u32,
    start: u64,
    bytes: Vec<(usize, usize)>,
    access: Access,
}

/// Two connected queue pairs: the owner's changes keys, the peer's uses them.
struct Sides {
    owner: Side,
    peer: Side,
}

struct Side {
    completions: CompletionQueue,
    pair: RcQueuePair,
    domain: ProtectionDomain,
}

impl Side {
    fn new(context: &Context) -> Self {
        let domain = ProtectionDomain::allocate(context).unwrap();
        let uar = Uar::allocate(context).unwrap();
        let completions = CompletionQueue::create(context, &uar, 1024).unwrap();
        let config = RcConfig::default().send_blocks(64);
        let pair = RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
        Self { completions, pair, domain }
    }

    fn path(&self) -> RcPath {
        RcPath::to(&self.pair.address()).ack_timeout(10)
    }
}

impl Sides {
    fn new(owner: Side, peer: Side) -> Self {
        let mut sides = Self { owner, peer };
        sides.connect();
        sides
    }

    fn connect(&mut self) {
        let paths = [self.peer.path(), self.owner.path()];
        self.owner.pair.connect(&paths[0]).unwrap();
        self.peer.pair.connect(&paths[1]).unwrap();
    }

    /// Waits for the only WQE, which one of the sides posted. After a failure both connect again.
    fn outcome(&mut self) -> Result<(), Syndrome> {
        let deadline = Instant::now() + Duration::from_mins(1);
        let (completion, side) = loop {
            if let Some(polled) = self.owner.completions.poll() {
                break (polled.completion(), &mut self.owner);
            }
            if let Some(polled) = self.peer.completions.poll() {
                break (polled.completion(), &mut self.peer);
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        };
        match completion.kind {
            CompletionKind::Send => {
                side.pair.send.reap(completion.wqe_counter);
                Ok(())
            }
            CompletionKind::SendError(failure) => {
                self.owner.pair.reset().unwrap();
                self.peer.pair.reset().unwrap();
                self.connect();
                Err(failure.syndrome().unwrap())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A range of one of the memories.
fn range(random: &mut Random, longest: usize) -> (usize, core::ops::Range<usize>) {
    let length = 1 + random.below(longest);
    let start = random.below(SIZE - length + 1);
    (random.below(2), start..start + length)
}

fn rights(random: &mut Random) -> Access {
    [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_READ | Access::REMOTE_WRITE]
        [random.below(3)]
}

fn run(owner: &Context, peer: &Context, steps: usize, seed: u64) {
    let random = &mut Random(seed);
    let mut sides = Sides::new(Side::new(owner), Side::new(peer));
    let domain = sides.owner.domain.clone();
    let memories = [(); 2].map(|()| Buffer::allocate(&domain, SIZE, Access::all()).unwrap());
    let result = Buffer::allocate(&sides.peer.domain, SIZE, Access::all()).unwrap();
    let mut model = [[0_u8; SIZE]; 2];
    let regions: [&MemoryRegion; 2] = [memories[0].region(), memories[1].region()];
    let mut windows = [(); WINDOWS].map(|()| Window::create(&domain).unwrap());
    let mut views = [(); VIEWS].map(|()| View::create(&domain, 4).unwrap());
    // Windows first, then views.
    let mut open: Vec<Option<Open>> = vec![None; WINDOWS + VIEWS];
    let mut stale: Vec<Open> = Vec::new();
    let mut counts = [0; 6];
    for step in 0..steps {
        let say = |what: &str| format!("step {step} of seed {seed}: {what}");
        let action = random.below(8);
        let place = random.below(WINDOWS);
        match action {
            // Binds a window, or ends its access.
            0 | 1 => {
                let queue = &mut sides.owner.pair.send;
                if let Some(old) = open[place].take() {
                    windows[place].invalidate(queue, DONE).unwrap();
                    stale.push(old);
                    counts[0] += 1;
                } else {
                    let ((memory, range), access) = (range(random, 500), rights(random));
                    let zero_based = random.below(2) == 0;
                    let (window, region) = (&mut windows[place], regions[memory]);
                    let posted = if zero_based {
                        window.bind_zero_based(queue, region, range.clone(), access, DONE)
                    } else {
                        window.bind(queue, region, range.clone(), access, DONE)
                    };
                    posted.unwrap();
                    let remote = windows[place].remote().unwrap();
                    let bytes = range.map(|at| (memory, at)).collect();
                    let start = remote.address;
                    open[place] = Some(Open { key: remote.key, start, bytes, access });
                    counts[1] += 1;
                }
                assert_eq!(sides.outcome(), Ok(()), "{}", say("a window changes"));
            }
            // Joins ranges.
            2 => {
                let (view, access) = (&mut views[place], rights(random) | Access::LOCAL_WRITE);
                let ranges: Vec<_> = (0..=random.below(4)).map(|_| range(random, 200)).collect();
                let list: Vec<_> = ranges
                    .iter()
                    .map(|(memory, range)| (regions[*memory], range.clone()))
                    .collect();
                view.join(&mut sides.owner.pair.send, access, &list, DONE).unwrap();
                let bytes = ranges
                    .into_iter()
                    .flat_map(|(memory, range)| range.map(move |at| (memory, at)))
                    .collect();
                let key = view.to_remote().key;
                let new = Open { key, start: 0, bytes, access };
                stale.extend(open[WINDOWS + place].replace(new));
                assert_eq!(sides.outcome(), Ok(()), "{}", say("ranges are joined"));
                counts[2] += 1;
            }
            // Interleaves ranges.
            3 => {
                let (view, access) = (&mut views[place], rights(random) | Access::LOCAL_WRITE);
                let repeat = 1 + random.below(12);
                let ranges: Vec<_> = (0..=random.below(3))
                    .map(|_| {
                        let (memory, range) = range(random, 20);
                        let stride = range.len() + random.below(100);
                        let offset = range.start.min(SIZE - repeat * stride - range.len());
                        (memory, offset, range.len(), stride)
                    })
                    .collect();
                let list: Vec<_> = ranges
                    .iter()
                    .map(|&(memory, offset, bytes, stride)| Interleaved {
                        memory: regions[memory],
                        offset,
                        bytes,
                        stride,
                    })
                    .collect();
                let queue = &mut sides.owner.pair.send;
                view.interleave(queue, access, &list, repeat as u32, DONE).unwrap();
                let bytes = (0..repeat)
                    .flat_map(|row| {
                        ranges.iter().flat_map(move |&(memory, offset, bytes, stride)| {
                            (0..bytes).map(move |at| (memory, offset + row * stride + at))
                        })
                    })
                    .collect();
                let key = view.to_remote().key;
                let new = Open { key, start: 0, bytes, access };
                stale.extend(open[WINDOWS + place].replace(new));
                assert_eq!(sides.outcome(), Ok(()), "{}", say("ranges are interleaved"));
                counts[3] += 1;
            }
            // Accesses memory by a key that is open, or was.
            _ => {
                let old = stale.len().saturating_sub(8);
                let is_stale = !stale.is_empty() && random.below(16) == 0;
                let at = random.below(WINDOWS + VIEWS);
                let chosen = if is_stale {
                    Some(stale[old + random.below(stale.len() - old)].clone())
                } else {
                    open[at].clone()
                };
                let Some(Open { key, start, bytes, access }) = chosen else { continue };
                let from = random.below(bytes.len());
                let mut length = 1 + random.below((bytes.len() - from).min(200));
                // Sometimes one byte too far.
                let is_outside = random.below(16) == 0;
                if is_outside {
                    length = bytes.len() - from + 1;
                }
                let writes = random.below(2) == 0;
                let needs = if writes { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
                let allowed = !is_stale && !is_outside && access.contains(needs);
                let remote = RemoteAddressSegment::new(start + from as u64, key);
                let local = result.region().segment(0, length).unwrap();
                let queue = &mut sides.peer.pair.send;
                let sent: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                if writes {
                    result.write(0, &sent).unwrap();
                    queue.post(Write { local, remote }, DONE).unwrap();
                } else {
                    queue.post(Read { local, remote }, DONE).unwrap();
                }
                let wanted = if allowed { Ok(()) } else { Err(Syndrome::RemoteAccess) };
                let what = format!("{length} bytes, stale {is_stale}, outside {is_outside}");
                assert_eq!(sides.outcome(), wanted, "{}", say(&what));
                counts[if allowed { 4 } else { 5 }] += 1;
                if allowed && writes {
                    for (byte, (memory, at)) in sent.iter().zip(&bytes[from..]) {
                        model[*memory][*at] = *byte;
                    }
                }
                if allowed && !writes {
                    let mut found = vec![0; length];
                    result.read(0, &mut found).unwrap();
                    let expected: Vec<u8> = bytes[from..from + length]
                        .iter()
                        .map(|(memory, at)| model[*memory][*at])
                        .collect();
                    assert_eq!(found, expected, "{}", say("a read"));
                }
                for (memory, model) in memories.iter().zip(&model) {
                    let mut found = [0; SIZE];
                    memory.read(0, &mut found).unwrap();
                    assert!(found == *model, "{}", say("memory differs"));
                }
            }
        }
    }
    assert!(counts.iter().all(|count| *count > steps / 200), "{counts:?}");
}

fn steps() -> usize {
    std::env::var("BAREWIRE_KEY_CHANGES").map_or(5000, |steps| steps.parse().unwrap())
}

fn seed() -> u64 {
    std::env::var("BAREWIRE_SEED").map_or(21, |seed| seed.parse().unwrap())
}

#[test]
fn keys_do_what_the_model_does() {
    let faults =
        hca::Faults::default().drop(0.01).duplicate(0.02).reorder(0.02).delay(0.01).seed(seed());
    let [owner, peer] = [(); 2].map(|()| {
        let device = hca::Device::open(hca::Config::default().faults(faults.clone())).unwrap();
        Context::open(Soft::new(device)).unwrap()
    });
    run(&owner, &peer, steps(), seed());
}

#[test]
fn keys_do_what_the_model_does_on_a_device_of_the_machine() {
    if let Some(context) = machine::context() {
        run(&context, &context, steps(), seed());
    }
}
