//! An open device: its capabilities, protection domains and UAR pages.

use core::any::Any;
use core::cell::OnceCell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, PortType, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::doorbell::{BLUEFLAME_OFFSET, BLUEFLAME_REGISTERS, BLUEFLAME_STRIDE};

use crate::channel::{self, Command, CommandChannel, Object};
use crate::doorbell::SharedRegister;
use crate::error::Error;

/// What the device can do, as far as this driver asks (QUERY_HCA_CAP, general page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most WQEBBs of a send ring, and receive WQEs of a receive ring.
    pub max_queue_entries: u32,
    /// Most CQEs of a completion queue.
    pub max_cq_entries: u32,
    /// Longest message in bytes.
    pub max_message: u64,
    /// Most RDMA reads and atomics that a queue pair may have outstanding, as log2.
    pub log_max_reads_requester: u8,
    /// Most RDMA reads and atomics that a queue pair may be the target of at a time, as log2.
    pub log_max_reads_responder: u8,
    /// 8-byte compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// BlueFlame registers take whole WQEs.
    pub blueflame: bool,
    /// The UAR pages are mapped so that a burst of stores reaches the device in one piece; known from who maps them.
    pub write_combining: bool,
    /// RoCE (Ethernet) or InfiniBand.
    pub port_type: PortType,
}

/// Where peers find the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortAddress {
    /// Global identifier: for RoCEv2 the IP address, IPv4 mapped into IPv6.
    pub gid: [u8; 16],
    /// Ethernet address.
    pub mac: [u8; 6],
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Context(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    channel: Box<dyn CommandChannel>,
    capabilities: Capabilities,
    port: PortAddress,
    key_variant: AtomicU8,
}

impl Context {
    /// Opens the device at the other end of `channel`.
    ///
    /// # Errors
    /// If it does not answer as an mlx5 device does.
    pub fn open(channel: impl CommandChannel + 'static) -> Result<Self, Error> {
        let capabilities = query_capabilities(&channel)?;
        let port = query_port(&channel)?;
        let key_variant = AtomicU8::new(1);
        Ok(Self(Arc::new(Shared { channel: Box::new(channel), capabilities, port, key_variant })))
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// Where peers find the port: entry 0 of its GID table.
    pub fn port_address(&self) -> PortAddress {
        self.0.port
    }

    pub(crate) fn channel(&self) -> &dyn CommandChannel {
        &*self.0.channel
    }

    /// The low byte of the next memory key: it changes from key to key, so that a stale key of a reused index is caught.
    pub(crate) fn next_key_variant(&self) -> u8 {
        self.0.key_variant.fetch_add(1, Ordering::Relaxed)
    }
}

fn query_capabilities(channel: &dyn CommandChannel) -> Result<Capabilities, Error> {
    let mut query = Command::<QueryHcaCapIn>::new();
    query.fields().set(QueryHcaCapIn::OP_MOD, op_mod(CapabilityPage::General, CapabilityMode::Current));
    let answer = query.send(channel)?;
    let general = answer.fields().nested(QueryHcaCapOut::GENERAL);
    let entries = |log: u8| 1 << log.min(31);
    Ok(Capabilities {
        // Doorbell records count 16 bits, so that half of that is the most a ring can tell apart.
        max_queue_entries: entries(general.get(HcaCap::LOG_MAX_QP_SZ)).min(1 << 15),
        max_cq_entries: entries(general.get(HcaCap::LOG_MAX_CQ_SZ)).min(1 << 22),
        max_message: 1 << general.get(HcaCap::LOG_MAX_MSG),
        log_max_reads_requester: general.get(HcaCap::LOG_MAX_RA_REQ_QP).min(7),
        log_max_reads_responder: general.get(HcaCap::LOG_MAX_RA_RES_QP).min(7),
        atomics: general.get(HcaCap::ATOMIC),
        blueflame: general.get(HcaCap::BF),
        write_combining: channel.maps_write_combining(),
        port_type: general.get(HcaCap::PORT_TYPE)?,
    })
}

fn query_port(channel: &dyn CommandChannel) -> Result<PortAddress, Error> {
    let mut query = Command::<QueryRoceAddressIn>::new();
    query.fields().set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, 0).set(QueryRoceAddressIn::VHCA_PORT_NUM, 1);
    let answer = query.send(channel)?;
    let entry = answer.fields().nested(QueryRoceAddressOut::ROCE_ADDRESS);
    Ok(PortAddress {
        gid: entry.array(RoceAddress::SOURCE_L3_ADDRESS),
        mac: entry.array(RoceAddress::SOURCE_MAC),
    })
}

/// A protection domain: keys and queue pairs of one domain work together, and with no other.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<PdShared>);

#[derive(Debug)]
struct PdShared {
    number: u32,
    _object: Box<dyn Object>,
    context: Context,
}

impl ProtectionDomain {
    /// Takes a domain from the device (ALLOC_PD).
    ///
    /// # Errors
    /// If the device refused.
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        let (object, answer) = Command::<AllocPdIn>::new().create(context.channel())?;
        let number = answer.fields().get(AllocPdOut::PD);
        Ok(Self(Arc::new(PdShared { number, _object: object, context: context.clone() })))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }
}

/// A UAR page of one thread: the queues that ring its registers share them without a lock, so that none of them leaves the thread.
#[derive(Clone, Debug)]
pub struct Uar {
    page: Arc<dyn channel::Uar>,
    shared: OnceCell<Arc<SharedRegister>>,
    thread_bound: PhantomData<*mut ()>,
}

/// Registers of a page: one for the queues of the thread that has it, one for those of several threads.
const OWN_REGISTER: usize = 0;
const SHARED_REGISTER: usize = 1;
const _: () = assert!(SHARED_REGISTER < BLUEFLAME_REGISTERS);

impl Uar {
    /// Takes a page from the device.
    ///
    /// # Errors
    /// If the device has none left.
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        let page = Arc::from(context.channel().allocate_uar()?);
        Ok(Self { page, shared: OnceCell::new(), thread_bound: PhantomData })
    }

    pub(crate) fn page(&self) -> &Arc<dyn channel::Uar> {
        &self.page
    }

    /// The BlueFlame register of the thread's own queues. Each post drains what an other queue's burst left in the write-combining buffer
    /// before it writes its own ([`crate::barrier::doorbell_record_before_doorbell`]).
    pub(crate) fn own_register(&self) -> NonNull<u8> {
        self.register(OWN_REGISTER)
    }

    /// The register that queues of several threads ring through, under a lock.
    pub(crate) fn shared_register(&self) -> Arc<SharedRegister> {
        let share = || {
            let keep: Arc<dyn Any + Send + Sync> = Arc::new(self.page.clone());
            // SAFETY: a register of the page that `keep` holds; no queue is assigned it for itself.
            unsafe { SharedRegister::new(self.register(SHARED_REGISTER), keep) }
        };
        self.shared.get_or_init(share).clone()
    }

    fn register(&self, index: usize) -> NonNull<u8> {
        // SAFETY: the registers lie inside the page.
        unsafe { self.page.base().add(BLUEFLAME_OFFSET + index * BLUEFLAME_STRIDE) }
    }
}
