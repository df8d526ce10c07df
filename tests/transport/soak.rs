//! Random operations over `rc_mlx5`, `dc_mlx5`, `xrc_mlx5` and `ud_mlx5` at the same time, between
//! two software HCAs on a bad wire, compared with a copy of the memory to which they are applied in
//! order. Endpoints are cancelled, closed and opened again in between.
//!
//! `BAREWIRE_SOAK_SEEDS` sets how many seeds run, and `BAREWIRE_SOAK_FIRST` the first. The devices
//! are stepped and a seed gives the same operations, but `ud_mlx5` measures real time.

use std::collections::VecDeque;
use std::time::Instant;

use barewire::{
    Access, AtomicOp, Cause, Domain, Endpoint, FetchResult, FlushMode, Interface, InterfaceConfig,
    Memory, PeerAddress, Post, PostError, Posted, RemoteKey, Slice, TransportId, Worker,
};
use barewire_hca as hca;
use fastrand::Rng;

use crate::support::{DEADLINE, Inbox, Watch, collect, contents, open_soft, pattern};

/// Seeds of an ordinary run.
const SEEDS: u64 = 1000;
/// Operations of a seed on each endpoint, about.
const OPERATIONS: usize = 40;
/// Bytes of remote memory behind each endpoint, in front of the word for atomics.
const SIZE: usize = 4096;
/// Longest transfer: several packets.
const LONGEST: usize = 3000;
/// Local buffers of each endpoint.
const SLOTS: usize = 12;
const ID: u8 = 3;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A device and everything that runs on it.
struct Host {
    device: hca::Device,
    worker: Worker,
}

impl Host {
    fn open(fabric: &hca::Fabric, faults: hca::Faults, dynamic_connections: usize) -> Self {
        let config = hca::Config::default()
            .dynamic_connections(dynamic_connections)
            .mode(hca::Mode::Stepped)
            .wire(hca::WireKind::Fabric(fabric.clone()))
            .faults(faults)
            .strict(hca::Strict::Panic);
        Self { device: hca::Device::open(config).unwrap(), worker: Worker::new() }
    }

    /// Steps the device and makes progress. Returns whether there was work.
    fn pass(&mut self) -> bool {
        self.device.step() | (self.worker.progress() > 0)
    }

    fn run(&mut self) {
        self.pass();
    }
}

/// Faults of up to a twentieth each.
fn faults(random: &mut Rng, seed: u64) -> hca::Faults {
    let mut chance = || [0.0, 0.0, 0.02, 0.05][random.usize(..4)];
    hca::Faults::default()
        .drop(chance())
        .duplicate(chance())
        .reorder(chance())
        .corrupt(chance())
        .delay(chance())
        .delay_us(40)
        .flap(chance() / 20.0)
        .flap_us(200)
        .seed(seed)
}

/// What an operation does when it is complete.
enum Expected {
    Nothing,
    /// The local buffer contains these bytes.
    Bytes(Vec<u8>),
    /// The result is this word.
    Word(FetchResult, u64),
}

/// An operation that was posted.
struct Outstanding {
    what: &'static str,
    watch: Watch,
    expected: Expected,
    /// The local buffer that it uses.
    slot: Option<usize>,
    /// It returns data of the peer: later changes must not overtake it.
    reads: bool,
}

/// An endpoint, and what the peer's memory and inbox must contain.
struct Line {
    name: &'static str,
    transport: TransportId,
    from: (Domain, Interface),
    to: Interface,
    endpoint: Endpoint,
    /// The peer's end, of transports that connect endpoints.
    far: Option<Endpoint>,
    /// For `xrc_mlx5`: uses the connection of another endpoint.
    beside: bool,
    inbox: Inbox,
    sent: Vec<Vec<u8>>,
    memory: Memory,
    key: RemoteKey,
    copy: Vec<u8>,
    local: Memory,
    free: Vec<usize>,
    outstanding: VecDeque<Outstanding>,
    /// The operations that ended with an error because the endpoint was closed.
    canceled: usize,
    done: usize,
}

impl Line {
    fn open(
        name: &'static str,
        transport: TransportId,
        from: (Domain, Interface),
        (domain, to): (Domain, Interface),
        beside: bool,
    ) -> Self {
        let inbox = collect(&to, ID);
        let memory = domain.allocate(SIZE + 8, Access::all()).unwrap();
        let key = from.0.unpack_key(&memory.pack_key()).unwrap();
        let local = from.0.allocate(SLOTS * LONGEST, Access::LOCAL_WRITE).unwrap();
        let (endpoint, far) = Self::join(transport, &from.1, &to, beside);
        Self {
            name,
            transport,
            from,
            to,
            endpoint,
            far,
            beside,
            inbox,
            sent: vec![],
            copy: contents(&memory),
            memory,
            key,
            local,
            free: (0..SLOTS).collect(),
            outstanding: VecDeque::new(),
            canceled: 0,
            done: 0,
        }
    }

    /// Connects an endpoint, through the bytes that processes would exchange.
    fn join(
        transport: TransportId,
        from: &Interface,
        to: &Interface,
        beside: bool,
    ) -> (Endpoint, Option<Endpoint>) {
        let passed = |address: PeerAddress| PeerAddress::from_bytes(&address.to_bytes()).unwrap();
        if beside || transport == TransportId::UdMlx5 {
            return (from.connect(&passed(to.address())).unwrap(), None);
        }
        let (near, far) = (Endpoint::new(from).unwrap(), Endpoint::new(to).unwrap());
        near.connect(&passed(far.address())).unwrap();
        far.connect(&passed(near.address())).unwrap();
        (near, Some(far))
    }

    /// Posts a random operation, if there is room for it.
    fn post(&mut self, random: &mut Rng, context: &str) {
        let kinds = if self.transport == TransportId::UdMlx5 { 3 } else { 10 };
        let kind = random.usize(..kinds);
        let length = match random.usize(..4) {
            0 => random.usize(..=8),
            1 => random.usize(..=100),
            _ => random.usize(..=LONGEST),
        };
        let posted = match kind {
            0..=2 => self.send(kind, length, random),
            3..=5 => self.put(kind - 3, length, random),
            6 => self.get(length, random),
            7 => self.fetch(random),
            8 => self.add(random),
            _ => self.flush(),
        };
        assert!(
            matches!(posted, Ok(()) | Err(PostError::NoResource)),
            "{context}: {}: {posted:?} {:?}",
            self.name,
            self.endpoint.error()
        );
    }

    fn send(&mut self, kind: usize, length: usize, random: &mut Rng) -> Result<(), PostError> {
        let limits = self.from.1.attributes().am;
        let data = pattern(random.u32(..), length);
        let header = self.sent.len() as u64;
        let mut message = header.to_le_bytes().to_vec();
        match kind {
            0 => {
                let data = &data[..length.min(limits.max_short)];
                self.endpoint.am_short(ID, header, data)?;
                message.extend(data);
            }
            1 => {
                message.extend(&data);
                message.truncate(limits.max_bcopy);
                self.endpoint.am_bcopy(ID, |buffer| {
                    buffer[..message.len()].copy_from_slice(&message);
                    message.len()
                })?;
            }
            _ => {
                let data = &data[..length.min(limits.max_zcopy.saturating_sub(8))];
                self.zero_copy("am_zcopy", data, |endpoint, slice, watch| {
                    endpoint.am_zcopy(ID, &message, &[slice], Some(&watch.completion))
                })?;
                message.extend(data);
            }
        }
        self.sent.push(message);
        Ok(())
    }

    /// Fences a change of the peer's memory behind the operations that read it.
    fn before_a_change(&self) -> Result<(), PostError> {
        if self.outstanding.iter().any(|operation| operation.reads) {
            self.endpoint.fence()?;
        }
        Ok(())
    }

    fn put(&mut self, kind: usize, length: usize, random: &mut Rng) -> Result<(), PostError> {
        self.before_a_change()?;
        let mut data = pattern(random.u32(..), length);
        let at = random.usize(..=SIZE - length);
        let remote = self.memory.address() + at as u64;
        match kind {
            0 => {
                data.truncate(self.from.1.attributes().put.max_short);
                self.endpoint.put_short(&data, remote, &self.key)?;
            }
            1 => {
                let pack = |buffer: &mut [u8]| {
                    buffer[..data.len()].copy_from_slice(&data);
                    data.len()
                };
                self.endpoint.put_bcopy(pack, remote, &self.key)?;
            }
            _ => {
                let key = self.key.clone();
                self.zero_copy("put_zcopy", &data, |endpoint, slice, watch| {
                    endpoint.put_zcopy(&[slice], remote, &key, Some(&watch.completion))
                })?;
            }
        }
        self.copy[at..at + data.len()].copy_from_slice(&data);
        Ok(())
    }

    /// Posts `data` from a local buffer.
    fn zero_copy(
        &mut self,
        what: &'static str,
        data: &[u8],
        post: impl FnOnce(&Endpoint, Slice<'_>, &Watch) -> Post,
    ) -> Result<(), PostError> {
        let slot = *self.free.last().ok_or(PostError::NoResource)?;
        self.local.write(slot * LONGEST, data).unwrap();
        let slice = self.local.slice(slot * LONGEST, data.len()).unwrap();
        let watch = Watch::new(1);
        let posted = post(&self.endpoint, slice, &watch)?;
        watch.posted(Ok(posted));
        self.free.pop();
        self.push(what, watch, Expected::Nothing, Some(slot), false);
        Ok(())
    }

    fn get(&mut self, length: usize, random: &mut Rng) -> Result<(), PostError> {
        let slot = *self.free.last().ok_or(PostError::NoResource)?;
        let at = random.usize(..=SIZE - length);
        let slice = [self.local.slice(slot * LONGEST, length).unwrap()];
        let remote = self.memory.address() + at as u64;
        let watch = Watch::new(1);
        watch.posted(Ok(self.endpoint.get_zcopy(
            &slice,
            remote,
            &self.key,
            Some(&watch.completion),
        )?));
        self.free.pop();
        let expected = Expected::Bytes(self.copy[at..at + length].to_vec());
        self.push("get_zcopy", watch, expected, Some(slot), true);
        Ok(())
    }

    fn word(&self) -> u64 {
        u64::from_ne_bytes(self.copy[SIZE..].try_into().unwrap())
    }

    fn fetch(&mut self, random: &mut Rng) -> Result<(), PostError> {
        self.before_a_change()?;
        let (before, operand) = (self.word(), random.u64(..));
        let (op, after) = if random.bool() {
            (AtomicOp::Add(operand), before.wrapping_add(operand))
        } else {
            let compare = [before, !before][random.usize(..2)];
            let after = if compare == before { operand } else { before };
            (AtomicOp::CompareSwap { compare, swap: operand }, after)
        };
        let (result, watch) = (FetchResult::new(), Watch::new(1));
        let remote = self.memory.address() + SIZE as u64;
        watch.posted(Ok(self.endpoint.atomic_fetch(
            op,
            remote,
            &self.key,
            &result,
            Some(&watch.completion),
        )?));
        self.copy[SIZE..].copy_from_slice(&after.to_ne_bytes());
        self.push("atomic_fetch", watch, Expected::Word(result, before), None, true);
        Ok(())
    }

    fn add(&mut self, random: &mut Rng) -> Result<(), PostError> {
        self.before_a_change()?;
        let operand = random.u64(..);
        let remote = self.memory.address() + SIZE as u64;
        self.endpoint.atomic_post(AtomicOp::Add(operand), remote, &self.key)?;
        let after = self.word().wrapping_add(operand);
        self.copy[SIZE..].copy_from_slice(&after.to_ne_bytes());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PostError> {
        let watch = Watch::new(1);
        watch.posted(Ok(self.endpoint.flush(FlushMode::Local, Some(&watch.completion))?));
        self.push("flush", watch, Expected::Nothing, None, false);
        Ok(())
    }

    fn push(
        &mut self,
        what: &'static str,
        watch: Watch,
        expected: Expected,
        slot: Option<usize>,
        reads: bool,
    ) {
        self.outstanding.push_back(Outstanding { what, watch, expected, slot, reads });
    }

    /// Checks the operations that are complete, and the messages that arrived.
    fn check(&mut self, context: &str) {
        let (name, local) = (self.name, &self.local);
        self.outstanding.retain(|Outstanding { what, watch, expected, slot, .. }| {
            assert!(watch.calls() <= 1, "{context}: {name}: {what} completed twice");
            let Some(result) = watch.result() else { return true };
            match (result, expected) {
                (Err(error), _) => {
                    assert_eq!(error.cause, Cause::Canceled, "{context}: {name}: {what}");
                    self.canceled += 1;
                }
                (Ok(()), Expected::Nothing) => {}
                (Ok(()), Expected::Bytes(bytes)) => {
                    let mut read = vec![0; bytes.len()];
                    local.read(slot.unwrap() * LONGEST, &mut read).unwrap();
                    assert!(read == *bytes, "{context}: {name}: {what} returned other bytes");
                }
                (Ok(()), Expected::Word(result, word)) => {
                    assert_eq!(result.get(), *word, "{context}: {name}: {what}");
                }
            }
            self.done += 1;
            self.free.extend(*slot);
            false
        });
        let inbox = self.inbox.borrow();
        assert!(inbox.len() <= self.sent.len(), "{context}: {name}: more messages than sent");
        assert!(self.sent.starts_with(&inbox), "{context}: {name}: other messages than sent");
    }

    /// Ends the endpoint with whatever is outstanding, and opens it again.
    fn reopen(&mut self, hosts: &mut [Host; 2], random: &mut Rng, context: &str) {
        if random.bool() {
            let watch = Watch::new(1);
            // Without room for it, dropping the endpoint has the same effect.
            if let Ok(posted) = self.endpoint.flush(FlushMode::Cancel, Some(&watch.completion)) {
                watch.posted(Ok(posted));
                self.push("cancel", watch, Expected::Nothing, None, false);
            }
        }
        let unconnected = Endpoint::new(&self.from.1).unwrap();
        drop(std::mem::replace(&mut self.endpoint, unconnected));
        let start = Instant::now();
        while !self.outstanding.is_empty() {
            hosts.iter_mut().for_each(Host::run);
            self.check(context);
            assert!(start.elapsed() < DEADLINE, "{context}: {}: not cancelled", self.name);
        }
        self.far = None;
        // What is on its way may still change the memory.
        settle(hosts);
        self.check(context);
        (self.endpoint, self.far) = Self::join(self.transport, &self.from.1, &self.to, self.beside);
        self.copy = contents(&self.memory);
        self.inbox.borrow_mut().clear();
        self.sent.clear();
    }

    /// Completes everything, and compares.
    fn finish(&mut self, hosts: &mut [Host; 2], context: &str) {
        let start = Instant::now();
        let mut flushed = false;
        while !flushed
            || !self.outstanding.is_empty()
            || self.inbox.borrow().len() < self.sent.len()
        {
            flushed |= match self.endpoint.flush(FlushMode::Remote, None) {
                Ok(posted) => posted == Posted::Done,
                Err(PostError::NoResource) => false,
                Err(error) => panic!("{context}: {}: {error}", self.name),
            };
            hosts.iter_mut().for_each(Host::run);
            self.check(context);
            assert!(start.elapsed() < DEADLINE, "{context}: {}: not finished", self.name);
        }
        assert!(contents(&self.memory) == self.copy, "{context}: {}: memory differs", self.name);
    }
}

/// Runs both hosts until neither has work.
fn settle(hosts: &mut [Host; 2]) {
    let start = Instant::now();
    while hosts.iter_mut().fold(false, |worked, host| host.pass() | worked) {
        assert!(start.elapsed() < DEADLINE, "the devices do not come to rest");
    }
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    done: usize,
    canceled: usize,
    reopened: usize,
}

/// One seed.
fn run(seed: u64) -> Counts {
    let context = format!("BAREWIRE_SOAK_FIRST={seed} BAREWIRE_SOAK_SEEDS=1");
    let mut random = Rng::with_seed(seed);
    let fabric = hca::Fabric::new();
    // Sometimes there is room for one dynamic connection only.
    let connections = [1, 4096][random.usize(..2)];
    let mut hosts =
        [seed, !seed].map(|seed| Host::open(&fabric, faults(&mut random, seed), connections));
    let config = InterfaceConfig::default()
        .send_ring(32)
        .receive_ring([4, 16][random.usize(..2)])
        .max_receive_buffers(64)
        .spare_receive_buffers(4)
        .bcopy_buffers(8)
        .max_endpoints(16)
        .dci_count(random.u32(1..=3))
        .message_window(8)
        .min_rnr_timer(1)
        .ack_timeout(8);
    let mut lines = vec![];
    for transport in
        [TransportId::RcMlx5, TransportId::DcMlx5, TransportId::XrcMlx5, TransportId::UdMlx5]
    {
        let domains = hosts.each_ref().map(|host| open_soft(transport, host.device.clone()));
        let mut open = |host: usize| {
            let domain = domains[host].clone();
            let interface = Interface::open(&mut hosts[host].worker, &domain, &config).unwrap();
            (domain, interface)
        };
        let (near, far) = (open(0), open(1));
        let names = match transport {
            TransportId::RcMlx5 => ["rc_mlx5", "rc_mlx5, back"],
            TransportId::DcMlx5 => ["dc_mlx5", "dc_mlx5, back"],
            TransportId::XrcMlx5 => ["xrc_mlx5", "xrc_mlx5, another interface"],
            _ => ["ud_mlx5", "ud_mlx5, back"],
        };
        lines.push(Line::open(names[0], transport, near.clone(), far.clone(), false));
        lines.push(match transport {
            TransportId::XrcMlx5 => Line::open(names[1], transport, near, open(1), true),
            // A connection of datagrams has two ends, which end together.
            TransportId::UdMlx5 => Line::open(names[1], transport, open(1), open(0), false),
            _ => Line::open(names[1], transport, far, near, false),
        });
    }
    let mut counts = Counts::default();
    for _ in 0..OPERATIONS {
        for line in &mut lines {
            line.post(&mut random, &context);
        }
        // Sometimes much is on its way, sometimes nothing.
        for _ in 0..[0, 1, 5, 40][random.usize(..4)] {
            hosts.iter_mut().for_each(Host::run);
        }
        for line in &mut lines {
            line.check(&context);
        }
        if random.usize(..30) == 0 {
            let at = random.usize(..lines.len());
            // With the first endpoint of a connection, others would end.
            if lines[at].transport != TransportId::XrcMlx5 || lines[at].beside {
                lines[at].reopen(&mut hosts, &mut random, &context);
                counts.reopened += 1;
            }
        }
    }
    for line in &mut lines {
        line.finish(&mut hosts, &context);
        counts.done += line.done;
        counts.canceled += line.canceled;
    }
    // Closing an interface waits until the device has sent the last packets, which needs steps.
    let interfaces: Vec<_> =
        lines.iter().flat_map(|line| [line.from.1.clone(), line.to.clone()]).collect();
    drop(lines);
    settle(&mut hosts);
    drop(interfaces);
    for Host { device, worker } in hosts {
        drop(worker);
        let left = device.objects();
        assert_eq!(left, hca::ObjectCounts::default(), "{context}: objects are left");
    }
    counts
}

#[test]
fn every_operation_of_a_mix_of_transports_completes_once() {
    if std::env::var_os("BAREWIRE_TEST_DEVICES").is_some() {
        // It does not use the devices of the machine.
        return;
    }
    let first = variable("BAREWIRE_SOAK_FIRST").unwrap_or(0);
    let seeds = variable("BAREWIRE_SOAK_SEEDS").unwrap_or(SEEDS);
    let mut sum = Counts::default();
    for seed in first..first.saturating_add(seeds) {
        let counts = run(seed);
        sum.done += counts.done;
        sum.canceled += counts.canceled;
        sum.reopened += counts.reopened;
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(seeds < 20 || sum.canceled > 0 && sum.done > sum.canceled, "{sum:?}");
}
