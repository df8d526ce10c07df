//! Requests of the driver that carry their destination: datagrams (UD), DC and XRC.

use std::hint::black_box;

use barewire_mlx5::dc::Peer;
use barewire_mlx5::layouts::wqe::{AddressVector, XrcSegment};
use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::request::{Inline, Send, Word, Write};
use barewire_mlx5::ud::UdPeer;
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, Initiator,
    InitiatorConfig, Polled, ProtectionDomain, RcConfig, RcPath, RemoteAddressSegment, SendQueue,
    Target, TargetConfig, Uar, UdConfig, UdQueuePair, xrc,
};

use crate::stopwatch::Stopwatch;
use crate::{BATCH, Outcome, wait};

const KEY: u64 = 0x11;

#[inline(never)]
fn measured_ud_send_8(queue: &mut SendQueue, to: &AddressVector, payload: u64) -> bool {
    queue.towards(to).post(Send(Inline(&payload.to_ne_bytes())), ControlFlags::empty()).is_ok()
}

#[inline(never)]
fn measured_dc_write_8(
    queue: &mut SendQueue,
    to: &AddressVector,
    payload: u64,
    remote: RemoteAddressSegment,
) -> bool {
    let payload = payload.to_ne_bytes();
    queue.towards(to).post(Write { local: Word(payload), remote }, ControlFlags::empty()).is_ok()
}

#[inline(never)]
fn measured_xrc_write_8(
    queue: &mut SendQueue,
    to: &XrcSegment,
    payload: u64,
    remote: RemoteAddressSegment,
) -> bool {
    let payload = payload.to_ne_bytes();
    queue.towards(to).post(Write { local: Word(payload), remote }, ControlFlags::empty()).is_ok()
}

/// Runs the operation with this name `count` times.
pub(crate) fn run(context: &Context, operation: &str, count: u32) -> Outcome {
    let domain = ProtectionDomain::allocate(context)?;
    let uar = Uar::allocate(context)?;
    let completions = CompletionQueue::create(context, &uar, 1024)?;
    let memory = Buffer::allocate(&domain, 4096, Access::all())?;
    let remote = memory.region().remote(0);
    match operation {
        "ud_send_8" => {
            // Datagrams that find no receive WQE are dropped.
            let config = UdConfig::default().signal_period(BATCH).queue_key(KEY as u32);
            let pair = || UdQueuePair::create(&domain, &uar, &completions, &completions, &config);
            let (mut ours, theirs) = (pair()?, pair()?);
            let mut peer = UdPeer::new(context.port_address(), theirs.number());
            peer.queue_key = KEY as u32;
            let to = ours.destination(&peer)?;
            repeat(completions, &mut ours.send, count, |queue| {
                measured_ud_send_8(queue, black_box(&to), black_box(7))
            })
        }
        "dc_write_8" => {
            let shared = SharedReceiveQueue::<List>::create(&domain, 16, 1)?;
            let config = TargetConfig::default().key(KEY);
            let target = Target::create(&domain, &completions, &shared, &config)?;
            let config = InitiatorConfig::default().signal_period(BATCH).ack_timeout(0);
            let mut ours = Initiator::create(&domain, &uar, &completions, &config)?;
            let peer = Peer::new(context.port_address(), target.number(), target.key());
            let to = ours.destination(&peer)?;
            repeat(completions, &mut ours.send, count, |queue| {
                measured_dc_write_8(queue, black_box(&to), black_box(7), remote)
            })
        }
        "xrc_write_8" => {
            let xrcd = xrc::Domain::allocate(context)?;
            let config = RcConfig::default().signal_period(BATCH);
            let receiver = xrc::Receiver::create(&domain, &xrcd, &completions, 16, 1, 0)?;
            let name = &receiver.name;
            let mut target = xrc::Target::create_target(&domain, name, &completions, &config)?;
            let mut ours: xrc::Initiator =
                xrc::Initiator::create_initiator(&domain, &uar, name, &completions, &config)?;
            ours.connect(&RcPath::to(&target.address()).ack_timeout(0))?;
            target.connect(&RcPath::to(&ours.address()).ack_timeout(0))?;
            let to = receiver.destination();
            repeat(completions, &mut ours.send, count, |queue| {
                measured_xrc_write_8(queue, black_box(&to), black_box(7), remote)
            })
        }
        _ => Err(format!("no operation {operation}").into()),
    }
}

/// Posts in batches, each of which completes before the next.
fn repeat(
    mut completions: CompletionQueue,
    queue: &mut SendQueue,
    count: u32,
    mut post: impl FnMut(&mut SendQueue) -> bool,
) -> Outcome {
    let rounds = count / BATCH;
    let mut watch = Stopwatch::new(rounds * BATCH, BATCH);
    let half = queue.blocks() / 2;
    for _ in 0..rounds {
        watch.start();
        let posted = (0..BATCH).all(|_| post(queue));
        watch.stop();
        if !posted {
            return Err("refused".into());
        }
        wait("posts", || {
            while let Some(completion) = completions.poll().map(Polled::completion) {
                assert_eq!(completion.kind, CompletionKind::Send);
                queue.reap(completion.wqe_counter);
            }
            queue.room() >= half
        })?;
    }
    watch.print();
    Ok(())
}
