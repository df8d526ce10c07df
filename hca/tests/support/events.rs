//! Event queues of tests.

use std::sync::Arc;

use barewire_hca::{EventChannel, UmemAccess};
use barewire_layouts::command::answer;
use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, DestroyEqIn, EQE_BYTES, Eqc};
use barewire_layouts::doorbell::{
    CQ_DOORBELL_OFFSET, CqArm, CqDoorbell, EQ_ARM_OFFSET, EqDoorbell,
};
use barewire_layouts::eqe::{Eqe, EventType, INITIAL_OWNER, OWNER, OWNER_OFFSET};
use zerocopy::{FromBytes, IntoBytes};

use super::{Memory, Node, command};

/// Every asynchronous event.
pub const ALL: u64 = u64::MAX;

/// An event queue and its interrupt.
pub struct Eq {
    node: Node,
    pub number: u32,
    pub channel: Arc<EventChannel>,
    memory: Memory,
    log_size: u8,
    consumer: u32,
}

impl Eq {
    pub fn new(node: &Node, log_size: u8, mask: u64) -> Self {
        let entries = 1 << log_size;
        let memory = Memory::register(&node.device, entries * EQE_BYTES, UmemAccess::LOCAL_WRITE);
        for entry in 0..entries {
            memory.write(entry * EQE_BYTES + OWNER_OFFSET, &[INITIAL_OWNER]);
        }
        let output = command::<CreateEqIn>(&node.device, |create| {
            create
                .set(CreateEqIn::EQ_UMEM_VALID, true)
                .set(CreateEqIn::EQ_UMEM_ID, memory.umem())
                .set(CreateEqIn::EVENT_BITMASK_0, mask);
            create
                .nested(CreateEqIn::EQ_CONTEXT_ENTRY)
                .set(Eqc::LOG_EQ_SIZE, log_size)
                .set(Eqc::UAR_PAGE, node.uar);
        })
        .unwrap();
        let number = answer::<CreateEqIn>(&output).unwrap().get(CreateEqOut::EQ_NUMBER);
        let channel = node.device.event_channel(number).expect("the queue just made");
        Self { node: node.clone(), number, channel, memory, log_size, consumer: 0 }
    }

    pub fn poll(&mut self) -> Option<Eqe> {
        let at = (self.consumer as usize & ((1 << self.log_size) - 1)) * EQE_BYTES;
        let lap = (self.consumer >> self.log_size) as u8 & OWNER;
        if self.memory.load_byte(at + OWNER_OFFSET) & OWNER != lap {
            return None;
        }
        self.consumer += 1;
        Some(Eqe::read_from_bytes(&self.memory.read(at, EQE_BYTES)).unwrap())
    }

    /// All events: type and number.
    pub fn drain(&mut self) -> Vec<(EventType, u32)> {
        std::iter::from_fn(|| self.poll())
            .map(|event| {
                let event_type = EventType::from_bits(event.event_type).expect("a known type");
                let number = match event_type {
                    EventType::CqError => event.failed_cqn(),
                    EventType::PortChange => event.port_number().into(),
                    _ => event.number(),
                };
                (event_type, number)
            })
            .collect()
    }

    /// Rings the doorbell that reports the consumer counter and arms.
    pub fn arm(&self) {
        let doorbell = EqDoorbell::new(self.number, self.consumer);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(doorbell.as_bytes());
        self.node.store(EQ_ARM_OFFSET, u64::from_ne_bytes(bytes));
    }
}

impl Drop for Eq {
    fn drop(&mut self) {
        let destroyed = command::<DestroyEqIn>(&self.node.device, |destroy| {
            destroy.set(DestroyEqIn::EQ_NUMBER, self.number);
        });
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}

/// The CQ doorbell that goes with an arm word.
pub fn ring_cq(node: &Node, arm: CqArm, cqn: u32) {
    let bytes: [u8; 8] = CqDoorbell::new(arm, cqn).as_bytes().try_into().unwrap();
    node.store(CQ_DOORBELL_OFFSET, u64::from_ne_bytes(bytes));
}
