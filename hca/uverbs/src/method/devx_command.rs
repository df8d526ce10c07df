//! Which command may come by which method of DEVX, and which object it is about (linux devx.c: `devx_is_general_cmd`,
//! `devx_is_obj_create_cmd`, `devx_is_obj_modify_cmd`, `devx_is_obj_query_cmd`, `devx_get_obj_id`).

use barewire_layouts::command::CommandOpcode as Op;
use barewire_layouts::command::InHeader;
use barewire_layouts::prm::View;

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The device.
    General,
    /// It makes an object, which the named command destroys.
    Create(Op),
    /// It changes the object that the named command made.
    Modify(Op),
    /// It reads the object that the named command made.
    Query(Op),
}

/// The opcode of a command as it came. `None` for what this device does not know: it is the device that says so.
pub(super) fn opcode(command: &[u8]) -> Option<Op> {
    View::<InHeader>::new(command)?.get(InHeader::OPCODE).ok()
}

/// What a program may do with a command; `None` for those that are the kernel's own.
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

/// The number of the object that a command names: 24 bits behind the header, but for counter sets.
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
        ] {
            assert_eq!(allowed(opcode), None, "{opcode}");
        }
        assert_eq!(allowed(Op::AllocPd), Some(Use::Create(Op::DeallocPd)));
    }
}
