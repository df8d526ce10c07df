//! Messages over some of many connected endpoints: `many TRANSPORT ENDPOINTS BUSY BATCH MESSAGES`,
//! for `cargo xtask many`.
//!
//! Both ends are in this process, on one thread, and the software HCAs stand still while a call is
//! counted or timed. A batch of messages is posted over the busy endpoints in turn, received and
//! completed before the next. Only the functions of the module `counted` count.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::transport::{dc_mlx5, rc_mlx5, ud_mlx5};
use barewire::{
    Domain, Endpoint, FlushMode, Interface, InterfaceConfig, PostError, Posted, Worker,
};
use barewire_hca as hca;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ID: u8 = 1;
const DEADLINE: Duration = Duration::from_mins(20);

/// Connections that are set up at a time: the kernel's queues of them are short.
const AT_ONCE: usize = 64;

/// One end of all connections.
struct Side {
    worker: Worker,
    domain: Domain,
    interface: Interface,
    endpoints: Vec<Endpoint>,
    device: Option<hca::Device>,
    received: Rc<Cell<u64>>,
}

impl Side {
    fn open(transport: &str, fabric: &hca::Fabric, endpoints: u32) -> Outcome<Self> {
        let soft = |of: fn(rc_mlx5::Domain) -> Domain| -> Outcome<_> {
            let config = hca::Config::default()
                .mode(hca::Mode::Stepped)
                .wire(hca::WireKind::Fabric(fabric.clone()));
            let device = hca::Device::open(config)?;
            Ok((of(rc_mlx5::Domain::open_soft(device.clone())?), Some(device)))
        };
        let (domain, device) = match transport {
            "rc_mlx5" => soft(Domain::from_static::<rc_mlx5::RcMlx5>)?,
            "dc_mlx5" => soft(Domain::from_static::<dc_mlx5::DcMlx5>)?,
            "ud_mlx5" => soft(Domain::from_static::<ud_mlx5::UdMlx5>)?,
            "shm" => (Domain::open(&"shm/memory".parse()?)?, None),
            "tcp" => (Domain::open(&"tcp/lo".parse()?)?, None),
            other => return Err(format!("no transport {other}").into()),
        };
        let config = InterfaceConfig::default()
            .max_endpoints(endpoints)
            .send_ring(16)
            .dci_count(16)
            .receive_ring(128);
        let mut worker = Worker::new();
        let interface = Interface::open(&mut worker, &domain, &config)?;
        let received = Rc::new(Cell::new(0));
        let count = Rc::clone(&received);
        interface.set_handler(ID, move |_| count.set(count.get() + 1))?;
        Ok(Self { worker, domain, interface, endpoints: vec![], device, received })
    }

    fn step(&self) -> bool {
        self.device.as_ref().is_some_and(hca::Device::step)
    }
}

mod counted {
    use super::{Endpoint, ID, PostError, Worker};

    #[inline(never)]
    pub(super) fn post(endpoint: &Endpoint, round: u64) -> Result<(), PostError> {
        endpoint.am_short(ID, round, &[5; 8])
    }

    #[inline(never)]
    pub(super) fn progress(worker: &mut Worker) -> usize {
        worker.progress()
    }
}

/// The end of a batch, where callgrind writes what it has counted.
#[inline(never)]
fn batch_done(ticks: u64) -> u64 {
    std::hint::black_box(ticks)
}

/// Both ends.
struct Sides {
    client: Side,
    server: Side,
    start: Instant,
}

impl Sides {
    fn open(transport: &str, endpoints: u32) -> Outcome<Self> {
        let fabric = hca::Fabric::new();
        let open = || Side::open(transport, &fabric, endpoints);
        Ok(Self { client: open()?, server: open()?, start: Instant::now() })
    }

    fn connect(&mut self, endpoints: u64) -> Outcome<()> {
        let mut created = 0;
        for _ in 0..endpoints {
            let near = Endpoint::new(&self.client.interface)?;
            let far = Endpoint::new(&self.server.interface)?;
            near.connect(&far.address())?;
            far.connect(&near.address())?;
            self.client.endpoints.push(near);
            self.server.endpoints.push(far);
            created += 1;
            if created == AT_ONCE {
                self.accept(created)?;
                created = 0;
            }
        }
        self.accept(created)
    }

    /// Sends a message over each of the endpoints that were created last, and waits until all have
    /// arrived: the connections are established.
    fn accept(&mut self, created: usize) -> Outcome<()> {
        let first = self.client.endpoints.len() - created;
        let wanted = self.server.received.get() + created as u64;
        for at in first..self.client.endpoints.len() {
            while let Err(error) = self.client.endpoints[at].am_short(ID, 0, &[5; 8]) {
                if error != PostError::NoResource {
                    return Err(error.into());
                }
                self.run()?;
            }
        }
        while self.server.received.get() < wanted {
            self.run()?;
        }
        // An endpoint whose message is not acknowledged yet is not idle: it has a timer.
        for at in first..self.client.endpoints.len() {
            while self.client.endpoints[at].flush(FlushMode::Local, None)? != Posted::Done {
                self.run()?;
            }
        }
        Ok(())
    }

    /// Lets devices and both ends make progress, uncounted.
    fn run(&mut self) -> Outcome<()> {
        self.step();
        self.server.worker.progress();
        self.step();
        self.client.worker.progress();
        self.in_time()
    }

    /// Steps both devices until neither has work.
    fn step(&self) {
        while self.client.step() | self.server.step() {}
    }

    fn in_time(&self) -> Outcome<()> {
        if self.start.elapsed() > DEADLINE {
            return Err(format!("not done after {DEADLINE:?}").into());
        }
        Ok(())
    }

    /// Posts, receives and completes `batch` messages over the first `busy` endpoints in turn, from
    /// message `first` on. Returns the ticks of the counted calls.
    fn exchange(&mut self, first: u64, batch: u64, busy: u64) -> Outcome<u64> {
        let wanted = self.server.received.get() + batch;
        let mut ticks = 0;
        for message in first..first + batch {
            let at = (message % busy) as usize;
            loop {
                let since = now();
                let posted = counted::post(&self.client.endpoints[at], message);
                ticks += now() - since;
                match posted {
                    Ok(()) => break,
                    // A window or a queue is full.
                    Err(PostError::NoResource) => ticks += self.progress(),
                    Err(error) => return Err(error.into()),
                }
                self.in_time()?;
            }
        }
        self.step();
        while self.server.received.get() < wanted {
            let (more, events) = progress(&mut self.server.worker);
            ticks += more;
            if events == 0 {
                // What did not fit into a socket is sent by progress.
                ticks += progress(&mut self.client.worker).0;
            }
            self.step();
            self.in_time()?;
        }
        // Completions and acknowledgements.
        loop {
            self.step();
            let (more, events) = progress(&mut self.client.worker);
            ticks += more;
            if events == 0 {
                return Ok(ticks);
            }
        }
    }

    /// Lets both ends make progress once. Returns the ticks.
    fn progress(&mut self) -> u64 {
        self.step();
        let (server, _) = progress(&mut self.server.worker);
        self.step();
        server + progress(&mut self.client.worker).0
    }
}

/// Returns the ticks and the events of a call.
fn progress(worker: &mut Worker) -> (u64, usize) {
    let since = now();
    let events = counted::progress(worker);
    (now() - since, events)
}

#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it accesses no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    0
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [transport, numbers @ ..] = &arguments[..] else {
        // `cargo bench` and `cargo test` run it without arguments.
        return Ok(());
    };
    let numbers: Vec<u64> = numbers.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [endpoints, busy, batch, messages] = numbers[..] else {
        return Err("usage: many TRANSPORT ENDPOINTS BUSY BATCH MESSAGES".into());
    };
    if !(1..=endpoints).contains(&busy) || batch == 0 || messages < batch {
        return Err("of the endpoints at least one is busy, and there is at least one batch".into());
    }
    let limit = getrlimit(Resource::Nofile);
    // Sockets of both ends. Only root may raise the maximum.
    let files = Some(4 * endpoints + 1000).max(limit.maximum);
    if setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).is_err() {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    let mut sides = Sides::open(transport, u32::try_from(endpoints)?)?;
    sides.connect(1)?;
    let before = resident()?;
    sides.connect(endpoints - 1)?;
    let memory = resident()?.saturating_sub(before);
    let (origin, since) = (Instant::now(), now());
    let mut ticks = Vec::with_capacity((messages / batch) as usize);
    for number in 0..messages / batch {
        ticks.push(batch_done(sides.exchange(number * batch, batch, busy)?));
    }
    let tick = origin.elapsed().as_nanos() as f64 / (now() - since).max(1) as f64;
    for endpoint in sides.client.endpoints.iter().chain(&sides.server.endpoints) {
        if let Some(error) = endpoint.error() {
            return Err(error.into());
        }
    }
    ticks.sort_unstable();
    let median = ticks[ticks.len() / 2] as f64 * tick / batch as f64;
    println!(
        r#"{{"nanoseconds": {median:.1}, "bytes_per_endpoint": {}}}"#,
        memory / (2 * (endpoints - 1)).max(1)
    );
    // Closing ten thousand endpoints is not measured.
    let Sides { client, server, .. } = sides;
    for side in [client, server] {
        std::mem::forget((side.worker, side.interface, side.endpoints, side.domain));
    }
    Ok(())
}

/// Returns the resident memory of the process.
fn resident() -> Outcome<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).ok_or("no resident pages")?.parse::<u64>()?;
    Ok(resident * rustix::param::page_size() as u64)
}
