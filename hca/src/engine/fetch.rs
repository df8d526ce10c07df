//! Fetching and strict checking of WQEs.

use barewire_layouts::be::Be32;
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::MASK_24;
use barewire_layouts::wqe::{
    AtomicSegment, ControlFlags, ControlSegment, DS, DataSegment, INLINE, INVALID_LKEY,
    InlineHeader, MAX_DS, MaskedCompareSwap32, MaskedCompareSwap64, MaskedFetchAdd32,
    MaskedFetchAdd64, Opcode, RemoteAddressSegment, WQEBB, XrcSegment, extended_atomic_modifier,
};

use super::address::{Destination, destination};
use super::atomic::{Atomic, Operation};
use super::gather::Gather;
use super::report::{Finding, ReservedBits};
use super::segments::Segments;
use super::tag::Arrived;
use super::{is_reliable, registration, tag};
use crate::memory;
use crate::object::{Ring, StreamLimits};

/// Longest message of a WQE, 2^30 bytes (IBTA allows 2^31; a sequence number space of 2^24 packets
/// of 256 bytes must hold several).
pub(super) const MAX_MESSAGE: u64 = 1 << 30;

/// Bits of [`ControlSegment::qpn_ds`] between the QP number and the `ds` count.
const QPN_DS_RESERVED: u32 = 0xc0;
/// Reserved bits of the `fm_ce_se` byte.
const FLAGS_RESERVED: u8 = 0x11;
/// Completion modes 2 (always) and 3 (always, with an event) both set this bit.
const COMPLETION: u8 = ControlFlags::COMPLETION.bits();

/// How a WQE waits for earlier ones (mlx5 `qp.h`: `MLX5_FENCE_MODE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fence {
    /// Not at all.
    #[default]
    None,
    /// For all earlier reads and atomics.
    Reads,
    /// For everything earlier.
    All,
}

/// A change to an object of the device, which sends nothing.
#[derive(Debug)]
pub(super) enum Change {
    /// UMR: of an mkey.
    Key(Box<memory::Change>),
    /// Tag matching: of the list.
    List(Box<tag::Change>),
}

/// A decoded send WQE.
#[derive(Debug, Default)]
pub(super) struct Wqe {
    /// Opcode byte for the CQE.
    pub(super) opcode_bits: u8,
    /// The opcode, or `None` if the WQE is invalid.
    pub(super) opcode: Option<Opcode>,
    /// Index of the first WQEBB.
    pub(super) index: u16,
    /// WQEBBs that it takes in the ring.
    pub(super) blocks: u16,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) fence: Fence,
    pub(super) immediate: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    pub(super) atomic: Atomic,
    /// XRC: the peer's shared receive queue.
    pub(super) xrc_srqn: u32,
    /// UD and DC: the destination.
    pub(super) destination: Option<Destination>,
    /// DC: the channel of its stream.
    pub(super) channel: u16,
    /// The change to an object of the device, taken when it is executed.
    pub(super) change: Option<Change>,
    pub(super) local: Gather,
}

impl Wqe {
    /// Resets `self` to what is known of an invalid WQE; a valid one is filled in from there.
    pub(super) fn refuse(&mut self, index: u16, control: &ControlSegment) {
        self.channel = 0;
        self.local.clear();
        (self.opcode, self.destination, self.change) = (None, None, None);
        (self.opcode_bits, self.index, self.blocks) =
            (control.opcode(), index, blocks(control.ds()).max(1));
        (self.signalled, self.solicited, self.fence) = (false, false, Fence::None);
    }
}

/// Returns the WQEBBs of a WQE of `ds` 16-byte units.
pub(super) fn blocks(ds: u32) -> u16 {
    (ds as usize * DS).div_ceil(WQEBB) as u16
}

/// Returns the control segment at `index`, unchecked.
pub(super) fn control(ring: &Ring, index: u16) -> ControlSegment {
    let mut bytes = [0; DS];
    ring.read(index, 0, &mut bytes);
    zerocopy::transmute!(bytes)
}

/// Decodes the send WQE at `index` of a queue pair, given by number, service and streams, into `wqe`;
/// `posted` WQEBBs from there on are posted. After an error `wqe` has opcode and index.
pub(super) fn send(
    ring: &Ring,
    (qpn, service, streams): (u32, ServiceType, StreamLimits),
    index: u16,
    posted: u16,
    reserved: ReservedBits,
    wqe: &mut Wqe,
) -> Result<(), Finding> {
    let control = control(ring, index);
    wqe.refuse(index, &control);
    let ds = control.ds();
    if control.index() != index {
        return Err(Finding::Index { got: control.index(), wanted: index });
    }
    if control.qpn() != qpn {
        return Err(Finding::QueuePair { got: control.qpn(), wanted: qpn });
    }
    if ds == 0 {
        return Err(Finding::Ds { got: 0, wanted: "at least 1" });
    }
    if blocks(ds) > posted {
        return Err(Finding::Posted { got: u32::from(blocks(ds)), wanted: u32::from(posted) });
    }
    let mut bytes = [0; MAX_DS as usize * DS];
    let bytes = &mut bytes[..ds as usize * DS];
    ring.read(index, 0, bytes);
    let opcode = header(&control, (service, streams), reserved, wqe)?;
    let mut rest = Segments::new(&bytes[DS..], reserved);
    transport(opcode, service, &mut rest, ds, wqe)?;
    segments(opcode, control.opcode_modifier(), ds, &mut rest, wqe)?;
    if wqe.local.length() > MAX_MESSAGE {
        return Err(Finding::MessageLength { got: wqe.local.length(), wanted: MAX_MESSAGE });
    }
    wqe.opcode = Some(opcode);
    Ok(())
}

/// Reads the segments that a transport service puts between the control segment and the
/// operation's.
fn transport(
    opcode: Opcode,
    service: ServiceType,
    segments: &mut Segments<'_>,
    ds: u32,
    wqe: &mut Wqe,
) -> Result<(), Finding> {
    match service {
        // These operations have no destination.
        _ if matches!(
            opcode,
            Opcode::Nop | Opcode::LocalInvalidate | Opcode::Umr | Opcode::TagMatching
        ) => {}
        ServiceType::Ud | ServiceType::Dci => {
            wqe.destination = Some(destination(segments, ds, service)?);
        }
        ServiceType::Xrc => {
            let xrc: XrcSegment = segments.next(ds, "room for the XRC segment")?;
            let [first, second, third] = xrc.reserved.map(Be32::get);
            for (what, got) in [
                ("XRC segment: shared receive queue", xrc.srqn.get() & !MASK_24),
                ("XRC segment", first | second | third),
            ] {
                segments.reserved().check(what, got)?;
            }
            wqe.xrc_srqn = xrc.srqn.get() & MASK_24;
        }
        _ => {}
    }
    Ok(())
}

/// Checks the control segment.
fn header(
    control: &ControlSegment,
    (service, streams): (ServiceType, StreamLimits),
    reserved: ReservedBits,
    wqe: &mut Wqe,
) -> Result<Opcode, Finding> {
    let opcode = Opcode::from_bits(control.opcode())
        .filter(|&opcode| is_offered(opcode, service))
        .ok_or(Finding::Opcode { got: control.opcode(), service })?;
    let flags = control.flags();
    let modifier = if is_masked(opcode) { 0 } else { control.opcode_modifier() };
    for (what, got) in [
        ("control segment: opcode modifier", u32::from(modifier)),
        ("control segment: QP number and ds", control.qpn_ds.get() & QPN_DS_RESERVED),
        (
            "control segment: signature and stream",
            if streams.any() { control.with_stream(0) } else { *control }
                .signature_stream_flags
                .get()
                >> 8,
        ),
        ("control segment: flags", u32::from(flags & FLAGS_RESERVED)),
    ] {
        reserved.check(what, got)?;
    }
    wqe.fence = match (flags & ControlFlags::FENCE_MASK) >> 5 {
        0 | 1 => Fence::None,
        2 | 4 => Fence::Reads,
        3 => Fence::All,
        mode => {
            let wanted = "a fence mode from 0 to 4";
            return Err(Finding::Value {
                what: "control segment: fence mode",
                got: u64::from(mode),
                wanted,
            });
        }
    };
    wqe.signalled = flags & COMPLETION != 0;
    wqe.solicited = flags & ControlFlags::SOLICITED.bits() != 0;
    wqe.immediate = control.immediate.get();
    wqe.channel = streams.channel(control.stream());
    Ok(opcode)
}

/// Returns whether queue pairs of `service` execute `opcode`. Local keys are invalidated by
/// [`Opcode::Umr`]; as on devices, users cannot post [`Opcode::LocalInvalidate`].
fn is_offered(opcode: Opcode, service: ServiceType) -> bool {
    match opcode {
        Opcode::LocalInvalidate => false,
        Opcode::TagMatching => service == ServiceType::Rc,
        Opcode::Nop | Opcode::Send | Opcode::SendImmediate => true,
        Opcode::RdmaWrite | Opcode::RdmaWriteImmediate | Opcode::Umr => service != ServiceType::Ud,
        Opcode::SendInvalidate
        | Opcode::RdmaRead
        | Opcode::AtomicCompareSwap
        | Opcode::AtomicFetchAdd
        | Opcode::MaskedCompareSwap
        | Opcode::MaskedFetchAdd => is_reliable(service),
    }
}

fn is_masked(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::MaskedCompareSwap | Opcode::MaskedFetchAdd)
}

/// Reads the segments after the control segment.
fn segments(
    opcode: Opcode,
    modifier: u8,
    ds: u32,
    segments: &mut Segments<'_>,
    wqe: &mut Wqe,
) -> Result<(), Finding> {
    let atomic =
        is_masked(opcode) || matches!(opcode, Opcode::AtomicCompareSwap | Opcode::AtomicFetchAdd);
    match opcode {
        // `LocalInvalidate` was refused with the control segment.
        Opcode::Nop | Opcode::LocalInvalidate => return Ok(()),
        Opcode::Umr => {
            let change = registration::change(segments, ds, wqe.immediate)?;
            wqe.change = Some(Change::Key(Box::new(change)));
            return Ok(());
        }
        Opcode::TagMatching => {
            wqe.change = Some(Change::List(Box::new(tag::change(segments, ds)?)));
            return Ok(());
        }
        Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate => {}
        Opcode::RdmaWrite | Opcode::RdmaWriteImmediate | Opcode::RdmaRead => {
            remote(segments, ds, wqe)?;
        }
        Opcode::AtomicCompareSwap | Opcode::AtomicFetchAdd => {
            remote(segments, ds, wqe)?;
            let operands: AtomicSegment = segments.next(ds, ATOMIC_ROOM)?;
            wqe.atomic = if opcode == Opcode::AtomicFetchAdd {
                Atomic::fetch_add(operands.swap_or_add.get())
            } else {
                Atomic::compare_swap(operands.compare.get(), operands.swap_or_add.get())
            };
        }
        Opcode::MaskedCompareSwap | Opcode::MaskedFetchAdd => {
            remote(segments, ds, wqe)?;
            wqe.atomic = masked(opcode, modifier, ds, segments)?;
        }
    }
    data(segments, ds, atomic || opcode == Opcode::RdmaRead, &mut wqe.local)?;
    if atomic && wqe.local.length() != wqe.atomic.bytes {
        let (what, got) = ("data segment: length of an atomic's result", wqe.local.length());
        let wanted = if wqe.atomic.bytes == 8 { "8" } else { "4" };
        return Err(Finding::Value { what, got, wanted });
    }
    Ok(())
}

const ATOMIC_ROOM: &str = "room for the atomic segment";

/// Reads the operands of a masked atomic, whose size is in the opcode modifier.
fn masked(
    opcode: Opcode,
    modifier: u8,
    ds: u32,
    segments: &mut Segments<'_>,
) -> Result<Atomic, Finding> {
    const FOUR: u8 = extended_atomic_modifier(2);
    const EIGHT: u8 = extended_atomic_modifier(3);
    let swap = opcode == Opcode::MaskedCompareSwap;
    let operation = match modifier {
        FOUR if swap => {
            let operands: MaskedCompareSwap32 = segments.next(ds, ATOMIC_ROOM)?;
            Operation::CompareSwap {
                swap: operands.swap.get().into(),
                compare: operands.compare.get().into(),
                swap_mask: operands.swap_mask.get().into(),
                compare_mask: operands.compare_mask.get().into(),
            }
        }
        FOUR => {
            let operands: MaskedFetchAdd32 = segments.next(ds, ATOMIC_ROOM)?;
            Operation::FetchAdd {
                add: operands.add.get().into(),
                boundary: operands.field_boundary.get().into(),
            }
        }
        EIGHT if swap => {
            let operands: MaskedCompareSwap64 = segments.next(ds, ATOMIC_ROOM)?;
            Operation::CompareSwap {
                swap: operands.swap.get(),
                compare: operands.compare.get(),
                swap_mask: operands.swap_mask.get(),
                compare_mask: operands.compare_mask.get(),
            }
        }
        EIGHT => {
            let operands: MaskedFetchAdd64 = segments.next(ds, ATOMIC_ROOM)?;
            Operation::FetchAdd { add: operands.add.get(), boundary: operands.field_boundary.get() }
        }
        _ => {
            let wanted = "8 for 4 bytes or 9 for 8 bytes";
            let (what, got) = ("control segment: opcode modifier", u64::from(modifier));
            return Err(Finding::Value { what, got, wanted });
        }
    };
    Ok(Atomic { bytes: if modifier == FOUR { 4 } else { 8 }, operation })
}

fn remote(segments: &mut Segments<'_>, ds: u32, wqe: &mut Wqe) -> Result<(), Finding> {
    let remote: RemoteAddressSegment = segments.next(ds, "room for the remote address segment")?;
    segments.reserved().check("remote address segment", remote.reserved.get())?;
    (wqe.remote, wqe.rkey) = (remote.address.get(), remote.rkey.get());
    Ok(())
}

/// Reads data segments, by reference or inline, up to the WQE's end. `arrives`: they are written
/// to, so none may be inline.
fn data(
    segments: &mut Segments<'_>,
    ds: u32,
    arrives: bool,
    local: &mut Gather,
) -> Result<(), Finding> {
    while let Some(start) = segments.peek::<InlineHeader>().map(|header| header.byte_count.get()) {
        if start & INLINE == 0 {
            let segment: DataSegment = segments.next(ds, "a whole number of data segments")?;
            if start == 0 {
                let (what, wanted) =
                    ("data segment: byte count", "from 1 to 2^31-1: 0 would mean 2^31");
                return Err(Finding::Value { what, got: 0, wanted });
            }
            local.push(segment.address.get(), start, segment.lkey.get());
            continue;
        }
        let length = start & !INLINE;
        let room = segments.remaining() - size_of::<InlineHeader>();
        if arrives {
            let (what, got) = ("data segment: byte count", u64::from(start));
            return Err(Finding::Value {
                what,
                got,
                wanted: "not inline: its bytes are to be written",
            });
        }
        if length as usize > room {
            return Err(Finding::InlineLength { got: length, wanted: room as u32 });
        }
        let whole = (size_of::<InlineHeader>() + length as usize).next_multiple_of(DS);
        let bytes = segments.take(whole);
        local.push_inline(&bytes[size_of::<InlineHeader>()..][..length as usize]);
    }
    Ok(())
}

/// A receive WQE in use.
#[derive(Debug, Default)]
pub(super) struct Receive {
    /// The WQE's number, modulo 2^16.
    pub(super) index: u16,
    /// The shared receive queue that it comes from, if any.
    pub(super) queue: Option<u32>,
    /// The protection domain of its buffers.
    pub(super) pd: u32,
    /// How its message arrived.
    pub(super) arrived: Arrived,
    /// In a striding queue, the stride that holds the packet.
    pub(super) stride: Option<Stride>,
    pub(super) local: Gather,
}

/// The stride of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stride {
    pub(super) index: u16,
    /// The packet begins a message.
    pub(super) first: bool,
    /// The packet ends a message.
    pub(super) last: bool,
}

/// Decodes the receive WQE at `index`, whose segments begin at `start`. Its list ends with the
/// ring's stride or a segment with [`INVALID_LKEY`].
pub(super) fn receive(
    ring: &Ring,
    index: u16,
    start: usize,
    receive: &mut Receive,
) -> Result<(), Finding> {
    receive.index = index;
    receive.local.clear();
    let mut bytes = [0; DS];
    for offset in (start..ring.stride()).step_by(DS) {
        ring.read(index, offset, &mut bytes);
        if !buffer(&bytes, receive)? {
            break;
        }
    }
    Ok(())
}

/// Adds the buffer of a receive data segment. Returns `false` if there is none.
fn buffer(segment: &[u8; DS], receive: &mut Receive) -> Result<bool, Finding> {
    let segment: DataSegment = zerocopy::transmute!(*segment);
    let (length, lkey) = (segment.byte_count.get(), segment.lkey.get());
    if lkey == INVALID_LKEY {
        return Ok(false);
    }
    if length & INLINE != 0 {
        let (what, got) = ("receive data segment: byte count", u64::from(length));
        return Err(Finding::Value { what, got, wanted: "below 2^31" });
    }
    receive.local.push(segment.address.get(), length, lkey);
    Ok(true)
}

/// Decodes the data segment of stride `stride` of the receive WQE at `index`, whose segments begin
/// at `start`. No more than the `bytes` of a stride are used of its buffer; a stride may have none.
pub(super) fn stride(
    ring: &Ring,
    (index, stride): (u16, u16),
    start: usize,
    bytes: u32,
    receive: &mut Receive,
) -> Result<(), Finding> {
    let mut segment = [0; DS];
    ring.read(index, start + usize::from(stride) * DS, &mut segment);
    buffer(&segment, receive)?;
    receive.local.cut(bytes.into());
    Ok(())
}
