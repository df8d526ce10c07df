//! QUERY_HCA_CAP.

use barewire_layouts::command::capability::{
    ATOMIC_COMPARE_SWAP, ATOMIC_FETCH_ADD, ATOMIC_MASKED_COMPARE_SWAP, ATOMIC_MASKED_FETCH_ADD,
    AtomicCap, CapabilityPage, DeviceMemCap, HcaCap, OdpCap, OdpServices, PortType, QueryHcaCapIn,
    QueryHcaCapOut, ROCE_L3_IPV4, ROCE_L3_IPV6, ROCE_VERSION_2, RoceCap,
};
use barewire_layouts::command::memic::LOG_UNIT;
use barewire_layouts::prm::{View, ViewMut};
use barewire_layouts::roce::UDP_PORT;

use super::{CommandSyndrome, Outcome};
use crate::limits;
use crate::requirements::Requirements;

/// PRM: QUERY_HCA_CAP. Capabilities cannot be set, so the maximum and the current values are the
/// same.
pub(super) fn query(
    (port_type, ports): (PortType, u8),
    requirements: Requirements,
    input: View<'_, QueryHcaCapIn>,
    mut output: ViewMut<'_, QueryHcaCapOut>,
) -> Outcome {
    let roce_port = port_type == PortType::Ethernet;
    let page = CapabilityPage::try_from(input.get(QueryHcaCapIn::OP_MOD) >> 1);
    match page.map_err(|_| CommandSyndrome::UnknownModifier)? {
        CapabilityPage::General => {
            let mut page = output.nested(QueryHcaCapOut::GENERAL);
            general(&mut page);
            requirements.adapter.report(&mut page);
            page.set(HcaCap::PORT_TYPE, port_type)
                .set(HcaCap::ROCE, roce_port)
                .set(HcaCap::SQ_TS_FORMAT, requirements.real_time_clock.into())
                .set(HcaCap::ECE, !requirements.enhancements.is_none())
                .set(HcaCap::TAG_MATCHING, requirements.log_tags > 0)
                .set(HcaCap::RNDV_OFFLOAD_RC, requirements.log_tags > 0)
                .set(HcaCap::LOG_TAG_MATCHING_LIST_SZ, requirements.log_tags)
                .set(HcaCap::MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY, requirements.relaxed_keys)
                .set(HcaCap::NUM_LAG_PORTS, requirements.lag_ports)
                .set(
                    HcaCap::LAG_DCT,
                    u8::from(requirements.lag_ports > 0 && !requirements.no_lag_dct),
                )
                .set(HcaCap::LOG_MAX_RA_REQ_DC, requirements.log_dc_reads)
                .set(HcaCap::LAG_TX_PORT_AFFINITY, requirements.lag_ports > 0)
                .set(HcaCap::INIT2_LAG_TX_PORT_AFFINITY, requirements.lag_ports > 0)
                .set(HcaCap::NUM_PORTS, ports);
        }
        CapabilityPage::Atomic => {
            atomic(requirements, &mut output.nested(QueryHcaCapOut::ATOMIC));
        }
        CapabilityPage::DeviceMemory => {
            device_memory(&mut output.nested(QueryHcaCapOut::DEVICE_MEM));
        }
        CapabilityPage::Odp => {
            odp((roce_port, requirements), &mut output.nested(QueryHcaCapOut::ODP));
        }
        CapabilityPage::Roce if roce_port => {
            roce(requirements, &mut output.nested(QueryHcaCapOut::ROCE));
        }
        // All zeros: not supported.
        _ => {}
    }
    Ok(())
}

fn general(page: &mut ViewMut<'_, HcaCap>) {
    page.set(HcaCap::LOG_MAX_PD, limits::LOG_PDS)
        .set(HcaCap::LOG_MAX_CQ, limits::LOG_CQS)
        .set(HcaCap::LOG_MAX_QP, limits::LOG_QPS)
        .set(HcaCap::LOG_MAX_MKEY, limits::LOG_MKEYS)
        .set(HcaCap::LOG_MAX_EQ, limits::LOG_EQS)
        .set(HcaCap::LOG_MAX_EQ_SZ, limits::LOG_EQ_ENTRIES)
        .set(HcaCap::MAX_NUM_EQS, limits::EQS as u16)
        .set(HcaCap::LOG_MAX_SRQ, limits::LOG_SRQS)
        .set(HcaCap::LOG_MAX_SRQ_SZ, limits::LOG_WQ_ENTRIES)
        .set(HcaCap::LOG_MAX_RMP, limits::LOG_SRQS)
        .set(HcaCap::LOG_MAX_WQ_SZ, limits::LOG_WQ_ENTRIES)
        .set(HcaCap::BASIC_CYCLIC_RCV_WQE, true)
        .set(HcaCap::MAX_QP_CNT, limits::COUNTER_SETS as u16)
        .set(HcaCap::RETRANSMISSION_Q_COUNTERS, true)
        .set(HcaCap::MAX_INDIRECTION, limits::INDIRECTION)
        .set(HcaCap::FIXED_BUFFER_SIZE, true)
        .set(HcaCap::LOG_MAX_KLM_LIST_SIZE, limits::LOG_RANGES)
        .set(HcaCap::IB_STRIDING_WQ, true)
        .set(HcaCap::IB_STRIDING_WQ_CQ_FIRST_INDICATION, true)
        .set(HcaCap::EXT_STRIDE_NUM_RANGE, true)
        .set(HcaCap::LOG_MAX_XRQ, limits::LOG_SRQS)
        .set(HcaCap::SCTR_DATA_CQE, true)
        .set(HcaCap::CQ_RESIZE, true)
        .set(HcaCap::CQ_MODERATION, true)
        .set(HcaCap::RELAXED_ORDERING_WRITE, true)
        .set(HcaCap::RELAXED_ORDERING_READ, true)
        .set(HcaCap::LOG_MAX_UMEM, limits::LOG_UMEMS)
        .set(HcaCap::LOG_MAX_QP_SZ, limits::LOG_WQ_ENTRIES)
        .set(HcaCap::LOG_MAX_CQ_SZ, limits::LOG_CQ_ENTRIES)
        .set(HcaCap::LOG_MAX_MRW_SZ, limits::LOG_UMEM_BYTES)
        .set(HcaCap::LOG_MAX_MSG, limits::LOG_MESSAGE_BYTES)
        .set(HcaCap::LOG_MAX_RA_REQ_QP, limits::LOG_RESPONDER_RESOURCES)
        .set(HcaCap::LOG_MAX_RA_RES_QP, limits::LOG_RESPONDER_RESOURCES)
        .set(HcaCap::LOG_MAX_RA_RES_DC, limits::LOG_RESPONDER_RESOURCES)
        .set(HcaCap::LOG_MAX_MCG, limits::LOG_GROUPS)
        .set(HcaCap::MAX_QP_MCG, limits::GROUP_MEMBERS as u32)
        .set(HcaCap::BLOCK_LB_MC, true)
        .set(HcaCap::LOG_MAX_XRCD, limits::LOG_XRCDS)
        .set(HcaCap::QPC_EXTENSION, true)
        .set(HcaCap::LOG_MAX_DCI_STREAM_CHANNELS, limits::LOG_STREAMS)
        .set(HcaCap::LOG_MAX_DCI_ERRORED_STREAMS, limits::LOG_STREAMS)
        .set(HcaCap::DC_REQ_SCAT_DATA_CQE, true)
        .set(HcaCap::DCT, true)
        .set(HcaCap::PG, true)
        .set(HcaCap::DEVICE_MEMORY, true)
        .set(HcaCap::XRC, true)
        .set(HcaCap::MAX_WQE_SZ_SQ, limits::SEND_WQE_BYTES)
        .set(HcaCap::MAX_WQE_SZ_RQ, limits::RECEIVE_WQE_BYTES)
        .set(HcaCap::CQE_VERSION, 1)
        .set(HcaCap::CQ_OI, true)
        .set(HcaCap::RC, true)
        .set(HcaCap::UC, true)
        .set(HcaCap::UD, true)
        .set(HcaCap::COMPACT_ADDRESS_VECTOR, true)
        .set(HcaCap::IMAICL, true)
        .set(HcaCap::CQE_COMPRESSION, true)
        .set(HcaCap::CQE_COMPRESSION_128, true)
        .set(HcaCap::ENHANCED_CQE_COMPRESSION, true)
        .set(HcaCap::MINI_CQE_RESP_STRIDE_INDEX, true)
        .set(HcaCap::CQE_COMPRESSION_MAX_NUM, limits::COMPRESSED_CQES)
        .set(HcaCap::GID_TABLE_SIZE, (limits::GIDS / 8).ilog2() as u16)
        .set(HcaCap::ATOMIC, true)
        .set(HcaCap::UMEM_UID_0, true)
        .set(HcaCap::LOG_PG_SZ, limits::LOG_PAGE_BYTES)
        .set(HcaCap::BF, true)
        .set(HcaCap::LOG_BF_REG_SIZE, limits::LOG_BLUEFLAME_BYTES)
        .set(HcaCap::UAR_4K, true)
        .set(HcaCap::NUM_OF_UARS_PER_PAGE, 1);
}

fn device_memory(page: &mut ViewMut<'_, DeviceMemCap>) {
    page.set(DeviceMemCap::MEMIC, true)
        .set(DeviceMemCap::LOG_MIN_MEMIC_ALLOC_SIZE, LOG_UNIT)
        .set(DeviceMemCap::LOG_MAX_MEMIC_ADDR_ALIGNMENT, limits::LOG_DEVICE_MEMORY_ALIGNMENT)
        .set(DeviceMemCap::MEMIC_BAR_START_ADDR, limits::DEVICE_MEMORY_START)
        .set(DeviceMemCap::MEMIC_BAR_SIZE, limits::DEVICE_MEMORY as u32)
        .set(DeviceMemCap::MAX_MEMIC_SIZE, limits::DEVICE_MEMORY as u32);
}

/// The operations on memory that is paged on demand, as listings of adapters have them: atomics on
/// InfiniBand only, receives of connections from their own rings only, no received datagrams. The
/// device executes all of them.
fn odp((roce_port, requirements): (bool, Requirements), page: &mut ViewMut<'_, OdpCap>) {
    let dynamic =
        OdpServices::SEND | OdpServices::WRITE | OdpServices::READ | OdpServices::SRQ_RECEIVE;
    let mut extended = dynamic;
    extended.set(OdpServices::ATOMIC, !roce_port);
    page.set(OdpCap::RC_ODP_CAPS, (extended | OdpServices::RECEIVE).bits())
        .set(OdpCap::UD_ODP_CAPS, OdpServices::SEND.bits())
        .set(OdpCap::XRC_ODP_CAPS, extended.bits())
        .set(OdpCap::DC_ODP_CAPS, dynamic.bits())
        .set(OdpCap::MEM_PAGE_FAULT, !requirements.faults_name_wqes());
}

fn atomic(requirements: Requirements, page: &mut ViewMut<'_, AtomicCap>) {
    let sizes = (size_of::<u32>() | size_of::<u64>()) as u16;
    let dc_sizes = if requirements.dc_atomics_of_8 { size_of::<u64>() as u16 } else { sizes };
    page.set(AtomicCap::REQ_8B_ENDIANNESS_MODE, 1)
        .set(AtomicCap::SUPPORTED_REQ_8B_ENDIANNESS_MODE_1, true)
        .set(
            AtomicCap::ATOMIC_OPERATIONS,
            ATOMIC_COMPARE_SWAP
                | ATOMIC_FETCH_ADD
                | ATOMIC_MASKED_COMPARE_SWAP
                | ATOMIC_MASKED_FETCH_ADD,
        )
        .set(AtomicCap::ATOMIC_SIZE_QP, sizes)
        .set(AtomicCap::ATOMIC_SIZE_DC, dc_sizes);
}

fn roce(requirements: Requirements, page: &mut ViewMut<'_, RoceCap>) {
    let (first, last) = requirements.spread_ports();
    page.set(RoceCap::QP_TS_FORMAT, requirements.real_time_clock.into())
        .set(RoceCap::L3_TYPE, ROCE_L3_IPV4 | ROCE_L3_IPV6)
        .set(RoceCap::ROCE_VERSION, ROCE_VERSION_2)
        .set(RoceCap::R_ROCE_DEST_UDP_PORT, UDP_PORT)
        .set(RoceCap::R_ROCE_MIN_SRC_UDP_PORT, first)
        .set(RoceCap::R_ROCE_MAX_SRC_UDP_PORT, last)
        .set(RoceCap::ROCE_ADDRESS_TABLE_SIZE, limits::GIDS);
}
