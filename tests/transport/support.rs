//! Shared by the integration tests: connected pairs over every transport, byte patterns and
//! deadlines.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::TransportId::RcMlx5;
use barewire::config::Choice;
use barewire::transport::{dc_mlx5, rc_mlx5, ud_mlx5, xrc_mlx5};
use barewire::{
    Access, Completion, DeviceId, Domain, Endpoint, EndpointError, FlushMode, Hold, Interface,
    InterfaceConfig, Memory, OperationError, PeerAddress, PendingResult, Post, PostError, Posted,
    RemoteKey, TransportId, Worker,
};
use barewire_hca as hca;

/// Time limit for a machine under load; no test waits for it to pass.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) domain: Domain,
    pub(crate) interface: Interface,
    pub(crate) endpoint: Endpoint,
}

impl Side {
    /// An interface with an unconnected endpoint, for transports that connect endpoints.
    pub(crate) fn open(worker: &mut Worker, domain: &Domain, config: &InterfaceConfig) -> Self {
        let interface = Interface::open(worker, domain, config).unwrap();
        let endpoint = Endpoint::new(&interface).unwrap();
        Self { domain: domain.clone(), interface, endpoint }
    }

    /// Another handle to the same objects.
    pub(crate) fn another_handle(&self) -> Self {
        Self {
            domain: self.domain.clone(),
            interface: self.interface.clone(),
            endpoint: self.endpoint.clone(),
        }
    }

    /// Another endpoint on the same interface.
    pub(crate) fn another(&self) -> Self {
        let (domain, interface) = (self.domain.clone(), self.interface.clone());
        let endpoint = Endpoint::new(&interface).unwrap();
        Self { domain, interface, endpoint }
    }
}

/// Two connected ends, each with a worker. Over `self` both are the same, and the server's worker
/// has nothing to do.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) worker: Worker,
    pub(crate) server_worker: Worker,
    pub(crate) client: Side,
    pub(crate) server: Side,
    /// Software HCAs, whose reports are checked when the pair is dropped.
    pub(crate) devices: Vec<hca::Device>,
}

/// Returns whether the environment names devices to test.
fn on_the_machine() -> bool {
    std::env::var_os("BAREWIRE_TEST_DEVICES").is_some()
}

/// Opens a software HCA.
pub(crate) fn device(faults: hca::Faults) -> hca::Device {
    let reserved_bits = hca::ReservedBits::Refuse;
    hca::Device::open(hca::Config::default().faults(faults).reserved_bits(reserved_bits))
        .expect("software HCA")
}

/// Opens a domain on a software HCA.
pub(crate) fn open_soft(transport: TransportId, device: hca::Device) -> Domain {
    let domain = rc_mlx5::Domain::open_soft(device).unwrap();
    match transport {
        TransportId::DcMlx5 => Domain::from_static::<dc_mlx5::DcMlx5>(domain),
        TransportId::XrcMlx5 => Domain::from_static::<xrc_mlx5::XrcMlx5>(domain),
        TransportId::UdMlx5 => Domain::from_static::<ud_mlx5::UdMlx5>(domain),
        _ => Domain::from_static::<rc_mlx5::RcMlx5>(domain),
    }
}

impl Pair {
    /// All transports and ways to connect; only devices of the machine if the environment names
    /// them: see [`Self::rc`].
    pub(crate) fn all_with(config: &InterfaceConfig) -> Vec<Self> {
        let mut pairs = Self::joined(config);
        if !on_the_machine() {
            pairs.extend([Self::over_self(config), Self::over_shm(config)]);
        }
        pairs
    }

    /// The transports that connect endpoints.
    pub(crate) fn joined(config: &InterfaceConfig) -> Vec<Self> {
        let mut pairs = Self::rc(config);
        if !on_the_machine() {
            pairs.push(Self::over_tcp(config));
        }
        pairs
    }

    /// Over `tcp` on the loopback.
    pub(crate) fn over_tcp(config: &InterfaceConfig) -> Self {
        let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
        let open = |worker: &mut Worker| {
            Side::open(worker, &Domain::open(&"tcp/lo".parse().unwrap()).unwrap(), config)
        };
        let (client, server) = (open(&mut worker), open(&mut server_worker));
        connect(&client, &server);
        Self { name: "tcp", worker, server_worker, client, server, devices: vec![] }
    }

    /// `rc_mlx5`: in the loopback of one device, and between two devices over UDP. If the
    /// environment names two devices of the machine (`BAREWIRE_TEST_DEVICES=mlx5_0:1,mlx5_1:1`), on
    /// those; then also `rc_verbs`, if `BAREWIRE_TEST_TRANSPORT` names it.
    pub(crate) fn rc(config: &InterfaceConfig) -> Vec<Self> {
        if let Ok(names) = std::env::var("BAREWIRE_TEST_DEVICES") {
            let (one, other) = names.split_once(',').expect("two devices, with a comma");
            let transport =
                std::env::var("BAREWIRE_TEST_TRANSPORT").unwrap_or_else(|_| "rc_mlx5".to_owned());
            let transport: TransportId = transport.parse().unwrap();
            let open = |name| Domain::open(&DeviceId::new(transport, name)).unwrap();
            return vec![
                Self::over_machine("one device of the machine", config, &open(one), &open(one)),
                Self::over_machine("two devices of the machine", config, &open(one), &open(other)),
            ];
        }
        let one = device(hca::Faults::default());
        vec![
            Self::over_soft("rc_mlx5, one device", config, RcMlx5, [one.clone(), one]),
            Self::over_udp(config, hca::Faults::default()),
        ]
    }

    /// Devices of the machine.
    pub(crate) fn over_machine(
        name: &'static str,
        config: &InterfaceConfig,
        client: &Domain,
        server: &Domain,
    ) -> Self {
        // Soft-RoCE in an emulated guest may take seconds to respond: 4.3 s for each attempt.
        let slow =
            std::env::var("BAREWIRE_TEST_DEVICES").is_ok_and(|names| names.starts_with("rxe"));
        let ack_timeout = if slow { 20 } else { config.ack_timeout };
        // The same tests run with and without a shared receive queue.
        let shared_receive_queue = match config.shared_receive_queue {
            Choice::Auto => InterfaceConfig::from_env().unwrap().shared_receive_queue,
            chosen => chosen,
        };
        let config =
            config.clone().ack_timeout(ack_timeout).shared_receive_queue(shared_receive_queue);
        Self::over(name, &config, client, server)
    }

    /// Over `rc_mlx5` between two devices whose wires have faults.
    pub(crate) fn over_udp(config: &InterfaceConfig, faults: hca::Faults) -> Self {
        let devices = [device(faults.clone()), device(faults)];
        Self::over_soft("rc_mlx5, two devices", config, RcMlx5, devices)
    }

    pub(crate) fn over_self(config: &InterfaceConfig) -> Self {
        let mut worker = Worker::new();
        let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
        let interface = Interface::open(&mut worker, &domain, config).unwrap();
        let endpoint = interface.connect(&interface.address()).unwrap();
        let client = Side { domain, interface, endpoint };
        let server = Side {
            domain: client.domain.clone(),
            interface: client.interface.clone(),
            endpoint: client.endpoint.clone(),
        };
        Self { name: "self", worker, server_worker: Worker::new(), client, server, devices: vec![] }
    }

    /// Over `cma`, with both ends in this process.
    pub(crate) fn over_cma(config: &InterfaceConfig) -> Self {
        let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
        let open = |worker: &mut Worker| {
            Side::open(worker, &Domain::open(&"cma/memory".parse().unwrap()).unwrap(), config)
        };
        let (client, server) = (open(&mut worker), open(&mut server_worker));
        connect(&client, &server);
        Self { name: "cma", worker, server_worker, client, server, devices: vec![] }
    }

    /// Over `shm`, between two connected interfaces of this process.
    pub(crate) fn over_shm(config: &InterfaceConfig) -> Self {
        let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
        let open = |worker: &mut Worker| {
            Side::open(worker, &Domain::open(&"shm/memory".parse().unwrap()).unwrap(), config)
        };
        let (client, server) = (open(&mut worker), open(&mut server_worker));
        connect(&client, &server);
        let mut pair = Self { name: "shm", worker, server_worker, client, server, devices: vec![] };
        pair.connected();
        pair
    }

    /// Waits until both endpoints accept posts.
    pub(crate) fn connected(&mut self) {
        let endpoints = [self.client.endpoint.clone(), self.server.endpoint.clone()];
        self.taken_by(&endpoints.each_ref());
    }

    /// Like `connected`, for other endpoints.
    pub(crate) fn taken_by(&mut self, endpoints: &[&Endpoint]) {
        let taken =
            || endpoints.iter().all(|endpoint| endpoint.flush(FlushMode::Local, None).is_ok());
        self.until("connecting", taken);
    }

    /// Over a transport of software HCAs.
    pub(crate) fn over_soft(
        name: &'static str,
        config: &InterfaceConfig,
        transport: TransportId,
        devices: [hca::Device; 2],
    ) -> Self {
        let [client, server] = devices.clone().map(|device| open_soft(transport, device));
        let mut pair = Self::over(name, config, &client, &server);
        pair.devices = devices.into();
        pair
    }

    /// Over a transport that connects endpoints.
    fn over(
        name: &'static str,
        config: &InterfaceConfig,
        client: &Domain,
        server: &Domain,
    ) -> Self {
        let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
        let client = Side::open(&mut worker, client, config);
        let server = Side::open(&mut server_worker, server, config);
        connect(&client, &server);
        Self { name, worker, server_worker, client, server, devices: vec![] }
    }

    /// Over `rc_mlx5` in the loopback of a device that only runs when stepped.
    pub(crate) fn stepped(config: &InterfaceConfig) -> Self {
        let wire = hca::WireKind::Fabric(hca::Fabric::default());
        let reserved_bits = hca::ReservedBits::Refuse;
        let device =
            hca::Config::default().mode(hca::Mode::Stepped).wire(wire).reserved_bits(reserved_bits);
        let device = hca::Device::open(device).expect("software HCA");
        Self::over_soft("rc_mlx5, stepped", config, RcMlx5, [device.clone(), device])
    }

    /// Like `flush`, for a stepped device.
    pub(crate) fn flush_stepped(&mut self) {
        while self.client.endpoint.flush(FlushMode::Local, None) != Ok(Posted::Done) {
            self.settle();
        }
    }

    /// Steps the device and progresses both ends until there are no more events.
    pub(crate) fn settle(&mut self) {
        loop {
            let stepped = self.devices[0].step();
            let events = self.worker.progress() + self.server_worker.progress();
            if !stepped && events == 0 {
                return;
            }
        }
    }

    /// Makes progress until `done`.
    ///
    /// # Panics
    /// After [`DEADLINE`].
    pub(crate) fn until(&mut self, what: &str, done: impl FnMut() -> bool) {
        until(
            &mut [&mut self.worker, &mut self.server_worker],
            &format!("{}: {what}", self.name),
            done,
        );
    }

    /// Posts, and makes progress while there are no resources.
    pub(crate) fn post<T>(
        &mut self,
        what: &str,
        mut post: impl FnMut(&Endpoint) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        let endpoint = self.client.endpoint.clone();
        let mut answer = None;
        self.until(what, || {
            answer = Some(post(&endpoint));
            !matches!(answer, Some(Err(PostError::NoResource)))
        });
        answer.unwrap()
    }

    /// Flushes the client's endpoint.
    pub(crate) fn flush(&mut self, mode: FlushMode) {
        let done = self.post("flush", |endpoint| match endpoint.flush(mode, None)? {
            Posted::Done => Ok(()),
            Posted::InProgress => Err(PostError::NoResource),
        });
        done.unwrap_or_else(|error| panic!("{}: flush: {error}", self.name));
    }

    /// Memory at the server with a key for the client.
    pub(crate) fn target(&self, len: usize, access: Access) -> (Memory, RemoteKey) {
        let memory = self.server.domain.allocate(len, access).unwrap();
        let key = self.client.domain.unpack_key(&memory.pack_key()).unwrap();
        (memory, key)
    }

    /// Waits until the peer has passed the region of the key, over transports that map it.
    pub(crate) fn reach(&mut self, key: &RemoteKey) {
        let mapped = self.post("reach", |endpoint| endpoint.rkey_ptr(key).map(drop));
        assert!(
            matches!(mapped, Ok(()) | Err(PostError::Unsupported)),
            "{}: {mapped:?}",
            self.name
        );
    }

    pub(crate) fn is_self(&self) -> bool {
        self.name == "self"
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for device in &self.devices {
            let reports = device.take_reports();
            assert!(reports.is_empty(), "{}: the device complains: {reports:?}", self.name);
        }
    }
}

/// Connects two endpoints, through the bytes that processes would exchange.
pub(crate) fn connect(a: &Side, b: &Side) {
    for (from, to) in [(a, b), (b, a)] {
        let address = PeerAddress::from_bytes(&to.endpoint.address().to_bytes()).unwrap();
        from.endpoint.connect(&address).unwrap();
    }
}

/// Makes progress until `done`.
///
/// # Panics
/// After [`DEADLINE`].
pub(crate) fn until(workers: &mut [&mut Worker], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    let mut idle = 0u32;
    while !done() {
        if workers.iter_mut().map(|worker| worker.progress()).sum::<usize>() > 0 {
            idle = 0;
            continue;
        }
        // The thread of the device needs the CPU as well.
        std::thread::yield_now();
        idle += 1;
        if idle.is_multiple_of(64) {
            assert!(start.elapsed() < DEADLINE, "{what}: not done after {DEADLINE:?}");
        }
    }
}

/// Bytes that depend on `seed` and position.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// The contents of a region.
pub(crate) fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A completion and its outcome.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) completion: Completion,
    /// Operations that are still to be posted.
    left: Rc<Cell<u32>>,
    /// Ends with the last post, if there are several.
    hold: Rc<Cell<Option<Hold>>>,
    calls: Rc<Cell<u32>>,
    result: Rc<Cell<Option<Result<(), OperationError>>>>,
}

impl Watch {
    /// For `count` operations. If they are several, each post is passed to [`Self::posted`].
    pub(crate) fn new(count: u32) -> Self {
        let calls: Rc<Cell<u32>> = Rc::default();
        let result: Rc<Cell<Option<Result<(), OperationError>>>> = Rc::default();
        let seen = (Rc::clone(&calls), Rc::clone(&result));
        let completion = Completion::new(move |result| {
            seen.0.set(seen.0.get() + 1);
            seen.1.set(Some(result));
        });
        let hold = (count > 1).then(|| completion.hold());
        let (left, hold) = (Rc::new(Cell::new(count)), Rc::new(Cell::new(hold)));
        Self { completion, left, hold, calls, result }
    }

    /// How often the callback ran.
    pub(crate) fn calls(&self) -> u32 {
        self.calls.get()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.calls() > 0
    }

    pub(crate) fn result(&self) -> Option<Result<(), OperationError>> {
        self.result.get()
    }

    /// Runs the callback also if the operations were done at once.
    pub(crate) fn posted(&self, post: Post) {
        if post.unwrap() == Posted::Done {
            drop(self.completion.hold());
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            drop(self.hold.take());
        }
    }
}

/// The errors that the handler of an interface receives.
pub(crate) fn watch_errors(interface: &Interface) -> Rc<RefCell<Vec<EndpointError>>> {
    let errors: Rc<RefCell<Vec<EndpointError>>> = Rc::default();
    let seen = Rc::clone(&errors);
    interface.set_error_handler(move |error| seen.borrow_mut().push(error.clone()));
    errors
}

/// The messages that a handler received.
pub(crate) type Inbox = Rc<RefCell<Vec<Vec<u8>>>>;

/// Collects the messages of one id.
pub(crate) fn collect(interface: &Interface, id: u8) -> Inbox {
    let inbox = Inbox::default();
    let seen = Rc::clone(&inbox);
    interface
        .set_handler(id, move |message| seen.borrow_mut().push(message.data().to_vec()))
        .unwrap();
    inbox
}

/// Sizes around a limit; a selection if there is none.
pub(crate) fn sizes(limit: usize) -> Vec<usize> {
    if limit > 1 << 24 {
        return vec![0, 1, 7, 8, 9, 4096, 8191, 8192, 8193, 100_003];
    }
    vec![0, 1, limit / 2, limit - 1, limit]
}

pub(crate) fn expect_too_long(
    pair: &Pair,
    what: &str,
    limit: usize,
    answer: Result<(), PostError>,
) {
    assert_eq!(
        answer,
        Err(PostError::TooLong { length: limit as u32 + 1, limit: limit as u32 }),
        "{}: {what}",
        pair.name
    );
}

/// Splits a range of memory into `parts` uneven slices.
pub(crate) fn parts(memory: &Memory, length: usize, parts: usize) -> Vec<barewire::Slice<'_>> {
    let mut at = 0;
    (0..parts)
        .map(|part| {
            let rest = length - at;
            let take = if part + 1 == parts { rest } else { (rest / 2).min(part * 1000 + 1) };
            at += take;
            memory.slice(at - take, take).unwrap()
        })
        .collect()
}

pub(crate) fn small() -> InterfaceConfig {
    InterfaceConfig::default()
        .send_ring(16)
        .receive_ring(8)
        .spare_receive_buffers(2)
        .bcopy_buffers(4)
        .max_endpoints(4)
        .min_rnr_timer(1)
}

/// Posts messages with increasing headers until the queue is full. Returns the next header.
pub(crate) fn fill(endpoint: &Endpoint, id: u8) -> u64 {
    let mut next = 0;
    loop {
        match endpoint.am_short(id, next, &[0; 160]) {
            Ok(()) => next += 1,
            Err(error) => {
                assert_eq!(error, PostError::NoResource);
                return next;
            }
        }
    }
}

pub(crate) fn headers(inbox: &Inbox) -> Vec<u64> {
    inbox.borrow().iter().map(|m| u64::from_le_bytes(m[..8].try_into().unwrap())).collect()
}

/// A pending request that posts one message.
pub(crate) fn send_later(id: u8, header: u64) -> impl FnMut(&Endpoint) -> PendingResult {
    move |endpoint| match endpoint.am_short(id, header, &[0; 160]) {
        Ok(()) => PendingResult::Done,
        Err(PostError::NoResource) => PendingResult::Again,
        Err(error) => panic!("{error}"),
    }
}

/// Posts an operation that the transport has, on the client's endpoint.
pub(crate) fn post_anything(
    pair: &Pair,
    memory: &Memory,
    key: &RemoteKey,
) -> Result<(), PostError> {
    let endpoint = &pair.client.endpoint;
    if pair.client.interface.attributes().flags.contains(barewire::Flags::AM_BCOPY) {
        endpoint.am_bcopy(0, |_| 0).map(drop)
    } else {
        endpoint.put_zcopy(&[], memory.address(), key, None).map(drop)
    }
}

/// Transfers of `size` bytes each, from one end of the local memory and the other end of the remote
/// one.
pub(crate) fn transfers<'a>(
    count: usize,
    size: usize,
    local: &'a Memory,
    remote: &Memory,
    key: &'a RemoteKey,
) -> Vec<barewire::Transfer<'a>> {
    (0..count)
        .map(|at| barewire::Transfer {
            local: local.slice(at * size, size).unwrap(),
            remote: remote.address() + ((count - 1 - at) * size) as u64,
            key,
        })
        .collect()
}
