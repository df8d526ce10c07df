//! The context of a queue pair as the device reports it (QUERY_QP), for diagnostics.

use barewire_layouts::command::qp::{AddressPath, Qpc};
use barewire_layouts::prm::View;

macro_rules! fields {
    ($view:ident: $($name:literal $structure:ident::$field:ident,)+) => {
        [$(($name, $view.bits($structure::$field)),)+]
    };
}

/// Returns the fields that decide how a connection works, with their names in mlx5_ifc.h (`qpc`,
/// `ads`) and their values.
pub(crate) fn fields(context: View<'_, Qpc>) -> Vec<(&'static str, u64)> {
    let path = context.nested(Qpc::PRIMARY_ADDRESS_PATH);
    let own = fields![context:
        "state" Qpc::STATE,
        "lag_tx_port_affinity" Qpc::LAG_TX_PORT_AFFINITY,
        "mtu" Qpc::MTU,
        "log_msg_max" Qpc::LOG_MSG_MAX,
        "ts_format" Qpc::TS_FORMAT,
        "counter_set_id" Qpc::COUNTER_SET_ID,
        "remote_qpn" Qpc::REMOTE_QPN,
        "log_ack_req_freq" Qpc::LOG_ACK_REQ_FREQ,
        "log_sra_max" Qpc::LOG_SRA_MAX,
        "retry_count" Qpc::RETRY_COUNT,
        "rnr_retry" Qpc::RNR_RETRY,
        "next_send_psn" Qpc::NEXT_SEND_PSN,
        "log_rra_max" Qpc::LOG_RRA_MAX,
        "atomic_mode" Qpc::ATOMIC_MODE,
        "rre" Qpc::RRE,
        "rwe" Qpc::RWE,
        "rae" Qpc::RAE,
        "min_rnr_nak" Qpc::MIN_RNR_NAK,
        "next_rcv_psn" Qpc::NEXT_RCV_PSN,
        "cs_req" Qpc::CS_REQ,
        "cs_res" Qpc::CS_RES,
    ];
    let way = fields![path:
        "pkey_index" AddressPath::PKEY_INDEX,
        "grh" AddressPath::GRH,
        "rlid" AddressPath::RLID,
        "ack_timeout" AddressPath::ACK_TIMEOUT,
        "src_addr_index" AddressPath::SRC_ADDR_INDEX,
        "hop_limit" AddressPath::HOP_LIMIT,
        "tclass" AddressPath::TCLASS,
        "dscp" AddressPath::DSCP,
        "udp_sport" AddressPath::UDP_SPORT,
        "eth_prio" AddressPath::ETH_PRIO,
        "sl" AddressPath::SL,
        "vhca_port_num" AddressPath::VHCA_PORT_NUM,
    ];
    [&own[..], &way[..]].concat()
}
