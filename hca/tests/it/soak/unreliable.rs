//! Messages of unreliable services.

use std::collections::BTreeMap;

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::wqe::{AddressVector, Opcode};
use fastrand::Rng;

use super::reliable::receiver;
use super::{LONGEST, SHAPES};
use crate::support::srq::Srq;
use crate::support::{Connection, Node, Pair, Qp, Region, Wqe, pattern};

/// Longest datagram.
const DATAGRAM: usize = 256;
const GRH: usize = 40;
const QKEY: u32 = 0x1111_1111;

/// Messages that may be lost, and doubled, but not changed: each is what one of its number was.
pub(super) struct Unreliable {
    pub(super) pair: Pair,
    /// The receive queue, if it is shared.
    srq: Option<Srq>,
    datagrams: bool,
    pub(super) local: Region,
    pub(super) inbox: Region,
    pub(super) sent: BTreeMap<u32, Vec<u8>>,
    slots: u16,
    pub(super) arrived: usize,
}

impl Unreliable {
    const SLOT: usize = 2048;
    const SLOTS: usize = 32;

    /// `shared`: the shape of the shared receive queue, if it has one.
    pub(super) fn new(a: Node, b: Node, service: ServiceType, shared: Option<usize>) -> Self {
        let (local, inbox) = (a.region(LONGEST), b.region(Self::SLOT * Self::SLOTS));
        let srq = shared.map(|shape| Srq::new(&b, 6, SHAPES[shape]));
        let qb = match &srq {
            Some(srq) => receiver(&b, service, srq),
            None => Qp::with_service(&b, service),
        };
        let qa = Qp::with_service(&a, service);
        let pair = Pair::of(a, b, (qa, qb), &Connection::default());
        let datagrams = service == ServiceType::Ud;
        let (sent, slots, arrived) = (BTreeMap::new(), 0, 0);
        let mut this = Self { pair, srq, datagrams, local, inbox, sent, slots, arrived };
        (0..Self::SLOTS).for_each(|_| this.receive());
        this
    }

    fn receive(&mut self) {
        let at = usize::from(self.slots) % Self::SLOTS * Self::SLOT;
        let segments = [(self.inbox.address() + at as u64, Self::SLOT, self.inbox.key)];
        match &mut self.srq {
            Some(srq) => srq.post(&segments),
            None => _ = self.pair.qb.post_receive(&segments),
        }
        self.slots += 1;
    }

    pub(super) fn post(&mut self, random: &mut Rng) {
        let number = self.sent.len() as u32;
        let length = 1 + random.usize(..if self.datagrams { DATAGRAM } else { LONGEST });
        let data = pattern(length, u64::from(number) << 32 | length as u64);
        self.local.memory.write(0, &data);
        self.sent.insert(number, data);
        let mut wqe = Wqe::new(Opcode::SendImmediate).immediate(number);
        if self.datagrams {
            let gid = self.pair.b.device.gid();
            wqe = wqe.addressed(&AddressVector::roce(
                self.pair.qb.number,
                QKEY,
                [0; 6],
                gid,
                0,
                0,
                64,
            ));
        }
        self.pair.qa.post(&wqe.data(self.local.address(), length, self.local.key));
        // The buffer is used again at once: sent is done, whatever becomes of it.
        for _ in 0..1000 {
            if let Some(done) = self.pair.qa.send_cq.poll() {
                assert!(done.is_ok());
                return;
            }
            self.pair.step(1);
        }
        panic!("a send without acknowledgment does not complete");
    }

    pub(super) fn check(&mut self, context: &str) {
        for done in self.pair.qb.receive_cq.drain() {
            assert!(done.is_ok(), "{context}: {done:?}");
            let skip = if self.datagrams { GRH } else { 0 };
            let want = &self.sent[&done.immediate];
            assert_eq!(done.length as usize, want.len() + skip, "{context}");
            let at = usize::from(done.index) % Self::SLOTS * Self::SLOT;
            assert!(
                self.inbox.memory.read(at + skip, want.len()) == *want,
                "{context}: message {}",
                done.immediate
            );
            self.arrived += 1;
            self.receive();
        }
    }
}
