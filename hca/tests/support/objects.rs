//! Contexts with which objects are created: the fields that all tests have in common.

use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn};
use barewire_layouts::command::mkey::{ANY_QPN, AccessMode, CreateMkeyIn, Mkc};
use barewire_layouts::command::qp::{CreateQpIn, PathMigration, Qpc, ServiceType};
use barewire_layouts::prm::ViewMut;

use super::{Node, Rights};

/// The offsets of a ring and of its doorbell record in a umem.
#[derive(Clone, Copy)]
pub struct Rings {
    pub umem: u32,
    pub ring: u64,
    pub record: u64,
}

/// A CQ of `1 << log_size` entries of 64 bytes.
pub fn describe_cq(create: &mut ViewMut<'_, CreateCqIn>, node: &Node, rings: Rings, log_size: u8) {
    create
        .set(CreateCqIn::CQ_UMEM_VALID, true)
        .set(CreateCqIn::CQ_UMEM_ID, rings.umem)
        .set(CreateCqIn::CQ_UMEM_OFFSET, rings.ring);
    create
        .nested(CreateCqIn::CQ_CONTEXT)
        .set(Cqc::DBR_UMEM_VALID, true)
        .set(Cqc::DBR_UMEM_ID, rings.umem)
        .set(Cqc::DBR_ADDR, rings.record)
        .set(Cqc::CQE_SZ, CqeSize::Bytes64)
        .set(Cqc::LOG_CQ_SIZE, log_size)
        .set(Cqc::UAR_PAGE, node.uar);
}

/// An RC QP with send and receive CQ `cqns`; the caller sets the sizes of its rings.
pub fn describe_qp(
    create: &mut ViewMut<'_, CreateQpIn>,
    node: &Node,
    rings: Rings,
    cqns: (u32, u32),
) {
    create
        .set(CreateQpIn::WQ_UMEM_VALID, true)
        .set(CreateQpIn::WQ_UMEM_ID, rings.umem)
        .set(CreateQpIn::WQ_UMEM_OFFSET, rings.ring);
    create
        .nested(CreateQpIn::QPC)
        .set(Qpc::ST, ServiceType::Rc)
        .set(Qpc::PM_STATE, PathMigration::Migrated)
        .set(Qpc::PD, node.pd)
        .set(Qpc::UAR_PAGE, node.uar)
        .set(Qpc::CQN_SND, cqns.0)
        .set(Qpc::CQN_RCV, cqns.1)
        .set(Qpc::DBR_UMEM_VALID, true)
        .set(Qpc::DBR_UMEM_ID, rings.umem)
        .set(Qpc::DBR_ADDR, rings.record);
}

/// A key for the `length` bytes at `offset` of `umem`, whose addresses begin at `start`.
pub fn describe_key(
    create: &mut ViewMut<'_, CreateMkeyIn>,
    (umem, offset): (u32, u64),
    (start, length): (u64, u64),
    rights: Rights,
    variant: u8,
    pd: u32,
) {
    create
        .set(CreateMkeyIn::MKEY_UMEM_VALID, true)
        .set(CreateMkeyIn::MKEY_UMEM_ID, umem)
        .set(CreateMkeyIn::MKEY_UMEM_OFFSET, offset);
    create
        .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
        .set(Mkc::LR, true)
        .set(Mkc::LW, rights.local_write)
        .set(Mkc::RR, rights.remote_read)
        .set(Mkc::RW, rights.remote_write)
        .set(Mkc::A, rights.remote_atomic)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, variant)
        .set(Mkc::PD, pd)
        .set(Mkc::START_ADDR, start)
        .set(Mkc::LEN, length);
}
