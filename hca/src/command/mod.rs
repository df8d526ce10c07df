//! The command interface: decodes, checks and executes PRM commands.
//!
//! A command either takes full effect, or changes nothing and returns a status and a
//! [`CommandSyndrome`]. Any bytes are accepted as input: short, unknown and out-of-range commands
//! are refused. Nothing is allocated except the objects, whose number is limited.

use barewire_layouts::command::mkey::CreateMkeyIn;
use barewire_layouts::command::pd::AllocPdIn;
use barewire_layouts::command::port::{QueryAdapterIn, QueryLagIn};
use barewire_layouts::command::q_counter::AllocQCounterIn;
use barewire_layouts::command::qp::Rts2RtsQpIn;
use barewire_layouts::command::uar::AllocUarIn;
use barewire_layouts::command::xrc::AllocXrcdIn;
use barewire_layouts::command::{
    CommandOpcode, CommandStatus, InHeader, OutHeader, Request, StatusOut,
};
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::engine::{Context, Engine};
use crate::families::{self, Families};
use crate::memory::{Memory, Refused, Window};
use crate::object::DoorbellRecord;
use crate::requirements::Requirements;

mod capability;
mod cq;
mod dct;
mod eq;
mod gid;
mod mcg;
mod memic;
mod mkey;
mod modify_cq;
mod modify_qp;
mod page_fault;
mod pd;
mod port;
mod q_counter;
mod qp;
mod rmp;
mod srq;
mod syndrome;
mod uar;
mod umem;
mod xrc;
mod xrq;

pub use syndrome::CommandSyndrome;

/// The outcome of a command.
type Outcome = Result<(), CommandSyndrome>;

/// Who sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A program, by DEVX or on a device of its process.
    Program,
    /// The kernel, for an object of verbs.
    Kernel,
}

/// Executes the command in `input` and writes its output to `output`, followed by zeros.
pub(crate) fn execute(
    engine: &mut Engine,
    device: &mut Context<'_>,
    sender: Sender,
    input: &[u8],
    output: &mut [u8],
) {
    output.fill(0);
    let Requirements { refuse: refused, deaf, .. } = device.objects.requirements;
    let is_program = sender == Sender::Program;
    if is_program && refused.has(Families::created_by(input)) {
        return refuse(output, CommandSyndrome::FamilyRefused);
    }
    if let Err(syndrome) = dispatch(engine, device, input, output) {
        return refuse(output, syndrome);
    }
    if is_program && !deaf.is_empty() {
        let number = families::deaf(device.objects, deaf, input, output);
        device.objects.deaf.extend(number);
    }
}

/// Writes a refusal, as far as it fits.
pub(crate) fn refuse(output: &mut [u8], syndrome: CommandSyndrome) {
    output.fill(0);
    if let Some(mut header) = ViewMut::<OutHeader>::new(output) {
        header.set(OutHeader::STATUS, syndrome.status()).set(OutHeader::SYNDROME, syndrome as u32);
    } else if let Some(status) = output.first_mut() {
        // No room for the header; its first byte is the status.
        *status = CommandStatus::BadOutputLength as u8;
    }
}

fn dispatch(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: &[u8],
    output: &mut [u8],
) -> Outcome {
    let header = View::<InHeader>::new(input).ok_or(CommandSyndrome::InputLength)?;
    let opcode = header.get(InHeader::OPCODE).map_err(|_| CommandSyndrome::UnknownOpcode)?;
    if !has_modifier(opcode) && header.get(InHeader::OP_MOD) != 0 {
        return Err(CommandSyndrome::UnknownModifier);
    }
    match opcode {
        CommandOpcode::QueryHcaCap => {
            let kind = (device.objects.port_type, device.ports.len() as u8);
            let requirements = device.objects.requirements;
            cut(input, output, |request, answer| {
                capability::query(kind, requirements, request, answer)
            })
        }
        CommandOpcode::QueryAdapter => run::<QueryAdapterIn>(input, output, |_, mut answer| {
            port::adapter(&mut answer);
            Ok(())
        }),
        CommandOpcode::QueryLag => run::<QueryLagIn>(input, output, |_, _| Ok(())),
        CommandOpcode::QueryVportState => {
            run(input, output, |request, answer| port::state(device, request, answer))
        }
        CommandOpcode::QueryNicVportContext => {
            run(input, output, |request, answer| port::nic(device, request, answer))
        }
        CommandOpcode::QueryHcaVportContext => {
            run(input, output, |request, answer| port::hca(device, request, answer))
        }
        CommandOpcode::QueryHcaVportGid => {
            let (request, answer) = parts(input, output)?;
            port::gids(device, request, answer)
        }
        CommandOpcode::QueryHcaVportPkey => {
            let (request, answer) = parts(input, output)?;
            port::pkeys(device, request, answer)
        }
        CommandOpcode::AllocQCounter => run::<AllocQCounterIn>(input, output, |_, answer| {
            q_counter::alloc(device.objects, answer)
        }),
        CommandOpcode::DeallocQCounter => {
            run(input, output, |request, _| q_counter::dealloc(device.objects, request))
        }
        CommandOpcode::QueryQCounter => {
            run(input, output, |request, answer| q_counter::query(device.objects, request, answer))
        }
        CommandOpcode::QueryRoceAddress => {
            run(input, output, |request, answer| gid::query(device, request, answer))
        }
        CommandOpcode::SetRoceAddress => run(input, output, |request, _| gid::set(device, request)),
        CommandOpcode::AttachToMcg => run(input, output, |request, _| mcg::attach(device, request)),
        CommandOpcode::DetachFromMcg => {
            run(input, output, |request, _| mcg::detach(device, request))
        }
        CommandOpcode::AllocPd => {
            run::<AllocPdIn>(input, output, |_, answer| pd::alloc(device.objects, answer))
        }
        CommandOpcode::DeallocPd => {
            run(input, output, |request, _| pd::dealloc(device.objects, request))
        }
        CommandOpcode::AllocUar => {
            run::<AllocUarIn>(input, output, |_, answer| uar::alloc(device.objects, engine, answer))
        }
        CommandOpcode::DeallocUar => {
            run(input, output, |request, _| uar::dealloc(device.objects, engine, request))
        }
        CommandOpcode::DestroyUmem => {
            run(input, output, |request, _| umem::destroy(device.objects, request))
        }
        CommandOpcode::CreateMkey => {
            let list = input.get(CreateMkeyIn::BYTES..).unwrap_or_default();
            run(input, output, |request, answer| {
                mkey::create(device.objects, request, list, answer)
            })
        }
        CommandOpcode::QueryMkey => {
            run(input, output, |request, answer| mkey::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyMkey => {
            run(input, output, |request, _| mkey::destroy(device.objects, request))
        }
        CommandOpcode::PageFaultResume => {
            run(input, output, |request, _| page_fault::resume(engine, device, request))
        }
        CommandOpcode::AllocMemic => {
            run(input, output, |request, answer| memic::alloc(device.objects, request, answer))
        }
        CommandOpcode::DeallocMemic => {
            run(input, output, |request, _| memic::dealloc(device.objects, request))
        }
        CommandOpcode::CreateEq => {
            run(input, output, |request, answer| eq::create(device.objects, request, answer))
        }
        CommandOpcode::QueryEq => {
            run(input, output, |request, answer| eq::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyEq => {
            run(input, output, |request, _| eq::destroy(device.objects, request))
        }
        CommandOpcode::CreateCq => {
            run(input, output, |request, answer| cq::create(device.objects, request, answer))
        }
        CommandOpcode::QueryCq => {
            run(input, output, |request, answer| cq::query(device.objects, request, answer))
        }
        CommandOpcode::ModifyCq => {
            run(input, output, |request, _| modify_cq::modify(device.objects, device.now, request))
        }
        CommandOpcode::DestroyCq => {
            run(input, output, |request, _| cq::destroy(device.objects, request))
        }
        CommandOpcode::CreateSrq => {
            run(input, output, |request, answer| srq::create(device.objects, request, answer))
        }
        CommandOpcode::QuerySrq => {
            run(input, output, |request, answer| srq::query(device.objects, request, answer))
        }
        CommandOpcode::DestroySrq => {
            run(input, output, |request, _| srq::destroy(device.objects, request))
        }
        CommandOpcode::ArmRq => run(input, output, |request, _| srq::arm(device.objects, request)),
        CommandOpcode::AllocXrcd => {
            run::<AllocXrcdIn>(input, output, |_, answer| xrc::alloc(device.objects, answer))
        }
        CommandOpcode::DeallocXrcd => {
            run(input, output, |request, _| xrc::dealloc(device.objects, request))
        }
        CommandOpcode::CreateXrcSrq => {
            run(input, output, |request, answer| xrc::create(device.objects, request, answer))
        }
        CommandOpcode::QueryXrcSrq => {
            run(input, output, |request, answer| xrc::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyXrcSrq => {
            run(input, output, |request, _| xrc::destroy(device.objects, request))
        }
        CommandOpcode::ArmXrcSrq => {
            run(input, output, |request, _| xrc::arm(device.objects, request))
        }
        CommandOpcode::CreateDct => {
            run(input, output, |request, answer| dct::create(device, request, answer))
        }
        CommandOpcode::QueryDct => {
            run(input, output, |request, answer| dct::query(device.objects, request, answer))
        }
        CommandOpcode::DrainDct => {
            run(input, output, |request, _| dct::drain(engine, device, request))
        }
        CommandOpcode::DestroyDct => {
            run(input, output, |request, _| dct::destroy(engine, device, request))
        }
        CommandOpcode::ArmDctForKeyViolation => {
            run(input, output, |request, _| dct::arm(device.objects, request))
        }
        CommandOpcode::CreateRmp => {
            run(input, output, |request, answer| rmp::create(device.objects, request, answer))
        }
        CommandOpcode::ModifyRmp => {
            run(input, output, |request, _| rmp::modify(device.objects, request))
        }
        CommandOpcode::QueryRmp => {
            run(input, output, |request, answer| rmp::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyRmp => {
            run(input, output, |request, _| rmp::destroy(device.objects, request))
        }
        CommandOpcode::CreateXrq => {
            run(input, output, |request, answer| xrq::create(device.objects, request, answer))
        }
        CommandOpcode::QueryXrq => {
            run(input, output, |request, answer| xrq::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyXrq => {
            run(input, output, |request, _| xrq::destroy(device.objects, request))
        }
        CommandOpcode::ArmXrq => run(input, output, |request, _| xrq::arm(device.objects, request)),
        CommandOpcode::CreateQp => {
            run(input, output, |request, answer| qp::create(device.objects, request, answer))
        }
        CommandOpcode::QueryQp => {
            run(input, output, |request, answer| qp::query(device.objects, request, answer))
        }
        CommandOpcode::DestroyQp => {
            run(input, output, |request, _| qp::destroy(engine, device, request))
        }
        CommandOpcode::Rst2InitQp => run(input, output, |request, answer| {
            modify_qp::rst2init(engine, device, request, answer)
        }),
        CommandOpcode::Init2RtrQp => run(input, output, |request, answer| {
            modify_qp::init2rtr(engine, device, request, answer)
        }),
        CommandOpcode::Rtr2RtsQp => run(input, output, |request, answer| {
            modify_qp::rtr2rts(engine, device, request, answer)
        }),
        CommandOpcode::Rts2RtsQp => {
            let extension = input.get(Rts2RtsQpIn::BYTES..).unwrap_or_default();
            run(input, output, |request, answer| {
                modify_qp::rts2rts(engine, device, (request, extension), answer)
            })
        }
        CommandOpcode::Init2InitQp => run(input, output, |request, answer| {
            modify_qp::init2init(engine, device, request, answer)
        }),
        CommandOpcode::ToErrQp => {
            run(input, output, |request, _| modify_qp::to_err(engine, device, request))
        }
        CommandOpcode::ToRstQp => {
            run(input, output, |request, _| modify_qp::to_rst(engine, device, request))
        }
    }
}

/// Returns whether the command destroys an object.
pub(crate) fn destroys(input: &[u8]) -> bool {
    use CommandOpcode::{
        DeallocMemic, DeallocPd, DeallocQCounter, DeallocUar, DeallocXrcd, DestroyCq, DestroyDct,
        DestroyEq, DestroyMkey, DestroyQp, DestroyRmp, DestroySrq, DestroyUmem, DestroyXrcSrq,
        DestroyXrq, DetachFromMcg,
    };
    let opcode = View::<InHeader>::new(input).and_then(|header| header.get(InHeader::OPCODE).ok());
    matches!(
        opcode,
        Some(
            DeallocMemic
                | DeallocPd
                | DeallocQCounter
                | DeallocUar
                | DeallocXrcd
                | DestroyCq
                | DestroyDct
                | DestroyEq
                | DestroyMkey
                | DestroyQp
                | DestroyRmp
                | DestroySrq
                | DestroyUmem
                | DestroyXrcSrq
                | DestroyXrq
                | DetachFromMcg
        )
    )
}

/// Returns whether the command has operation modifiers, which it checks itself.
fn has_modifier(opcode: CommandOpcode) -> bool {
    use CommandOpcode::{ArmRq, ArmXrcSrq, ModifyCq, QueryHcaCap};
    matches!(opcode, QueryHcaCap | ModifyCq | ArmRq | ArmXrcSrq)
}

/// Calls `command` with its request and output, if both are long enough. A list after the request's
/// fixed part is ignored.
fn run<R: Request>(
    input: &[u8],
    output: &mut [u8],
    command: impl FnOnce(View<'_, R>, ViewMut<'_, R::Answer>) -> Outcome,
) -> Outcome {
    let request = View::new(input).ok_or(CommandSyndrome::InputLength)?;
    let answer = ViewMut::new(output).ok_or(CommandSyndrome::OutputLength)?;
    command(request, answer)
}

/// As [`run`], for commands of whose output programs may only read the header: it is cut to the
/// available room.
fn cut<R: Request>(
    input: &[u8],
    output: &mut [u8],
    command: impl FnOnce(View<'_, R>, ViewMut<'_, R::Answer>) -> Outcome,
) -> Outcome {
    if output.len() < StatusOut::BYTES {
        return Err(CommandSyndrome::OutputLength);
    }
    let mut whole = vec![0; R::Answer::BYTES];
    run(input, &mut whole, command)?;
    let common = whole.len().min(output.len());
    output[..common].copy_from_slice(&whole[..common]);
    Ok(())
}

/// A request, and its output with the room for a list after it.
fn parts<'a, R: Request>(
    input: &'a [u8],
    output: &'a mut [u8],
) -> Result<(View<'a, R>, &'a mut [u8]), CommandSyndrome> {
    let request = View::new(input).ok_or(CommandSyndrome::InputLength)?;
    if output.len() < R::Answer::BYTES {
        Err(CommandSyndrome::OutputLength)
    } else {
        Ok((request, output))
    }
}

/// Returns the memory of a ring: `length` bytes at `offset` of a umem.
fn ring_window(
    memory: &Memory,
    umem: u32,
    offset: u64,
    length: u64,
    write: bool,
) -> Result<Window, CommandSyndrome> {
    let window =
        memory.umem_window(umem, offset, length, write).map_err(|refused| match refused {
            Refused::Unknown => CommandSyndrome::RingUnknownUmem,
            Refused::Bounds => CommandSyndrome::RingBounds,
            Refused::ReadOnly => CommandSyndrome::RingReadOnly,
        })?;
    if window.is_on_demand() {
        return Err(CommandSyndrome::RingOnDemand);
    }
    if !window.is_aligned(RING_ALIGNMENT) {
        return Err(CommandSyndrome::RingAlignment);
    }
    if !memory.can_hold_ring(umem, offset) {
        return Err(CommandSyndrome::RingPageOffset);
    }
    Ok(window)
}

/// Alignment of rings: the unit of `page_offset`.
const RING_ALIGNMENT: usize = 64;

/// Returns the memory of a doorbell record at an offset of a umem, which the device only reads.
fn doorbell_window(memory: &Memory, (umem, offset): (u32, u64)) -> Result<Window, CommandSyndrome> {
    let length = DoorbellRecord::BYTES;
    let window =
        memory.umem_window(umem, offset, length as u64, false).map_err(
            |refused| match refused {
                Refused::Unknown => CommandSyndrome::DoorbellUnknownUmem,
                Refused::Bounds | Refused::ReadOnly => CommandSyndrome::DoorbellBounds,
            },
        )?;
    if window.is_on_demand() {
        return Err(CommandSyndrome::RingOnDemand);
    }
    if window.is_aligned(length) { Ok(window) } else { Err(CommandSyndrome::DoorbellAlignment) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_fits_any_buffer() {
        for length in 0..20 {
            let mut output = vec![0xff; length];
            refuse(&mut output, CommandSyndrome::UnknownPd);
            let mut want = vec![0; length];
            if length >= 8 {
                (want[0], want[6], want[7]) = (5, 2, 1);
            } else if length > 0 {
                want[0] = 0x51;
            }
            assert_eq!(output, want);
        }
    }
}
