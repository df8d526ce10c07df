//! DC targets: MODIFY_QP creates them (linux qp.c: `mlx5_ib_modify_dct`).

use barewire_layouts::command::dct::{CreateDctIn, CreateDctOut, Dctc};
use barewire_layouts::command::qp::{AtomicMode, Mtu};
use zerocopy::IntoBytes;

use crate::abi::{ModifyQp, ModifyQpDriverResponse, access, driver};
use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::context::State;
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Qp, Target};

/// Creates the DC target from the parameters recorded at creation and set since. Returns its number
/// to libmlx5.
pub(super) fn make(
    adapter: &Adapter,
    call: &Attributes,
    qp: &mut Qp,
    attributes: &ModifyQp,
    enhancements: u32,
) -> Result<Target, Errno> {
    let target = qp.target.ok_or(Errno::INVALID)?;
    // Without its number the program cannot use the target.
    if call.room(driver::OUT) < size_of::<ModifyQpDriverResponse>() {
        return Err(Errno::INVALID);
    }
    let mtu = Mtu::try_from(attributes.path_mtu).map_err(|_| Errno::INVALID)?;
    let has = |right| attributes.qp_access_flags & right != 0;
    let atomic = has(access::REMOTE_ATOMIC);
    let enhancements = match enhancements {
        _ if !adapter.has_enhancements() => 0,
        0 => target.enhancements,
        set => set,
    };
    let answer = adapter.command::<CreateDctIn>(|create| {
        create
            .nested(CreateDctIn::DCT_CONTEXT_ENTRY)
            .set(Dctc::USER_INDEX, target.user_index)
            .set(Dctc::CQN, target.cq)
            .set(Dctc::COUNTER_SET_ID, adapter.spare.counter_set)
            .set(Dctc::ATOMIC_MODE, if atomic { AtomicMode::IbSpec } else { AtomicMode::None })
            .set(Dctc::RRE, has(access::REMOTE_READ))
            .set(Dctc::RWE, has(access::REMOTE_WRITE))
            .set(Dctc::RAE, atomic)
            .set(Dctc::CS_RES, target.scatter)
            .set(Dctc::MIN_RNR_NAK, attributes.min_rnr_timer)
            .set(Dctc::SRQN_XRQN, target.srq)
            .set(Dctc::PD, target.pd)
            .set(Dctc::TCLASS, attributes.dest.traffic_class)
            .set(Dctc::MTU, mtu)
            .set(Dctc::PORT, attributes.port_num)
            .set(Dctc::PKEY_INDEX, attributes.pkey_index)
            .set(Dctc::DC_ACCESS_KEY, target.access_key)
            .set(Dctc::MY_ADDR_INDEX, attributes.dest.sgid_index)
            .set(Dctc::HOP_LIMIT, attributes.dest.hop_limit)
            .set(Dctc::ECE, enhancements);
    })?;
    let created = answer.view::<CreateDctIn>()?;
    qp.number = created.get(CreateDctOut::DCTN);
    let response = ModifyQpDriverResponse {
        response_length: size_of::<ModifyQpDriverResponse>() as u32,
        dctn: qp.number,
        ece_options: created.get(CreateDctOut::ECE),
        reserved: 0,
    };
    call.put(driver::OUT, response.as_bytes())?;
    Ok(target)
}

/// Sends its events to the program.
pub(super) fn listen(adapter: &Adapter, state: &State, number: u32, target: &Target) {
    adapter.events().on_event(Kind::Qp, number, target.user_handle, &state.asynchronous());
}
