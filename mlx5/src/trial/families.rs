//! The test of each family.

use crate::request::{Inline, Send, SendTagged, Write};
use std::time::Duration;

use barewire_layouts::tag::{TagHeader, TagOpcode};
use barewire_layouts::wqe::ControlFlags;

use super::bench::{ACK_TIMEOUT, Bench, Failure, failed, pattern, posted};
use crate::address::RcAddress;
use crate::dc::{self, InitiatorConfig, Peer, TargetConfig};
use crate::doorbell::Adaptive;
use crate::queue::completion::{CompletionKind, CompletionQueue};
use crate::queue::shared_receive::{List, SharedReceiveQueue};
use crate::queue::tags::TagReport;
use crate::rc::RcQueuePair;
use crate::tags::{RendezvousPair, TagConfig, TagQueue};
use crate::ud::{RECEIVE_PREFIX, UdConfig, UdPeer, UdQueuePair};
use crate::values::RcPath;
use crate::xrc;

/// Where data arrives: behind the source.
const TARGET: usize = 4 * 4096;
/// Bytes of a write that takes several packets.
const LONG: usize = 3 * 4096;
/// The longest message in a completion of 64 bytes, one of 28 bytes behind the header of `rc_mlx5`,
/// and the shortest that is written to the buffer.
const LENGTHS: [usize; 2] = [32, 33];
/// Receive WQEs. A ConnectX matches no tags before 33 of them are posted (UCX).
const RECEIVES: u32 = 64;
/// Bytes of the buffer of a receive WQE.
const SLOT: usize = 64;
/// Datagrams that are sent until one arrives, and how long each is awaited.
const DATAGRAMS: (u32, Duration) = (20, Duration::from_millis(100));

const SIGNALED: ControlFlags = ControlFlags::COMPLETION;

/// A path that reports a device without responses soon.
fn path_to(address: &RcAddress) -> RcPath {
    RcPath::to(address).ack_timeout(ACK_TIMEOUT)
}

/// Writes a long and a short message to memory.
pub(super) fn reliable(bench: &mut Bench) -> Result<(), Failure> {
    let config = bench.config();
    let queue = &bench.completions;
    let mut pair =
        RcQueuePair::<Adaptive>::create_with(&bench.domain, &bench.uar, queue, queue, &config)?;
    pair.connect(&path_to(&pair.address()))?;
    let mut bytes = pattern(LONG);
    bench.fill(0, &bytes)?;
    let remote = || bench.memory.region().remote(TARGET);
    posted(pair.send.post(Write { local: bench.segment(0, LONG)?, remote: remote() }, SIGNALED))?;
    bench.sent()?;
    let remote = bench.memory.region().remote(TARGET);
    posted(pair.send.post(Write { local: Inline(b"barewire"), remote }, SIGNALED))?;
    bench.sent()?;
    bytes[..8].copy_from_slice(b"barewire");
    bench.expect(TARGET, &bytes)
}

/// Receives messages of [`LENGTHS`] from a shared queue.
pub(super) fn shared_receive(bench: &mut Bench) -> Result<(), Failure> {
    let mut queue = SharedReceiveQueue::<List>::create(&bench.domain, 16, 1)?;
    let config = bench.config().inline_receive(true);
    let completions = &bench.completions;
    let mut pair = RcQueuePair::<Adaptive, _>::create_sharing(
        &bench.domain,
        &bench.uar,
        completions,
        completions,
        Some(&queue),
        &config,
    )?;
    pair.connect(&path_to(&pair.address()))?;
    for (at, length) in LENGTHS.into_iter().enumerate() {
        let offset = TARGET + at * SLOT;
        receive(bench, &mut queue, offset)?;
        let bytes = pattern(length);
        posted(pair.send.post(Send(Inline(&bytes)), SIGNALED))?;
        bench.exchanged(offset, &bytes)?;
    }
    Ok(())
}

/// Posts a receive WQE with the slot at `offset`.
fn receive(
    bench: &Bench,
    queue: &mut SharedReceiveQueue<List>,
    offset: usize,
) -> Result<(), Failure> {
    let posted = queue.push_one(bench.segment(offset, SLOT)?);
    posted.ok_or_else(|| failed("the shared receive queue is full"))?;
    queue.publish();
    Ok(())
}

/// Matches a message with an entry of a list.
pub(super) fn tags(bench: &mut Bench) -> Result<(), Failure> {
    let most = (1 << bench.context.capabilities().log_max_tags.min(4)) - 1;
    let config = TagConfig::default().tags(most).entries(RECEIVES).port(Some(bench.port()));
    let (domain, uar) = (&bench.domain, &bench.uar);
    let mut tags = TagQueue::<Adaptive>::create(domain, uar, &bench.completions, &config)?;
    let mut sends = CompletionQueue::create(&bench.context, uar, 256)?;
    let config = bench.config();
    let mut receiver = RendezvousPair::create_for_rendezvous(
        domain,
        uar,
        &bench.completions,
        &tags.receive,
        &config,
    )?;
    let mut sender = RcQueuePair::<Adaptive>::create_with(domain, uar, &sends, &sends, &config)?;
    receiver.connect(&path_to(&sender.address()))?;
    sender.connect(&path_to(&receiver.address()))?;
    let plain = bench.segment(TARGET + SLOT, SLOT)?;
    if !tags.receive.extend(RECEIVES, |_| plain) {
        return Err(failed("the shared receive queue is full"));
    }
    tags.receive.publish();
    let bytes = pattern(8);
    let header = TagHeader::new(TagOpcode::Eager, 0, 7);
    let entry = posted(tags.list.append(7, u64::MAX, bench.segment(TARGET, SLOT)?))?;
    loop {
        match bench.report(&mut sends, |polled| tags.list.completed(polled))? {
            TagReport::Appended(which) if which == entry => {
                posted(
                    sender
                        .send
                        .post(SendTagged { header: &header, payload: Inline(&bytes) }, SIGNALED),
                )?;
            }
            TagReport::Arrived { entry: which, length: 8, .. } if which == entry => break,
            TagReport::Matched { entry: which, .. } if which == entry => {}
            other => return Err(failed(format!("the list reports {other:?}"))),
        }
    }
    bench.expect(TARGET, &bytes)
}

/// Sends a message to a target, and writes to its memory.
pub(super) fn dynamic(bench: &mut Bench) -> Result<(), Failure> {
    let mut queue = SharedReceiveQueue::<List>::create(&bench.domain, 16, 1)?;
    let (domain, completions) = (&bench.domain, &bench.completions);
    let wanted = TargetConfig::default().port(Some(bench.port()));
    let target = dc::Target::create(domain, completions, &queue, &wanted)?;
    let config = InitiatorConfig::default()
        .send_blocks(64)
        .ack_timeout(ACK_TIMEOUT)
        .port(Some(bench.port()));
    let mut initiator =
        dc::Initiator::<Adaptive>::create_with(domain, &bench.uar, completions, &config)?;
    let to = initiator.destination(&Peer::new(bench.address(), target.number(), target.key()))?;
    receive(bench, &mut queue, TARGET)?;
    let bytes = pattern(LENGTHS[1]);
    posted(initiator.send.towards(&to).post(Send(Inline(&bytes)), SIGNALED))?;
    bench.exchanged(TARGET, &bytes)?;
    let remote = bench.memory.region().remote(TARGET);
    posted(
        initiator.send.towards(&to).post(Write { local: Inline(b"barewire"), remote }, SIGNALED),
    )?;
    bench.sent()?;
    bench.expect(TARGET, b"barewire")
}

/// Sends a message to a receiver, over an initiator and a target.
pub(super) fn xrc(bench: &mut Bench) -> Result<(), Failure> {
    let node = xrc::Domain::allocate(&bench.context)?;
    let (domain, completions) = (&bench.domain, &bench.completions);
    let mut receiver = xrc::Receiver::create(domain, &node, completions, 16, 1, 0)?;
    let config = bench.config();
    let mut target = xrc::Target::create_target(domain, &receiver.name, completions, &config)?;
    let mut initiator = xrc::Initiator::<Adaptive>::create_initiator(
        domain,
        &bench.uar,
        &receiver.name,
        completions,
        &config,
    )?;
    initiator.connect(&path_to(&target.address()))?;
    target.connect(&path_to(&initiator.address()))?;
    let to = receiver.destination();
    receive(bench, &mut receiver.queue, TARGET)?;
    let bytes = pattern(LENGTHS[1]);
    posted(initiator.send.towards(&to).post(Send(Inline(&bytes)), SIGNALED))?;
    bench.exchanged(TARGET, &bytes)
}

/// Sends datagrams until one arrives.
pub(super) fn datagrams(bench: &mut Bench) -> Result<(), Failure> {
    let (completions, config) =
        (&bench.completions, UdConfig::default().send_blocks(64).port(Some(bench.port())));
    let mut pair = UdQueuePair::<Adaptive>::create_with(
        &bench.domain,
        &bench.uar,
        completions,
        completions,
        &config,
    )?;
    let to = pair.destination(&UdPeer::new(bench.address(), pair.number()))?;
    let (most, each) = DATAGRAMS;
    let slot = bench.segment(TARGET, RECEIVE_PREFIX + SLOT)?;
    if !(0..most).all(|_| pair.receive.push(slot)) {
        return Err(failed("the receive queue is full"));
    }
    pair.receive.publish();
    let bytes = pattern(LENGTHS[1]);
    for _ in 0..most {
        posted(pair.send.towards(&to).post(Send(Inline(&bytes)), SIGNALED))?;
        while let Some(completion) = bench.within(each)? {
            match completion.kind {
                CompletionKind::Send => pair.send.reap(completion.wqe_counter),
                _ if completion.byte_count as usize == RECEIVE_PREFIX + bytes.len() => {
                    return bench.expect(TARGET + RECEIVE_PREFIX, &bytes);
                }
                kind => return Err(failed(format!("a datagram completed with {kind:?}"))),
            }
        }
    }
    Err(failed("no datagram arrived"))
}
