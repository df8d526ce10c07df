//! Commands for extended reliable and dynamic connections.

use barewire_layouts::command::dct::{
    ArmDctIn, CreateDctIn, CreateDctOut, Dctc, DestroyDctIn, DrainDctIn, QueryDctIn,
};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::command::xrc::{
    AllocXrcdIn, AllocXrcdOut, ArmXrcSrqIn, CreateXrcSrqIn, CreateXrcSrqOut, DeallocXrcdIn,
    DestroyXrcSrqIn, QueryXrcSrqIn, XrcSrqc,
};
use barewire_layouts::prm::ViewMut;

use super::{Refusal, Rig, XRC_SRQ_DOORBELL, XRC_SRQ_RING};

impl Rig {
    pub fn alloc_xrcd(&self) -> Result<u32, Refusal> {
        self.run::<AllocXrcdIn, _>(|_| (), |answer| answer.get(AllocXrcdOut::XRCD))
    }

    pub fn dealloc_xrcd(&self, xrcd: u32) -> Result<(), Refusal> {
        self.run::<DeallocXrcdIn, _>(|request| _ = request.set(DeallocXrcdIn::XRCD, xrcd), |_| ())
    }

    /// A list of 16 WQEs of 64 bytes, changed by `change`.
    pub fn create_xrc_srq(
        &self,
        xrcd: u32,
        cqn: u32,
        change: impl FnOnce(&mut ViewMut<'_, XrcSrqc>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateXrcSrqIn, _>(
            |request| {
                request
                    .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, self.umem)
                    .set(CreateXrcSrqIn::XRC_SRQ_UMEM_OFFSET, XRC_SRQ_RING);
                let mut context = request.nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
                context
                    .set(XrcSrqc::LOG_XRC_SRQ_SIZE, 4)
                    .set(XrcSrqc::LOG_RQ_STRIDE, 2)
                    .set(XrcSrqc::XRCD, xrcd)
                    .set(XrcSrqc::CQN, cqn)
                    .set(XrcSrqc::PD, self.pd)
                    .set(XrcSrqc::DBR_UMEM_ID, self.umem)
                    .set(XrcSrqc::DBR_ADDR, XRC_SRQ_DOORBELL);
                change(&mut context);
            },
            |answer| answer.get(CreateXrcSrqOut::XRC_SRQN),
        )
    }

    pub fn destroy_xrc_srq(&self, srqn: u32) -> Result<(), Refusal> {
        self.run::<DestroyXrcSrqIn, _>(
            |request| _ = request.set(DestroyXrcSrqIn::XRC_SRQN, srqn),
            |_| (),
        )
    }

    pub fn query_xrc_srq(&self, srqn: u32) -> Result<(), Refusal> {
        self.run::<QueryXrcSrqIn, _>(
            |request| _ = request.set(QueryXrcSrqIn::XRC_SRQN, srqn),
            |_| (),
        )
    }

    pub fn arm_xrc_srq(&self, srqn: u32, modifier: u16, limit: u16) -> Result<(), Refusal> {
        self.run::<ArmXrcSrqIn, _>(
            |request| {
                request
                    .set(ArmXrcSrqIn::OP_MOD, modifier)
                    .set(ArmXrcSrqIn::XRC_SRQN, srqn)
                    .set(ArmXrcSrqIn::LWM, limit);
            },
            |_| (),
        )
    }

    /// A target that receives from shared receive queue `srqn`, changed by `change`.
    pub fn create_dct(
        &self,
        cqn: u32,
        srqn: u32,
        change: impl FnOnce(&mut ViewMut<'_, Dctc>),
    ) -> Result<u32, Refusal> {
        self.run::<CreateDctIn, _>(
            |request| {
                let mut context = request.nested(CreateDctIn::DCT_CONTEXT_ENTRY);
                context
                    .set(Dctc::CQN, cqn)
                    .set(Dctc::SRQN_XRQN, srqn)
                    .set(Dctc::PD, self.pd)
                    .set(Dctc::RWE, true)
                    .set(Dctc::MTU, Mtu::Bytes1024)
                    .set(Dctc::PORT, 1);
                change(&mut context);
            },
            |answer| answer.get(CreateDctOut::DCTN),
        )
    }

    pub fn drain_dct(&self, dctn: u32) -> Result<(), Refusal> {
        self.run::<DrainDctIn, _>(|request| _ = request.set(DrainDctIn::DCTN, dctn), |_| ())
    }

    pub fn destroy_dct(&self, dctn: u32) -> Result<(), Refusal> {
        self.run::<DestroyDctIn, _>(|request| _ = request.set(DestroyDctIn::DCTN, dctn), |_| ())
    }

    pub fn query_dct(&self, dctn: u32) -> Result<(), Refusal> {
        self.run::<QueryDctIn, _>(|request| _ = request.set(QueryDctIn::DCTN, dctn), |_| ())
    }

    pub fn arm_dct(&self, dctn: u32) -> Result<(), Refusal> {
        self.run::<ArmDctIn, _>(|request| _ = request.set(ArmDctIn::DCT_NUMBER, dctn), |_| ())
    }
}
