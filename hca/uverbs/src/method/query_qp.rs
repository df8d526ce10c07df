//! QUERY_QP.

use barewire_layouts::command::qp::{QpState, Qpc, QueryQpIn, QueryQpOut};
use zerocopy::IntoBytes;

use crate::abi::{QueryQp, QueryQpResponse};
use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Qp;
use crate::qp_type::{QpType, state};

use super::legacy::{CORE_IN, CORE_OUT};

/// Returns the current state. The device may have moved the queue pair to error.
pub(super) fn current(adapter: &Adapter, qp: &Qp) -> Result<u8, Errno> {
    let told = qp.standing().state;
    if qp.kind == QpType::Dct {
        return Ok(told);
    }
    let answer = adapter.command::<QueryQpIn>(|input| {
        input.set(QueryQpIn::QPN, qp.number);
    })?;
    let failed =
        answer.view::<QueryQpIn>()?.nested(QueryQpOut::QPC).get(Qpc::STATE) == Ok(QpState::Err);
    Ok(if failed { state::ERROR } else { told })
}

/// QUERY_QP: the state from the device, the other attributes as they were set. A DC target can be
/// queried once it exists.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: QueryQp = call.structure(CORE_IN)?;
    let state = context.state();
    let qp = state.objects.get::<Box<Qp>>(request.qp_handle)?;
    let now = current(&context.adapter, qp)?;
    if qp.kind == QpType::Dct && now != state::RTR {
        return Err(Errno::INVALID);
    }
    let set = qp.standing().attributes;
    let response = QueryQpResponse {
        dest: set.dest,
        alt_dest: set.alt_dest,
        cap: qp.cap,
        qkey: set.qkey,
        rq_psn: set.rq_psn,
        sq_psn: set.sq_psn,
        dest_qp_num: set.dest_qp_num,
        qp_access_flags: set.qp_access_flags,
        pkey_index: set.pkey_index,
        alt_pkey_index: set.alt_pkey_index,
        qp_state: now,
        cur_qp_state: now,
        path_mtu: set.path_mtu,
        path_mig_state: set.path_mig_state,
        sq_draining: 0,
        max_rd_atomic: set.max_rd_atomic,
        max_dest_rd_atomic: set.max_dest_rd_atomic,
        min_rnr_timer: set.min_rnr_timer,
        port_num: set.port_num,
        timeout: set.timeout,
        retry_cnt: set.retry_cnt,
        rnr_retry: set.rnr_retry,
        alt_port_num: set.alt_port_num,
        alt_timeout: set.alt_timeout,
        sq_sig_all: u8::from(qp.signal_all),
        reserved: [0; 5],
    };
    call.put(CORE_OUT, response.as_bytes())
}
