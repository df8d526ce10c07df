//! The driver on software HCAs that require what some ports and hosts do: see
//! `docs/guide/hardware.md`.

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, Polled,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, Uar, hca,
};

const DEADLINE: Duration = Duration::from_mins(1);

/// A queue pair of a device with requirements, connected to itself.
struct Loop {
    pair: RcQueuePair,
    completions: CompletionQueue,
    domain: ProtectionDomain,
}

impl Loop {
    fn new(requirements: &str) -> Self {
        let requirements = requirements.parse().unwrap();
        let config =
            hca::Config { requirements, strict: hca::Strict::Panic, ..hca::Config::default() };
        let device = hca::Device::open(config).unwrap();
        let context = Context::open(Soft::new(device)).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let config = RcConfig::default();
        let mut pair =
            RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
        pair.connect(&RcPath::new(context.port_address(), pair.number())).unwrap();
        Self { pair, completions, domain }
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while !self.pair.send.is_idle() {
            if let Some(completion) = self.completions.poll().map(Polled::completion) {
                assert_eq!(completion.kind, CompletionKind::Send);
                self.pair.send.reap(completion.wqe_counter);
            }
            assert!(start.elapsed() < DEADLINE, "no completion");
            std::thread::yield_now();
        }
    }

    /// Writes `length` bytes by one message, and compares them.
    fn write(&mut self, length: usize) {
        let [source, target] =
            [(); 2].map(|()| Buffer::allocate(&self.domain, length, Access::all()).unwrap());
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8).collect();
        source.write(0, &bytes).unwrap();
        let local = source.region().segment(0, length).unwrap();
        let remote = target.region().remote(0);
        self.pair.send.write(local, remote, ControlFlags::COMPLETION).unwrap();
        self.wait();
        let mut got = vec![0; length];
        target.read(0, &mut got).unwrap();
        assert_eq!(got, bytes);
    }
}

#[test]
fn messages_cross_a_port_of_1500_bytes() {
    Loop::new("mtu=1500").write(10_000);
}

#[test]
fn udp_source_ports_are_those_that_the_device_allows() {
    Loop::new("udp-ports=50000-50009").write(10_000);
}

#[test]
fn a_clock_in_real_time_is_accepted() {
    Loop::new("real-time-clock").write(10_000);
}
