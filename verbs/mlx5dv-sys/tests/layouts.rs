//! `barewire-layouts` agrees with the header: the sizes, offsets and values of what the device
//! reads and writes.

use std::mem::{offset_of, size_of};

use barewire_layouts::cqe::{self, Cqe64, CqeFormat, CqeOpcode, ErrorCqe, PacketFields, Syndrome};
use barewire_layouts::doorbell::{CQ_DOORBELL_OFFSET, CqArm, CqDoorbellRecord, DoorbellRecord};
use barewire_layouts::wqe::{
    self, AddressVector, AtomicSegment, ControlFlags, ControlSegment, DataSegment, InlineHeader,
    MkeyContextSegment, Opcode, RemoteAddressSegment, RepeatBlock, RepeatEntry,
    SharedReceiveHeader, UmrControlSegment, UmrFlags, UmrMask,
};
use barewire_mlx5dv_sys::*;

/// Asserts that both structures have the same size, and that each pair of fields has the same
/// offset.
macro_rules! same {
    ($ours:ty, $theirs:ty: $($our:ident $(. $inner:ident)* = $their:ident $(. $part:ident)*),+ $(,)?) => {
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
        $(assert_eq!(
            offset_of!($ours, $our $(. $inner)*),
            offset_of!($theirs, $their $(. $part)*),
            stringify!($ours, $our)
        );)+
    };
}

#[test]
fn segments_lie_as_in_the_header() {
    assert_eq!(size_of::<ControlSegment>(), size_of::<mlx5_wqe_ctrl_seg>());
    let flags = offset_of!(ControlSegment, signature_stream_flags);
    for (ours, theirs) in [
        (offset_of!(ControlSegment, opmod_index_opcode), CTRL_SEG_OPMOD_IDX_OPCODE),
        (offset_of!(ControlSegment, qpn_ds), CTRL_SEG_QPN_DS),
        (flags, CTRL_SEG_SIGNATURE),
        (flags + 1, CTRL_SEG_DCI_STREAM_CHANNEL_ID),
        (flags + 3, CTRL_SEG_FM_CE_SE),
        (offset_of!(ControlSegment, immediate), CTRL_SEG_IMM),
    ] {
        assert_eq!(ours, theirs as usize);
    }
    same!(RemoteAddressSegment, mlx5_wqe_raddr_seg: address = raddr, rkey = rkey, reserved = reserved);
    same!(DataSegment, mlx5_wqe_data_seg: byte_count = byte_count, lkey = lkey, address = addr);
    same!(InlineHeader, mlx5_wqe_inl_data_seg: byte_count = byte_count);
    same!(AtomicSegment, mlx5_wqe_atomic_seg: swap_or_add = swap_add, compare = compare);
    same!(SharedReceiveHeader, mlx5_wqe_srq_next_seg: next_wqe_index = next_wqe_index, signature = signature);
    same!(AddressVector, mlx5_wqe_av: base.qkey = key, base.qpn = dqp_dct, base.rate_service_level = stat_rate_sl,
        base.path_bits = fl_mlid, base.lid_or_port = rlid, reserved = reserved0, mac = rmac, traffic_class = tclass,
        hop_limit = hop_limit, grh_gid_flow = grh_gid_fl, gid = rgid);
    same!(AddressVector, mlx5_wqe_datagram_seg: base = av);
}

#[test]
fn registration_segments_lie_as_in_the_header() {
    same!(UmrControlSegment, mlx5_wqe_umr_ctrl_seg: flags = flags, translation_octowords = klm_octowords,
        translation_offset = __bindgen_anon_1, mask = mkey_mask);
    same!(MkeyContextSegment, mlx5_wqe_mkey_context_seg: free = free, access = access_flags, sub_function = sf,
        qpn_mkey = qpn_mkey, flags_pd = flags_pd, start_address = start_addr, length = len,
        signature_octowords = bsf_octword_size, translation_octowords = translations_octword_size,
        log_page_size = log_page_size);
    same!(RepeatBlock, mlx5_wqe_umr_repeat_block_seg: byte_count = byte_count, operation = op,
        repeat_count = repeat_count, reserved = reserved, entries = num_ent);
    same!(RepeatEntry, mlx5_wqe_umr_repeat_ent_seg: stride = stride, byte_count = byte_count, key = memkey, address = va);
}

#[test]
fn completions_lie_as_in_the_header() {
    same!(Cqe64, mlx5_cqe64: metadata = __bindgen_anon_1, srqn_user_index = srqn_uidx, immediate = imm_inval_pkey,
        application = app, byte_count = byte_cnt, timestamp = timestamp, opcode_qpn = sop_drop_qpn,
        wqe_counter = wqe_counter, signature = signature, op_own = op_own);
    same!(ErrorCqe, mlx5_err_cqe: srqn_user_index = srqn, vendor_syndrome = vendor_err_synd, syndrome = syndrome,
        opcode_qpn = s_wqe_opcode_qpn, wqe_counter = wqe_counter, signature = signature, op_own = op_own);
    same!(PacketFields, mlx5_cqe64__bindgen_ty_1__bindgen_ty_1: tunnel = rsvd0, wqe_id = wqe_id, path_bits = ml_path,
        source_lid = slid, flags_source_qpn = flags_rqpn, header_checks = hds_ip_ext, header_kinds = l4_hdr_type_etc,
        vlan = vlan_info);
}

#[test]
fn doorbells_are_those_of_the_header() {
    let word = size_of::<u32>();
    assert_eq!(offset_of!(DoorbellRecord, receive), MLX5_RCV_DBR as usize * word);
    assert_eq!(offset_of!(DoorbellRecord, send), MLX5_SND_DBR as usize * word);
    assert_eq!(size_of::<DoorbellRecord>(), 2 * word);
    assert_eq!(size_of::<CqDoorbellRecord>(), 2 * word);
    assert_eq!(CQ_DOORBELL_OFFSET, MLX5_CQ_DOORBELL as usize);
    let arm = |solicited_only| CqArm { sequence: 0, solicited_only, consumer: 0 }.bits();
    assert_eq!((arm(true), arm(false)), (MLX5_CQ_DB_REQ_NOT_SOL, MLX5_CQ_DB_REQ_NOT));
}

#[test]
fn units_and_flags_are_those_of_the_header() {
    assert_eq!(wqe::WQEBB, MLX5_SEND_WQE_BB as usize);
    assert_eq!(wqe::INLINE, MLX5_INLINE_SEG);
    assert_eq!(wqe::INVALID_LKEY, MLX5_INVALID_LKEY);
    assert_eq!(wqe::EXTENDED_ADDRESS_VECTOR, MLX5_EXTENDED_UD_AV);
    assert_eq!(u32::from(cqe::OWNER), MLX5_CQE_OWNER_MASK);
    assert_eq!(u32::from(CqeFormat::Inline32.bits()), MLX5_INLINE_SCATTER_32);
    assert_eq!(u32::from(CqeFormat::Inline64.bits()), MLX5_INLINE_SCATTER_64);
    for (ours, theirs) in [
        (ControlFlags::SOLICITED, MLX5_WQE_CTRL_SOLICITED),
        (ControlFlags::COMPLETION, MLX5_WQE_CTRL_CQ_UPDATE),
        (ControlFlags::SMALL_FENCE, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE),
        (ControlFlags::FENCE, MLX5_WQE_CTRL_FENCE),
    ] {
        assert_eq!(u32::from(ours.bits()), theirs, "{ours:?}");
    }
    for (ours, theirs) in [
        (UmrFlags::INLINE, MLX5_WQE_UMR_CTRL_FLAG_INLINE),
        (UmrFlags::CHECK_FREE, MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE),
        (UmrFlags::TRANSLATION_OFFSET, MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET),
        (UmrFlags::CHECK_QPN, MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN),
    ] {
        assert_eq!(u32::from(ours.bits()), theirs, "{ours:?}");
    }
    for (ours, theirs) in [
        (UmrMask::LENGTH, MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN),
        (UmrMask::START_ADDRESS, MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR),
        (UmrMask::KEY, MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY),
        (UmrMask::QPN, MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN),
        (UmrMask::LOCAL_WRITE, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE),
        (UmrMask::REMOTE_READ, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ),
        (UmrMask::REMOTE_WRITE, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE),
        (UmrMask::ATOMIC, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC),
        (UmrMask::FREE, MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE),
    ] {
        assert_eq!(ours.bits(), u64::from(theirs), "{ours:?}");
    }
}

#[test]
fn opcodes_and_syndromes_are_those_of_the_header() {
    for (ours, theirs) in [
        (Opcode::Nop, MLX5_OPCODE_NOP),
        (Opcode::SendInvalidate, MLX5_OPCODE_SEND_INVAL),
        (Opcode::RdmaWrite, MLX5_OPCODE_RDMA_WRITE),
        (Opcode::RdmaWriteImmediate, MLX5_OPCODE_RDMA_WRITE_IMM),
        (Opcode::Send, MLX5_OPCODE_SEND),
        (Opcode::SendImmediate, MLX5_OPCODE_SEND_IMM),
        (Opcode::RdmaRead, MLX5_OPCODE_RDMA_READ),
        (Opcode::AtomicCompareSwap, MLX5_OPCODE_ATOMIC_CS),
        (Opcode::AtomicFetchAdd, MLX5_OPCODE_ATOMIC_FA),
        (Opcode::MaskedCompareSwap, MLX5_OPCODE_ATOMIC_MASKED_CS),
        (Opcode::MaskedFetchAdd, MLX5_OPCODE_ATOMIC_MASKED_FA),
        (Opcode::LocalInvalidate, MLX5_OPCODE_LOCAL_INVAL),
        (Opcode::Umr, MLX5_OPCODE_UMR),
        (Opcode::TagMatching, MLX5_OPCODE_TAG_MATCHING),
    ] {
        assert_eq!(ours as u32, theirs, "{ours:?}");
    }
    for (ours, theirs) in [
        (CqeOpcode::Requester, MLX5_CQE_REQ),
        (CqeOpcode::ResponderWriteImmediate, MLX5_CQE_RESP_WR_IMM),
        (CqeOpcode::ResponderSend, MLX5_CQE_RESP_SEND),
        (CqeOpcode::ResponderSendImmediate, MLX5_CQE_RESP_SEND_IMM),
        (CqeOpcode::ResponderSendInvalidate, MLX5_CQE_RESP_SEND_INV),
        (CqeOpcode::Resize, MLX5_CQE_RESIZE_CQ),
        (CqeOpcode::NoPacket, MLX5_CQE_NO_PACKET),
        (CqeOpcode::SignatureError, MLX5_CQE_SIG_ERR),
        (CqeOpcode::RequesterError, MLX5_CQE_REQ_ERR),
        (CqeOpcode::ResponderError, MLX5_CQE_RESP_ERR),
        (CqeOpcode::Invalid, MLX5_CQE_INVALID),
    ] {
        assert_eq!(ours as u32, theirs, "{ours:?}");
    }
    for (ours, theirs) in [
        (Syndrome::LocalLength, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR),
        (Syndrome::LocalQpOperation, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR),
        (Syndrome::LocalProtection, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR),
        (Syndrome::WorkRequestFlushed, MLX5_CQE_SYNDROME_WR_FLUSH_ERR),
        (Syndrome::MemoryWindowBind, MLX5_CQE_SYNDROME_MW_BIND_ERR),
        (Syndrome::BadResponse, MLX5_CQE_SYNDROME_BAD_RESP_ERR),
        (Syndrome::LocalAccess, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR),
        (Syndrome::RemoteInvalidRequest, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR),
        (Syndrome::RemoteAccess, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR),
        (Syndrome::RemoteOperation, MLX5_CQE_SYNDROME_REMOTE_OP_ERR),
        (Syndrome::TransportRetryExceeded, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR),
        (Syndrome::RnrRetryExceeded, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR),
        (Syndrome::RemoteAborted, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR),
    ] {
        assert_eq!(ours as u32, theirs, "{ours:?}");
    }
}
