//! Tests every doorbell type on the software HCA, which compares the bytes in the register with the
//! ring and reports each difference.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::doorbell::{
    BlueFlame, BlueFlameFlush, BlueFlameShared, Choose, Doorbell, PlainDoorbell, Wide16, Width,
    choose,
};
use barewire_mlx5::request::{Inline, Nop, Segments, Word, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, ProtectionDomain,
    RcConfig, RcPath, RcQueuePair, Uar, hca,
};

const DEADLINE: Duration = Duration::from_mins(1);

struct Side<D: Doorbell> {
    pair: RcQueuePair<D>,
    completions: CompletionQueue,
}

fn open() -> Context {
    let device = hca::Device::open(hca::Config::default().strict(hca::Strict::Panic));
    Context::open(Soft::new(device.unwrap())).unwrap()
}

/// `count` queue pairs, each connected to itself, that share one page.
fn sides<D: Doorbell>(domain: &ProtectionDomain, uar: &Uar, count: usize) -> Vec<Side<D>> {
    let context = domain.context();
    (0..count)
        .map(|_| {
            let completions = CompletionQueue::create(context, uar, 1024).unwrap();
            let config = RcConfig::default().send_blocks(64);
            let mut pair =
                RcQueuePair::create_with(domain, uar, &completions, &completions, &config).unwrap();
            pair.connect(&RcPath::to(&pair.address())).unwrap();
            Side { pair, completions }
        })
        .collect()
}

impl<D: Doorbell> Side<D> {
    /// Posts writes of every kind and length around the ring: one block, two of known length, up to
    /// four of any length, and one that the device fetches.
    fn run(&mut self, target: &Buffer, source: &Buffer, at: usize, rounds: usize) {
        let payload: Vec<u8> = (0..220).map(|byte| (byte * 3 + at + 1) as u8).collect();
        for round in 0..rounds {
            for length in [8, 0, 64, 1, 30, 100, 219, 220] {
                let remote = target.region().remote(at);
                self.pair
                    .send
                    .post(
                        Write { local: Inline(&payload[..length]), remote },
                        ControlFlags::COMPLETION,
                    )
                    .unwrap();
                self.wait();
                let mut got = vec![0; length];
                target.read(at, &mut got).unwrap();
                assert_eq!(got, payload[..length], "round {round}, {length} bytes");
            }
            let local = source.region().segment(0, 16).unwrap();
            let remote = target.region().remote(at);
            self.pair
                .send
                .post(Write { local: Segments(&[local; 16]), remote }, ControlFlags::COMPLETION)
                .unwrap();
            self.wait();
            let mut batch = self.pair.send.batch();
            for _ in 0..8 {
                batch.post(Write { local: Word([9; 8]), remote }, ControlFlags::empty()).unwrap();
            }
            batch.post(Nop, ControlFlags::COMPLETION).unwrap();
            drop(batch);
            self.wait();
            self.defer(target, at);
        }
    }

    /// Posts WQEs that wait for the doorbell of the last one, or for their own.
    fn defer(&mut self, target: &Buffer, at: usize) {
        let (remote, local) = (target.region().remote(at), target.region().segment(at, 8).unwrap());
        let send = &mut self.pair.send;
        for _ in 0..3 {
            send.post_deferred(Write { local, remote }, ControlFlags::empty()).unwrap();
            send.post_deferred(Write { local: Inline(&[7; 100]), remote }, ControlFlags::empty())
                .unwrap();
        }
        send.request_completion();
        send.post_deferred(Write { local, remote }, ControlFlags::empty()).unwrap();
        send.announce();
        self.wait();
        // There is nothing to announce.
        self.pair.send.announce();
    }

    /// Takes completions until nothing is outstanding.
    fn wait(&mut self) {
        let start = Instant::now();
        while !self.pair.send.is_idle() {
            match self.completions.poll() {
                Some(polled) => {
                    assert_eq!(polled.kind(), CompletionKind::Send);
                    self.pair.send.reap(polled.wqe_counter());
                }
                None => std::thread::yield_now(),
            }
            assert!(start.elapsed() < DEADLINE, "no completion");
        }
    }
}

/// Checks that a doorbell writes what the ring contains.
struct Works;

impl Choose for Works {
    type Output = &'static str;

    fn with<D: Doorbell>(self) -> &'static str {
        let context = open();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let buffer = || Buffer::allocate(&domain, 1024, Access::all()).unwrap();
        let (target, source) = (buffer(), buffer());
        sides::<D>(&domain, &uar, 1)[0].run(&target, &source, 0, 20);
        std::any::type_name::<D>()
    }
}

fn works_in<W: Width>() {
    if !W::is_available() {
        println!("this CPU has no {}", std::any::type_name::<W>());
        return;
    }
    Works.with::<BlueFlame<W>>();
    Works.with::<BlueFlameFlush<W>>();
    Works.with::<BlueFlameShared<W>>();
    Works.with::<PlainDoorbell<W>>();
}

#[test]
fn stores_of_every_width_push_the_same_bytes() {
    works_in::<Wide16>();
    #[cfg(target_arch = "x86_64")]
    {
        use barewire_mlx5::doorbell::{Direct, Wide32, Wide64};
        works_in::<Wide32>();
        works_in::<Wide64>();
        works_in::<Direct>();
    }
}

#[test]
fn a_doorbell_is_chosen_for_device_and_cpu() {
    let mut capabilities = *open().capabilities();
    assert!(choose(&capabilities, Works).contains("::BlueFlame"));
    capabilities.write_combining = false;
    assert!(choose(&capabilities, Works).contains("PlainDoorbell"));
}

#[test]
fn threads_share_a_register() {
    let context = open();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let target = Buffer::allocate(&domain, 4 * 1024, Access::all()).unwrap();
    let source = Buffer::allocate(&domain, 1024, Access::all()).unwrap();
    let mut sides: VecDeque<Side<BlueFlameShared>> = sides(&domain, &uar, 4).into();
    std::thread::scope(|scope| {
        for at in 0..4 {
            let mut side = sides.pop_front().unwrap();
            let (target, source) = (&target, &source);
            scope.spawn(move || side.run(target, source, at * 1024, 100));
        }
    });
}
