//! The driver on software HCAs that require what some ports and hosts do: see
//! `docs/guide/hardware.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::doorbell::{Adaptive, Doorbell};
use barewire_mlx5::layouts::command;
use barewire_mlx5::layouts::command::dct::{Dctc, QueryDctIn, QueryDctOut};
use barewire_mlx5::layouts::command::qp::{AddressPath, Mtu, Qpc, QueryQpIn, QueryQpOut};
use barewire_mlx5::layouts::doorbell::{BLUEFLAME_HALF, BLUEFLAME_OFFSET};
use barewire_mlx5::layouts::prm::{Layout, View};
use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::request::{Inline, Nop, Write, WriteImmediate};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, Enhancements, Error,
    Initiator, InitiatorConfig, Polled, Port, PortOptions, ProtectionDomain, RcAddress, RcConfig,
    RcPath, RcQueuePair, RemoteAddressSegment, Target, TargetConfig, Uar, hca,
};

const DEADLINE: Duration = Duration::from_mins(1);

/// A queue pair of a device with requirements, connected to itself.
struct Loop<D: Doorbell = Adaptive> {
    pair: RcQueuePair<D>,
    completions: CompletionQueue,
    domain: ProtectionDomain,
    device: hca::Device,
}

/// A device with these requirements that panics at a mistake of the driver.
fn device(requirements: &str, mode: hca::Mode) -> hca::Device {
    let requirements = requirements.parse().unwrap();
    let strict = hca::Strict::Panic;
    let config = hca::Config::default().requirements(requirements).strict(strict).mode(mode);
    hca::Device::open(config).unwrap()
}

/// Returns a value of a queue pair's context, as the device reports it.
fn query<T>(device: &hca::Device, number: u32, get: impl FnOnce(View<'_, Qpc>) -> T) -> T {
    let (mut input, mut output) = ([0; QueryQpIn::BYTES], [0; QueryQpOut::BYTES]);
    command::request::<QueryQpIn>(&mut input).unwrap().set(QueryQpIn::QPN, number);
    // SAFETY: the command changes nothing.
    unsafe { device.execute(&input, &mut output) };
    get(command::answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC))
}

impl Loop {
    fn new(requirements: &str) -> Self {
        Self::over(device(requirements, hca::Mode::Thread))
    }

    fn over(device: hca::Device) -> Self {
        Self::from_port(device, |port| port)
    }

    /// Connects from what `change` makes of the context's port.
    fn from_port(device: hca::Device, change: impl FnOnce(Port) -> Port) -> Self {
        let context = Context::open(Soft::new(device.clone())).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let config = RcConfig::default().port(Some(change(*context.port())));
        let mut pair =
            RcQueuePair::create_with(&domain, &uar, &completions, &completions, &config).unwrap();
        let path = RcPath::to(&pair.address());
        pair.connect(&path.traffic_class(106).service_level(3)).unwrap();
        Self { pair, completions, domain, device }
    }

    /// Returns a value of the queue pair's context, as the device reports it.
    fn query<T>(&self, get: impl FnOnce(View<'_, Qpc>) -> T) -> T {
        query(&self.device, self.pair.number(), get)
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

    /// Writes messages of several packets to memory of the peer, and compares them.
    fn write_to(&mut self, peer: &Self) {
        let [source, target] = [&self.domain, &peer.domain]
            .map(|domain| Buffer::allocate(domain, 10_000, Access::all()).unwrap());
        source.write(0, &[7; 10_000]).unwrap();
        let local = source.region().segment(0, 10_000).unwrap();
        self.pair
            .send
            .post(Write { local, remote: target.region().remote(0) }, ControlFlags::COMPLETION)
            .unwrap();
        self.wait();
        let mut got = vec![0; 10_000];
        target.read(0, &mut got).unwrap();
        assert!(got == [7; 10_000], "bytes are missing");
    }

    /// Writes `length` bytes by one message, and compares them.
    fn write(&mut self, length: usize) {
        let [source, target] =
            [(); 2].map(|()| Buffer::allocate(&self.domain, length, Access::all()).unwrap());
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8).collect();
        source.write(0, &bytes).unwrap();
        let local = source.region().segment(0, length).unwrap();
        let remote = target.region().remote(0);
        self.pair.send.post(Write { local, remote }, ControlFlags::COMPLETION).unwrap();
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
fn ports_with_different_mtus_connect_by_their_addresses() {
    let mut ends = ["mtu=1500", ""].map(Loop::new);
    let mtus = ends.each_ref().map(|end| end.pair.address().mtu.bytes());
    assert_eq!(mtus, [1024, 4096]);
    for end in &mut ends {
        end.pair.to_error().unwrap();
        end.pair.reset().unwrap();
    }
    let addresses = ends.each_ref().map(|end| end.pair.address().to_bytes());
    for (end, peer) in ends.iter_mut().zip(addresses.iter().rev()) {
        end.pair.connect(&RcPath::to(&RcAddress::from_bytes(peer).unwrap())).unwrap();
        assert_eq!(end.query(|qpc| qpc.get(Qpc::MTU)).unwrap(), Mtu::Bytes1024);
    }
    let [small, large] = &mut ends;
    small.write_to(large);
    large.write_to(small);
}

#[test]
fn udp_source_ports_are_those_that_the_device_allows() {
    let mut pair = Loop::new("udp-ports=50000-50009");
    let port = pair.query(|qpc| qpc.nested(Qpc::PRIMARY_ADDRESS_PATH).get(AddressPath::UDP_SPORT));
    assert!((50_000..=50_009).contains(&port), "{port}");
    pair.write(10_000);
}

#[test]
fn enhancements_are_not_set_where_the_device_has_none() {
    let mut pair = Loop::new("ece=0");
    assert!(!pair.domain.context().capabilities().enhancements);
    assert!(pair.pair.enhancements().is_none());
    pair.write(10_000);
    // Those of another device are refused.
    pair.pair.reset().unwrap();
    let path = RcPath::to(&pair.pair.address());
    let error = pair.pair.connect(&path.enhancements(Enhancements::QUERY)).unwrap_err();
    // The syndrome is `CommandSyndrome::Enhancements`.
    assert!(error.to_string().contains("0x621"), "{error}");
    pair.pair.connect(&path).unwrap();
    pair.write(10_000);
}

#[test]
fn queue_pairs_are_spread_over_bonded_ports() {
    let mut pair = Loop::new("lag=2");
    pair.write(10_000);
    let (domain, context) = (&pair.domain, pair.domain.context());
    let uar = Uar::allocate(context).unwrap();
    let pairs: Vec<RcQueuePair> = (0..4)
        .map(|_| {
            let config = RcConfig::default().overcommit(true);
            RcQueuePair::create(domain, &uar, &pair.completions, &pair.completions, &config)
                .unwrap()
        })
        .collect();
    let port = |pair: &RcQueuePair| {
        let fields = pair.read_back().unwrap();
        fields.iter().find(|(name, _)| *name == "lag_tx_port_affinity").unwrap().1
    };
    let ports: std::collections::BTreeSet<u64> = pairs.iter().map(port).collect();
    assert_eq!(ports, [1, 2].into());
}

#[test]
fn packets_of_roce_v1_have_the_traffic_class_of_the_route() {
    let pair = Loop::from_port(device("", hca::Mode::Thread), |port| {
        assert!(port.uses_udp);
        Port { uses_udp: false, ..port }
    });
    let fields = |qpc: View<'_, Qpc>| {
        let path = qpc.nested(Qpc::PRIMARY_ADDRESS_PATH);
        let class = (path.get(AddressPath::TCLASS), path.get(AddressPath::ETH_PRIO));
        (class, path.get(AddressPath::DSCP), path.get(AddressPath::UDP_SPORT))
    };
    assert_eq!(pair.query(fields), ((106, 3), 0, 0));
}

/// An initiator and a target of a device with requirements.
struct Dynamic {
    initiator: Initiator<Adaptive>,
    target: Target,
    receive: SharedReceiveQueue<List>,
    completions: CompletionQueue,
    context: Context,
    device: hca::Device,
}

impl Dynamic {
    fn new(requirements: &str) -> Result<Self, Error> {
        let device = device(requirements, hca::Mode::Thread);
        let context = Context::open(Soft::new(device.clone())).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let receive = SharedReceiveQueue::create(&domain, 16, 1).unwrap();
        let config = TargetConfig::default().traffic_class(106).service_level(3);
        let target = Target::create(&domain, &completions, &receive, &config)?;
        let config = InitiatorConfig::default().service_level(3);
        let initiator = Initiator::create_with(&domain, &uar, &completions, &config)?;
        Ok(Self { initiator, target, receive, completions, context, device })
    }

    /// Returns a value of the target's context, as the device reports it.
    fn query_target<T>(&self, get: impl FnOnce(View<'_, Dctc>) -> T) -> T {
        let (mut input, mut output) = ([0; QueryDctIn::BYTES], [0; QueryDctOut::BYTES]);
        let number = self.target.number();
        command::request::<QueryDctIn>(&mut input).unwrap().set(QueryDctIn::DCTN, number);
        // SAFETY: the command names the target of this value, and changes nothing.
        unsafe { self.device.execute(&input, &mut output) };
        get(command::answer::<QueryDctIn>(&output).unwrap().nested(QueryDctOut::DCT_CONTEXT_ENTRY))
    }

    fn query_initiator<T>(&self, get: impl FnOnce(View<'_, Qpc>) -> T) -> T {
        query(&self.device, self.initiator.number(), get)
    }
}

#[test]
fn packets_of_dynamic_connections_have_the_chosen_class_of_service() {
    let ends = Dynamic::new("").unwrap();
    let target = |context: View<'_, Dctc>| (context.get(Dctc::DSCP), context.get(Dctc::ETH_PRIO));
    assert_eq!(ends.query_target(target), (26, 3));
    let priority = |context: View<'_, Qpc>| {
        context.nested(Qpc::PRIMARY_ADDRESS_PATH).get(AddressPath::ETH_PRIO)
    };
    assert_eq!(ends.query_initiator(priority), 3);
}

#[test]
fn dynamic_connections_have_limits_of_their_own() {
    let ends = Dynamic::new("log-dc-reads=2,dc-atomics-of-8").unwrap();
    assert_eq!(ends.query_initiator(|context| context.get(Qpc::LOG_SRA_MAX)), 2);
    let capabilities = ends.context.capabilities();
    assert!(capabilities.masked_atomics && !capabilities.masked_dc_atomics);
    assert!(Dynamic::new("").unwrap().context.capabilities().masked_dc_atomics);
}

#[test]
fn targets_are_spread_over_bonded_ports_or_do_not_exist_there() {
    let ends = Dynamic::new("lag=2").unwrap();
    let domain = ProtectionDomain::allocate(&ends.context).unwrap();
    let config = TargetConfig::default();
    let next = Target::create(&domain, &ends.completions, &ends.receive, &config).unwrap();
    let port = |ends: &Dynamic| ends.query_target(|context| context.get(Dctc::PORT));
    let first = port(&ends);
    let second = port(&Dynamic { target: next, ..ends });
    assert_eq!([first.min(second), first.max(second)], [1, 2]);
    // Firmware without targets on bonded ports has them on others.
    let Err(Error::Unsupported { what, .. }) = Dynamic::new("lag=2,no-lag-dct") else {
        panic!("a target on bonded ports");
    };
    assert_eq!(what, "DC");
    Dynamic::new("no-lag-dct").unwrap();
}

#[test]
fn a_clock_in_real_time_is_accepted() {
    Loop::new("real-time-clock").write(10_000);
}

#[test]
fn a_queue_pair_requests_an_acknowledgment_every_256_packets() {
    let pair = Loop::new("");
    assert_eq!(pair.query(|qpc| qpc.get(Qpc::LOG_ACK_REQ_FREQ)), 8);
}

#[test]
fn packets_have_the_chosen_class_of_service() {
    let pair = Loop::new("");
    let path = |qpc: View<'_, Qpc>| {
        let path = qpc.nested(Qpc::PRIMARY_ADDRESS_PATH);
        (path.get(AddressPath::DSCP), path.get(AddressPath::ETH_PRIO))
    };
    assert_eq!(pair.query(path), (26, 3));
}

#[test]
fn pages_without_write_combining_get_plain_doorbells() {
    let mut pair = Loop::new("no-wc");
    for length in [1, 4096, 10_000] {
        pair.write(length);
    }
    let mut batch = pair.pair.send.batch();
    batch.post(Nop, ControlFlags::empty()).unwrap();
    batch.post(Nop, ControlFlags::COMPLETION).unwrap();
    drop(batch);
    pair.wait();
    let page = pair.device.uar_page(pair.query(|qpc| qpc.get(Qpc::UAR_PAGE))).unwrap();
    for offset in (BLUEFLAME_OFFSET..BLUEFLAME_OFFSET + 2 * BLUEFLAME_HALF).step_by(8) {
        if offset.is_multiple_of(BLUEFLAME_HALF) {
            continue;
        }
        // SAFETY: the offset is inside the page, aligned, and the device accesses the page by
        // atomics.
        let word = unsafe { AtomicU64::from_ptr(page.as_ptr().add(offset).cast().as_ptr()) };
        assert_eq!(word.load(Ordering::Relaxed), 0, "only the first 8 bytes are written");
    }
}

#[test]
fn deferred_writes_wait_for_the_doorbell_of_a_later_one() {
    let mut pair = Loop::over(device("exact-doorbells", hca::Mode::Stepped));
    let buffer = Buffer::allocate(&pair.domain, 8, Access::all()).unwrap();
    let (local, remote) = (buffer.region().segment(0, 8).unwrap(), buffer.region().remote(0));
    let defer_two = |pair: &mut Loop| {
        let send = &mut pair.pair.send;
        send.post_deferred(Write { local, remote }, ControlFlags::empty()).unwrap();
        send.post_deferred(Write { local, remote }, ControlFlags::COMPLETION).unwrap();
        while pair.device.step() {}
        assert!(pair.completions.is_empty(), "the device has seen them");
    };
    defer_two(&mut pair);
    pair.pair.send.announce();
    while pair.device.step() {}
    pair.wait();
    defer_two(&mut pair);
    assert!(pair.pair.receive.push_empty());
    pair.pair.receive.publish();
    let flags = ControlFlags::COMPLETION;
    pair.pair.send.post_last(WriteImmediate { local, remote, immediate: 5 }, flags).unwrap();
    while pair.device.step() {}
    let mut immediates = Vec::new();
    while let Some(polled) = pair.completions.poll() {
        if polled.is_write_immediate() {
            immediates.push(polled.immediate());
        } else {
            pair.pair.send.reap(polled.wqe_counter());
        }
    }
    assert!(pair.pair.send.is_idle());
    assert_eq!(immediates, [5]);
}

#[test]
fn keys_let_writes_be_reordered_where_the_device_has_no_others() {
    Loop::new("relaxed-only").write(10_000);
}

#[test]
fn queue_pairs_of_a_register_write_its_halves_in_turn() {
    // A stepped device sees each burst when it is complete.
    let device = device("exact-doorbells", hca::Mode::Stepped);
    let context = Context::open(Soft::new(device.clone())).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let mut completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
    let mut pairs = [(); 3].map(|()| {
        let config = RcConfig::default();
        let mut pair: RcQueuePair =
            RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
        pair.connect(&RcPath::to(&pair.address())).unwrap();
        pair
    });
    for _ in 0..10 {
        for pair in &mut pairs {
            let nobody = RemoteAddressSegment::new(0x1234, 0x5600);
            pair.send
                .post(Write { local: Inline(&[]), remote: nobody }, ControlFlags::COMPLETION)
                .unwrap();
            while device.step() {}
            assert_eq!(completions.poll().unwrap().completion().kind, CompletionKind::Send);
        }
    }
    assert_eq!(device.counters().findings, 0);
}

#[test]
fn a_full_membership_is_the_default_partition() {
    Loop::new("pkeys=7fff:8001").write(10_000);
}

#[test]
fn the_port_takes_the_wanted_partition_and_names_those_that_it_has() {
    let pair = Loop::new("pkeys=7fff:8001:8002");
    let context = pair.domain.context();
    let choose = |key| {
        let options = PortOptions { partition_key: Some(key), ..PortOptions::default() };
        context.choose_port(options)
    };
    assert_eq!([0xffff, 0x8001, 2].map(|key| choose(key).unwrap().partition_index), [0, 1, 2]);
    let error = choose(9).unwrap_err().to_string();
    assert!(error.contains("0x7fff, 0x8001, 0x8002"), "{error}");
    let gid_index = Some(7);
    let error = context.choose_port(PortOptions { gid_index, ..PortOptions::default() });
    assert!(error.unwrap_err().to_string().contains("GID index is 7"));
}

#[test]
fn a_device_that_requires_everything_works() {
    Loop::new("all").write(100_000);
}
