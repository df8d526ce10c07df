//! Streams of DC initiators: one fails, is flushed and reset, and the others go on.

use barewire_hca::{CommandSyndrome, Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::capability::{HcaCap, QueryHcaCapIn, QueryHcaCapOut};
use barewire_layouts::command::qp::{QpState, Qpc};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::{ControlFlags, Opcode};

use crate::support::dynamic::{
    Target, context, initiator, nodes, reset_stream, settle, syndromes, with_streams,
};
use crate::support::{Connection, Node, Qp, Region, Wqe, command, pattern};

const FLUSHED: Option<Syndrome> = Some(Syndrome::WorkRequestFlushed);

fn write(target: &Target, from: &Region, to: &Region, at: u64, stream: u16) -> Wqe {
    Wqe::new(Opcode::RdmaWrite)
        .stream(stream)
        .addressed(&target.address())
        .remote(to.address() + at, to.key)
        .data(from.address(), 8, from.key)
}

/// A refusal: status and syndrome.
type Refusal = (CommandStatus, u32);

fn why(syndrome: CommandSyndrome) -> Refusal {
    (syndrome.status(), syndrome as u32)
}

fn state(dci: &Qp) -> QpState {
    context(dci, |context| context.get(Qpc::STATE)).unwrap()
}

/// Resets a stream.
fn reset(dci: &Qp, stream: u16) -> Result<(), Refusal> {
    reset_stream(dci, stream).map_err(|error| (error.status.unwrap(), error.syndrome))
}

#[test]
fn a_stream_in_error_does_not_stop_the_others() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let targets = [(); 2].map(|()| Target::new(&b, &connection));
    let (from, to) = (a.region(64), b.region(64));
    let data = pattern(8, 1);
    from.memory.write(0, &data);
    let mut dci = with_streams(&a, &connection, 2, 2);
    assert_eq!(reset(&dci, 1), Err(why(CommandSyndrome::StreamNotInError)));
    // Both targets, so that connections change as well.
    for target in [&targets[0], &targets[1]] {
        let good = |at, stream| write(target, &from, &to, at, stream);
        let bad = Wqe::new(Opcode::RdmaWrite)
            .stream(1)
            .addressed(&target.address())
            .remote(to.address(), to.key ^ 0x100)
            .data(from.address(), 8, from.key);
        to.memory.write(0, &[0; 64]);
        dci.post(&good(0, 0));
        dci.post(&bad);
        dci.post(&good(8, 1).unsignalled());
        dci.post(&good(16, 2));
        // Stream 5 has the channel of stream 1.
        dci.post(&good(24, 5));
        dci.post(&good(32, 3));
        settle(&[&a, &b]);
        let want = [None, Some(Syndrome::RemoteAccess), FLUSHED, None, FLUSHED, None];
        assert_eq!(syndromes(&mut dci), want);
        let arrived = [true, false, true, false, true];
        for (at, arrived) in arrived.into_iter().enumerate() {
            let want = if arrived { data.clone() } else { vec![0; 8] };
            assert_eq!(to.memory.read(at * 8, 8), want, "write {at}");
        }
        assert_eq!(state(&dci), QpState::Rts);
        // It stays in error until it is reset.
        dci.post(&good(40, 1));
        dci.post(&good(48, 4));
        settle(&[&a, &b]);
        assert_eq!(syndromes(&mut dci), [FLUSHED, None]);
        assert_eq!(reset(&dci, 2), Err(why(CommandSyndrome::StreamNotInError)));
        assert_eq!(
            (reset(&dci, 1), reset(&dci, 1)),
            (Ok(()), Err(why(CommandSyndrome::StreamNotInError)))
        );
        dci.post(&good(56, 1));
        settle(&[&a, &b]);
        assert_eq!((syndromes(&mut dci), to.memory.read(56, 8)), (vec![None], data.clone()));
    }
    assert_eq!(b.device.objects().dynamic_connections, 0);
}

#[test]
fn so_many_streams_in_error_stop_the_initiator() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let target = Target::new(&b, &connection);
    let (from, to) = (a.region(64), b.region(64));
    let mut dci = with_streams(&a, &connection, 3, 1);
    let bad = |stream| {
        Wqe::new(Opcode::RdmaWrite)
            .stream(stream)
            .addressed(&target.address())
            .remote(to.address(), to.key)
            .data(from.address(), 8, from.key ^ 0x100)
    };
    // The same one twice counts once.
    for stream in [4, 4] {
        dci.post(&bad(stream));
        dci.post(&write(&target, &from, &to, 0, 0));
        settle(&[&a, &b]);
        assert_eq!(syndromes(&mut dci), [Some(Syndrome::LocalProtection), None]);
        if stream == 4 {
            assert_eq!((state(&dci), reset(&dci, 4)), (QpState::Rts, Ok(())));
        }
    }
    dci.post(&bad(4));
    dci.post(&bad(5));
    dci.post(&write(&target, &from, &to, 0, 0));
    settle(&[&a, &b]);
    let protection = Some(Syndrome::LocalProtection);
    assert_eq!(syndromes(&mut dci), [protection, protection, FLUSHED]);
    assert_eq!(
        (state(&dci), reset(&dci, 4)),
        (QpState::Err, Err(why(CommandSyndrome::QpTransition)))
    );
    // A reset queue pair has no stream in error.
    dci.reset();
    dci.connect_to([0; 16], 0, &connection, (connection.psn, 0));
    dci.post(&bad(6));
    dci.post(&write(&target, &from, &to, 0, 4));
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut dci), state(&dci)), (vec![protection, None], QpState::Rts));
}

/// What ends a stream: every error but a malformed WQE, after which nothing can be delimited.
#[test]
fn errors_of_every_kind_concern_their_stream() {
    let [a, b] = nodes();
    let connection =
        Connection { retry_count: 1, rnr_retry: 1, ack_timeout: 1, ..Connection::default() };
    let mut target = Target::new(&b, &connection);
    let mut gone = Target::new(&b, &connection);
    let nowhere = gone.address();
    gone.destroy();
    let (from, to) = (a.region(64), b.region(64));
    let here = |wqe: Wqe| wqe.data(from.address(), 8, from.key);
    let there = |opcode| Wqe::new(opcode).stream(1).addressed(&target.address());
    let cases = [
        (here(there(Opcode::Send)), Syndrome::RnrRetryExceeded),
        (
            here(Wqe::new(Opcode::Send).stream(1).addressed(&nowhere)),
            Syndrome::TransportRetryExceeded,
        ),
        (
            here(Wqe::new(Opcode::Send).stream(1).addressed(&target.address_with(7))),
            Syndrome::RemoteAccess,
        ),
        (
            there(Opcode::RdmaRead).remote(to.address(), to.key).data(
                from.address(),
                8,
                to.key ^ 0x100,
            ),
            Syndrome::LocalProtection,
        ),
        (
            here(there(Opcode::AtomicFetchAdd).remote(to.address() + 1, to.key).atomic(1, 0)),
            Syndrome::RemoteInvalidRequest,
        ),
    ];
    let mut dci = with_streams(&a, &connection, 1, 1);
    for (wqe, syndrome) in cases {
        dci.post(&write(&target, &from, &to, 0, 0));
        dci.post(&wqe);
        dci.post(&write(&target, &from, &to, 0, 1).flags(ControlFlags::FENCE));
        dci.post(&write(&target, &from, &to, 0, 0).flags(ControlFlags::FENCE));
        settle(&[&a, &b]);
        assert_eq!(syndromes(&mut dci), [None, Some(syndrome), FLUSHED, None], "{syndrome:?}");
        assert_eq!(reset(&dci, 1), Ok(()));
    }
    drop(gone);
    assert!(target.cq.drain().is_empty());
}

fn lenient<const N: usize>() -> [Node; N] {
    let config = Config::default().mode(Mode::Stepped).wire(WireKind::Fabric(Fabric::new()));
    std::array::from_fn(|_| Node::open(config.clone().strict(Strict::Report)))
}

#[test]
fn after_a_malformed_request_nothing_is_executed() {
    let [a, b] = lenient();
    let connection = Connection::default();
    let target = Target::new(&b, &connection);
    let (from, to) = (a.region(64), b.region(64));
    let mut dci = with_streams(&a, &connection, 1, 1);
    let mut bytes = write(&target, &from, &to, 0, 1).bytes(dci.producer, dci.number);
    bytes[7] = 2;
    dci.post(&Wqe::new(Opcode::Nop));
    let (_, bytes) = dci.place_bytes(bytes);
    dci.ring(&bytes[..8]);
    dci.post(&write(&target, &from, &to, 0, 0));
    settle(&[&a, &b]);
    // The rest of the malformed one is taken for another: its length field was wrong.
    let want = [None, Some(Syndrome::LocalQpOperation), FLUSHED, FLUSHED];
    assert_eq!(syndromes(&mut dci), want);
    assert_eq!(state(&dci), QpState::Err);
}

#[test]
fn without_streams_the_number_means_nothing() {
    let [a, b] = lenient();
    let connection = Connection::default();
    let target = Target::new(&b, &connection);
    let (from, to) = (a.region(64), b.region(64));
    let mut dci = initiator(&a, &connection);
    for stream in [0, 1, 0xffff] {
        dci.post(&write(&target, &from, &to, 0, stream));
    }
    dci.post(&write(&target, &from, &to, 1 << 30, 3));
    dci.post(&write(&target, &from, &to, 0, 4));
    settle(&[&a, &b]);
    let want = [None, None, None, Some(Syndrome::RemoteAccess), FLUSHED];
    assert_eq!((syndromes(&mut dci), state(&dci)), (want.to_vec(), QpState::Err));
}

#[test]
fn the_device_reports_what_it_has() {
    let [a, _] = nodes();
    let dci = with_streams(&a, &Connection::default(), 8, 3);
    let read = |field| context(&dci, |context| context.get(field));
    assert_eq!(read(Qpc::LOG_NUM_DCI_STREAM_CHANNELS), 8);
    assert_eq!(read(Qpc::LOG_NUM_DCI_ERRORED_STREAMS), 3);
    let output = command::<QueryHcaCapIn>(&a.device, |_| ()).unwrap();
    let view = answer::<QueryHcaCapIn>(&output).unwrap().nested(QueryHcaCapOut::GENERAL);
    assert_eq!(view.get(HcaCap::LOG_MAX_DCI_STREAM_CHANNELS), 8);
    assert_eq!(view.get(HcaCap::LOG_MAX_DCI_ERRORED_STREAMS), 8);
    assert!(view.get(HcaCap::QPC_EXTENSION));
}
