//! Set-up, capabilities, doorbells and objects.

use std::time::{Duration, Instant};

use barewire::{Flags, TransportId};
use barewire_mlx5::channel::DeviceEvents;
use barewire_mlx5::doorbell::{Adaptive, BlueFlame, BlueFlameFlush, Doorbell, PlainDoorbell};
use barewire_mlx5::request::{Word, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, Polled,
    ProtectionDomain, QpState, RcConfig, RcPath, RcQueuePair, Uar,
};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;
use super::session;

/// Completions of one queue.
const ENTRIES: u32 = 512;
/// Writes per kind of doorbell.
const WRITES: u64 = 200;
/// An operation that takes longer may be one of a device that failed.
const SLOW: Duration = Duration::from_millis(100);
/// The most time for one operation: more than all retries take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens an interface. A device that lacks DC or XRC, or is not set up by DEVX, skips the rows of
/// these.
pub(in super::super) fn setup(target: &Target) -> Checked {
    let transport = target.transport()?;
    let optional = matches!(transport, TransportId::DcMlx5 | TransportId::XrcMlx5);
    opened(target).map_err(|halt| match halt {
        Halt::Failed(reason) if optional && !target.is_soft() => Halt::Skipped(reason),
        halt => halt,
    })?;
    Ok("a domain and an interface open".to_owned())
}

fn opened(target: &Target) -> Checked<()> {
    let id = barewire::DeviceId::new(target.transport()?, &target.device);
    let domain = barewire::Domain::open(&id)?;
    let config = barewire::InterfaceConfig::from_env()?;
    let mut worker = barewire::Worker::new();
    barewire::Interface::open(&mut worker, &domain, &config)?;
    Ok(())
}

/// Reports what the device can do.
pub(in super::super) fn capabilities(target: &Target) -> Checked {
    if !target.is_mlx5() {
        return limits(target);
    }
    let context = target.context()?;
    let has = context.capabilities();
    let (first, last) = has.udp_source_ports;
    Ok(format!(
        "{} WQEBBs, {} CQEs, messages of {} bytes, reads 2^{}/2^{}, atomics {}, masked atomics {}, UDP source ports \
         {first}-{last}, time stamps {}{}",
        has.max_queue_entries,
        has.max_cq_entries,
        has.max_message,
        has.log_max_reads_requester,
        has.log_max_reads_responder,
        yes(has.atomics),
        yes(has.masked_atomics),
        if has.timestamp_formats { "in the device's default format" } else { "free-running" },
        if has.relaxed_keys { ", memory keys with relaxed order of writes only" } else { "" },
    ))
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

#[cfg(feature = "verbs")]
fn limits(target: &Target) -> Checked {
    let (name, _) = target.name_and_port()?;
    let limits = barewire_verbs::Context::open(name)?.limits()?;
    Ok(format!(
        "{} requests, {} CQEs, {} elements, reads {}/{}, atomics {:?}",
        limits.requests,
        limits.completions,
        limits.elements,
        limits.initiator_depth,
        limits.responder_resources,
        limits.atomics,
    ))
}

#[cfg(not(feature = "verbs"))]
fn limits(_: &Target) -> Checked {
    Err(Halt::Skipped("this build lacks the feature verbs".to_owned()))
}

/// A queue pair that is connected to itself, with memory.
struct Loop<D: Doorbell> {
    completions: CompletionQueue,
    pair: RcQueuePair<D>,
    memory: Buffer,
    events: Option<Box<dyn DeviceEvents>>,
}

impl<D: Doorbell> Loop<D> {
    fn new(context: &Context) -> Checked<Self> {
        let domain = ProtectionDomain::allocate(context)?;
        let uar = Uar::allocate(context)?;
        Self::with(context, &domain, &uar)
    }

    fn with(context: &Context, domain: &ProtectionDomain, uar: &Uar) -> Checked<Self> {
        let completions = CompletionQueue::create(context, uar, ENTRIES)?;
        let config = RcConfig::default().send_blocks(64);
        let mut pair = RcQueuePair::create_with(domain, uar, &completions, &completions, &config)?;
        pair.connect(&RcPath::to(&pair.address()))?;
        let memory = Buffer::allocate(domain, 4096, Access::all())?;
        Ok(Self { completions, pair, memory, events: context.device_events()? })
    }

    /// Writes `value` to a word of the memory.
    fn write(&mut self, slot: usize, value: u64) -> Checked<()> {
        let remote = self.memory.region().remote(8 * slot);
        let flags = ControlFlags::COMPLETION;
        self.pair.send.post(Write { local: Word(value.to_ne_bytes()), remote }, flags)?;
        Ok(())
    }

    /// Waits until everything posted has completed.
    fn wait(&mut self) -> Checked<()> {
        let start = Instant::now();
        while !self.pair.send.is_idle() {
            match self.completions.poll().map(Polled::completion) {
                Some(completion) if completion.kind == CompletionKind::Send => {
                    self.pair.send.reap(completion.wqe_counter);
                }
                Some(completion) => {
                    return Err(Halt::failed(format!("a write ended with {:?}", completion.kind)));
                }
                None if start.elapsed() > SLOW
                    && let Some(failure) = self.events.as_ref().and_then(|e| e.failure()) =>
                {
                    return Err(Halt::failed(format!("the device failed: {failure}")));
                }
                None if start.elapsed() > PATIENCE => {
                    return Err(Halt::failed("a write did not complete: its doorbell may be lost"));
                }
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    /// Compares a word of the memory.
    fn holds(&self, slot: usize, value: u64) -> Checked<()> {
        let mut bytes = [0; 8];
        self.memory.read(8 * slot, &mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        ensure(found == value, || format!("word {slot} is {found:#x} instead of {value:#x}"))
    }
}

/// Writes with every kind of doorbell.
pub(in super::super) fn doorbells(target: &Target) -> Checked {
    if target.transport()? != TransportId::RcMlx5 {
        session(target)?;
        return Ok(if target.is_mlx5() {
            "as those of rc_mlx5: a queue pair has its register".to_owned()
        } else {
            "libibverbs rings them: a queue pair has its page".to_owned()
        });
    }
    let context = target.context()?;
    let mut times = Vec::new();
    // The plain doorbell first: if only it works, the error says so.
    times.push(("8 bytes", rung::<PlainDoorbell>(&context)?));
    batches(&context)?;
    in_turns(&context)?;
    if !context.capabilities().write_combining {
        times.push(("both ways", rung::<Adaptive>(&context)?));
        return Ok(format!("{}; pages are not write-combining, so no BlueFlame", list(&times)));
    }
    let blueflame = rung::<BlueFlame>(&context).map_err(|halt| match halt {
        Halt::Failed(reason) => {
            Halt::failed(format!("doorbells of 8 bytes work, whole WQEs do not: {reason}"))
        }
        halt @ Halt::Skipped(_) => halt,
    })?;
    times.push(("BlueFlame", blueflame));
    times.push(("BlueFlame with flush", rung::<BlueFlameFlush>(&context)?));
    Ok(format!("{}; lists; 16 queues in turns", list(&times)))
}

/// The times of a write by each doorbell, as text.
fn list(times: &[(&str, f64)]) -> String {
    let times = times.iter().map(|(what, time)| format!("{what} {:.1} us", time * 1e6));
    times.collect::<Vec<_>>().join(", ")
}

/// Writes one word after another, and returns the seconds per write.
fn rung<D: Doorbell>(context: &Context) -> Checked<f64> {
    let mut queue = Loop::<D>::new(context)?;
    let start = Instant::now();
    for value in 1..=WRITES {
        queue.write(0, value)?;
        queue.wait()?;
        queue.holds(0, value)?;
    }
    Ok(start.elapsed().as_secs_f64() / WRITES as f64)
}

/// Lists of writes with one doorbell each.
fn batches(context: &Context) -> Checked<()> {
    const LENGTH: usize = 8;
    let mut queue = Loop::<Adaptive>::new(context)?;
    for round in 1..=50_u64 {
        let mut batch = queue.pair.send.batch();
        for slot in 0..LENGTH {
            let value = round << 32 | slot as u64;
            let remote = queue.memory.region().remote(8 * slot);
            batch.post(
                Write { local: Word(value.to_ne_bytes()), remote },
                ControlFlags::COMPLETION,
            )?;
        }
        drop(batch);
        queue.wait()?;
        for slot in 0..LENGTH {
            queue.holds(slot, round << 32 | slot as u64)?;
        }
    }
    Ok(())
}

/// Queues that share a register, in turns.
fn in_turns(context: &Context) -> Checked<()> {
    let domain = ProtectionDomain::allocate(context)?;
    let uar = Uar::allocate(context)?;
    let queues = (0..16).map(|_| Loop::<Adaptive>::with(context, &domain, &uar));
    let mut queues = queues.collect::<Checked<Vec<_>>>()?;
    for value in 1..=20 {
        for queue in &mut queues {
            queue.write(1, value)?;
        }
        for queue in &mut queues {
            queue.wait()?;
            queue.holds(1, value)?;
        }
    }
    Ok(())
}

/// Creates the objects, and moves a queue pair through its states.
pub(in super::super) fn objects(target: &Target) -> Checked {
    if target.transport()? != TransportId::RcMlx5 {
        return endpoints(target);
    }
    let context = target.context()?;
    let domain = ProtectionDomain::allocate(&context)?;
    let uar = Uar::allocate(&context)?;
    let mut clock = Instant::now();
    let mut lap = || {
        let time = clock.elapsed().as_secs_f64() * 1e3;
        clock = Instant::now();
        time
    };
    let completions = CompletionQueue::create(&context, &uar, ENTRIES)?;
    let cq = lap();
    let config = RcConfig::default();
    let mut pair: RcQueuePair<PlainDoorbell> =
        RcQueuePair::create_with(&domain, &uar, &completions, &completions, &config)?;
    let qp = lap();
    // Twice: a queue pair is used again after a reset.
    let mut connect = 0.0;
    for _ in 0..2 {
        in_state(&pair, QpState::Init)?;
        lap();
        pair.connect(&RcPath::to(&pair.address()))?;
        connect = lap();
        in_state(&pair, QpState::Rts)?;
        pair.to_error()?;
        in_state(&pair, QpState::Err)?;
        pair.reset()?;
    }
    Ok(format!(
        "CQ {cq:.2} ms, QP {qp:.2} ms, connecting {connect:.2} ms; init, ready, error, reset, twice"
    ))
}

fn in_state<D: Doorbell>(pair: &RcQueuePair<D>, expected: QpState) -> Checked<()> {
    let state = pair.state()?;
    ensure(state == expected, || format!("the state is {state:?} instead of {expected:?}"))
}

/// Compares the context of a connected queue pair with what the driver set, and with that of a
/// queue pair that the kernel's driver set up.
pub(in super::super) fn readback(target: &Target) -> Checked {
    if target.transport()? != TransportId::RcMlx5 {
        return Err(Halt::Skipped("rc_mlx5 on the same device has this row".to_owned()));
    }
    let context = target.context()?;
    let queue = Loop::<Adaptive>::new(&context)?;
    let fields = queue.pair.read_back()?;
    if fields.is_empty() {
        return Err(Halt::Skipped("libmlx5 sets up the queue pairs of this path".to_owned()));
    }
    let value = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|field| field.1);
    let (port, has) = (context.port(), context.capabilities());
    let path = RcPath::to(&queue.pair.address());
    let mtu = std::cmp::min_by_key(path.mtu, port.mtu, |mtu| mtu.bytes());
    let expected = [
        ("state", QpState::Rts as u64),
        ("mtu", mtu as u64),
        ("remote_qpn", queue.pair.number().into()),
        ("counter_set_id", port.counter_set.into()),
        ("log_sra_max", path.log_max_reads.min(has.log_max_reads_requester).into()),
        ("log_rra_max", path.log_max_reads.min(has.log_max_reads_responder).into()),
        ("retry_count", path.retry_count.into()),
        ("rnr_retry", path.rnr_retry.into()),
        ("min_rnr_nak", path.min_rnr_nak.into()),
        ("ack_timeout", path.ack_timeout.into()),
        ("rre", 1),
        ("rwe", 1),
        ("rae", 1),
        ("pkey_index", port.partition_index.into()),
        ("src_addr_index", port.gid_index.into()),
        ("vhca_port_num", port.number.into()),
    ];
    for (field, set) in expected {
        let read = value(field);
        ensure(read == Some(set), || format!("{field} is {read:?} instead of {set}"))?;
    }
    let affinity = value("lag_tx_port_affinity").unwrap_or(0);
    ensure((affinity > 0) == (port.lag_ports > 0) && affinity <= port.lag_ports.into(), || {
        format!("lag_tx_port_affinity is {affinity} on {} bonded ports", port.lag_ports)
    })?;
    let sport = value("udp_sport").unwrap_or(0);
    let (first, last) = has.udp_source_ports;
    ensure(sport == 0 || (first.into()..=last.into()).contains(&sport), || {
        format!("udp_sport is {sport}, and the device has {first} to {last}")
    })?;
    let count = expected.len() + 2;
    let beside = match kernel_fields(target).transpose()? {
        None => String::new(),
        Some(kernel) => {
            let differs = |(name, own): &(&str, u64)| {
                let theirs = kernel.iter().find(|(field, _)| field == name)?.1;
                // Each queue pair has its own numbers. Its ports are derived from one.
                let own_alone = [
                    "remote_qpn",
                    "udp_sport",
                    "lag_tx_port_affinity",
                    "next_send_psn",
                    "next_rcv_psn",
                ];
                (theirs != *own && !own_alone.contains(name))
                    .then(|| format!("{name} {own:#x}/{theirs:#x}"))
            };
            let different: Vec<_> = fields.iter().filter_map(differs).collect();
            match &different[..] {
                [] => "; as the kernel's queue pairs".to_owned(),
                _ => format!("; here/in the kernel's queue pairs: {}", different.join(", ")),
            }
        }
    };
    Ok(format!(
        "the {count} fields that the driver sets have their values, of {} in all{beside}",
        fields.len()
    ))
}

/// A field of a queue pair's context, and its value.
type Field = (&'static str, u64);

/// The fields of a queue pair of the kernel; `None` on the software HCA of a process.
#[cfg(feature = "verbs")]
fn kernel_fields(target: &Target) -> Option<Checked<Vec<Field>>> {
    let query = || {
        let (name, port) = target.name_and_port()?;
        Ok(barewire_mlx5::setup::kernel_queue_pair(name, port)?)
    };
    (!target.is_soft()).then(query)
}

#[cfg(not(feature = "verbs"))]
fn kernel_fields(_: &Target) -> Option<Checked<Vec<Field>>> {
    None
}

/// Opens and closes endpoints of the transport.
fn endpoints(target: &Target) -> Checked {
    let start = Instant::now();
    let session = session(target)?;
    let connects = session.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE);
    let time = start.elapsed().as_secs_f64() * 1e3;
    drop(session);
    for _ in 0..3 {
        drop(self::session(target)?);
    }
    let to = if connects { "an interface" } else { "an endpoint" };
    Ok(format!("opening and connecting to {to} {time:.1} ms; closed and opened again"))
}
