//! Which commands each DEVX method accepts, and the object that a command names (linux devx.c:
//! `devx_is_general_cmd`, `devx_is_obj_create_cmd`, `devx_is_obj_modify_cmd`,
//! `devx_is_obj_query_cmd`, `devx_get_obj_id`).

use barewire_layouts::command::CommandOpcode as Op;
use barewire_layouts::command::InHeader;
use barewire_layouts::prm::View;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Concerns the device.
    General,
    /// Creates an object, which the given command destroys.
    Create(Op),
    /// Modifies an object that the given command created.
    Modify(Op),
    /// Queries an object that the given command created.
    Query(Op),
}

/// Returns the opcode of a command, or `None` if this device does not support it; the device then
/// refuses the command itself.
pub(super) fn opcode(command: &[u8]) -> Option<Op> {
    View::<InHeader>::new(command)?.get(InHeader::OPCODE).ok()
}

/// Returns what a command does, or `None` if only the kernel may send it.
pub(super) fn allowed(opcode: Op) -> Option<Use> {
    Some(match opcode {
        Op::QueryHcaCap
        | Op::QueryAdapter
        | Op::QueryVportState
        | Op::QueryNicVportContext
        | Op::QueryRoceAddress
        | Op::QueryHcaVportContext
        | Op::QueryLag => Use::General,
        Op::CreateMkey => Use::Create(Op::DestroyMkey),
        Op::CreateCq => Use::Create(Op::DestroyCq),
        Op::CreateQp => Use::Create(Op::DestroyQp),
        Op::CreateSrq => Use::Create(Op::DestroySrq),
        Op::CreateXrcSrq => Use::Create(Op::DestroyXrcSrq),
        Op::CreateDct => Use::Create(Op::DestroyDct),
        Op::CreateXrq => Use::Create(Op::DestroyXrq),
        Op::CreateRmp => Use::Create(Op::DestroyRmp),
        Op::AllocQCounter => Use::Create(Op::DeallocQCounter),
        Op::AllocPd => Use::Create(Op::DeallocPd),
        Op::AllocXrcd => Use::Create(Op::DeallocXrcd),
        Op::ModifyCq => Use::Modify(Op::CreateCq),
        Op::ModifyRmp => Use::Modify(Op::CreateRmp),
        Op::Rst2InitQp
        | Op::Init2RtrQp
        | Op::Init2InitQp
        | Op::Rtr2RtsQp
        | Op::Rts2RtsQp
        | Op::ToErrQp
        | Op::ToRstQp => Use::Modify(Op::CreateQp),
        Op::ArmXrcSrq => Use::Modify(Op::CreateXrcSrq),
        Op::ArmDctForKeyViolation => Use::Modify(Op::CreateDct),
        Op::ArmXrq => Use::Modify(Op::CreateXrq),
        Op::QueryMkey => Use::Query(Op::CreateMkey),
        Op::QueryCq => Use::Query(Op::CreateCq),
        Op::QueryQp => Use::Query(Op::CreateQp),
        Op::QuerySrq => Use::Query(Op::CreateSrq),
        Op::QueryXrcSrq => Use::Query(Op::CreateXrcSrq),
        Op::QueryDct => Use::Query(Op::CreateDct),
        Op::QueryXrq => Use::Query(Op::CreateXrq),
        Op::QueryRmp => Use::Query(Op::CreateRmp),
        Op::QueryQCounter => Use::Query(Op::AllocQCounter),
        _ => return None,
    })
}

/// Returns the number of the object that a command names: the 24 bits after the header, except for
/// counter sets.
pub(super) fn object_number(opcode: Op, command: &[u8]) -> Option<u32> {
    /// `query_q_counter_in.counter_set_id`.
    const COUNTER_SET: usize = 0x1f;
    if opcode == Op::QueryQCounter {
        return command.get(COUNTER_SET).map(|&number| number.into());
    }
    let number = command.get(9..12)?;
    Some(number.iter().fold(0, |all, &byte| all << 8 | u32::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use barewire_layouts::command::q_counter::QueryQCounterIn;
    use barewire_layouts::command::qp::QueryQpIn;
    use barewire_layouts::command::{Request, request};

    fn bytes<R: Request>(fill: impl FnOnce(&mut barewire_layouts::prm::ViewMut<'_, R>)) -> Vec<u8> {
        let mut bytes = vec![0; R::BYTES];
        fill(&mut request::<R>(&mut bytes).unwrap());
        bytes
    }

    #[test]
    fn objects_are_named_where_the_layouts_say() {
        let query = bytes::<QueryQpIn>(|input| {
            input.set(QueryQpIn::QPN, 0x0012_3456);
        });
        assert_eq!(object_number(opcode(&query).unwrap(), &query), Some(0x0012_3456));
        let query = bytes::<QueryQCounterIn>(|input| {
            input.set(QueryQCounterIn::COUNTER_SET_ID, 7);
        });
        assert_eq!(object_number(opcode(&query).unwrap(), &query), Some(7));
        assert_eq!(object_number(Op::QueryQp, &query[..11]), None);
    }

    #[test]
    fn the_kernels_own_commands_are_refused() {
        for opcode in [
            Op::AllocUar,
            Op::DeallocPd,
            Op::DestroyQp,
            Op::SetRoceAddress,
            Op::CreateEq,
            Op::DestroyUmem,
            Op::DrainDct,
            Op::AllocMemic,
        ] {
            assert_eq!(allowed(opcode), None, "{opcode}");
        }
        assert_eq!(allowed(Op::AllocPd), Some(Use::Create(Op::DeallocPd)));
    }
}
