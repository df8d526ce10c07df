//! State shared by the contexts of one device: XRC domains by file, the XRC targets of each domain,
//! and the protection domain and completion queue that XRC targets use.
//!
//! In the kernel, all processes share a device. Here each process has one, so a file names a
//! separate domain in each process.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};

use barewire_hca::{Device, UmemAccess};
use barewire_layouts::command::cq::{Cqc, CreateCqIn, CreateCqOut};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::q_counter::{AllocQCounterIn, AllocQCounterOut};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut};
use barewire_layouts::command::xrc::{AllocXrcdIn, AllocXrcdOut, DeallocXrcdIn};

use crate::adapter::{Adapter, command};
use crate::errno::Errno;
use crate::object::{Qp, Standing};

/// A file, identified by device and inode number.
type File = (u64, u64);

/// A handle's reference to an XRC domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) number: u32,
    file: Option<File>,
}

/// An XRC target of a domain.
#[derive(Debug)]
struct Receiver {
    domain: u32,
    standing: Arc<Mutex<Standing>>,
}

/// State that all contexts of the device share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Domains by file, with the number of references.
    domains: HashMap<File, (u32, usize)>,
    /// XRC targets by number.
    receivers: HashMap<u32, Receiver>,
}

impl Shared {
    /// Opens the domain of the file behind `descriptor`, or a new one without a file if it is -1
    /// (linux uverbs_cmd.c: `ib_uverbs_open_xrcd`).
    pub(crate) fn open(
        &mut self,
        adapter: &Adapter,
        descriptor: RawFd,
        flags: i32,
    ) -> Result<Domain, Errno> {
        let file = if descriptor == -1 { None } else { Some(identity(descriptor)?) };
        if let Some((number, users)) = file.and_then(|file| self.domains.get_mut(&file)) {
            if flags & libc::O_EXCL != 0 {
                return Err(Errno::INVALID);
            }
            *users += 1;
            return Ok(Domain { number: *number, file });
        }
        if file.is_some() && flags & libc::O_CREAT == 0 {
            return Err(Errno(libc::EAGAIN));
        }
        let answer = adapter.command::<AllocXrcdIn>(|_| {})?;
        let number = answer.view::<AllocXrcdIn>()?.get(AllocXrcdOut::XRCD);
        if let Some(file) = file {
            self.domains.insert(file, (number, 1));
        }
        Ok(Domain { number, file })
    }

    /// Closes a reference to a domain; the last one destroys it.
    pub(crate) fn close(&mut self, adapter: &Adapter, domain: &Domain) -> Result<(), Errno> {
        if let Some((_, users @ 2..)) = domain.file.and_then(|file| self.domains.get_mut(&file)) {
            *users -= 1;
            return Ok(());
        }
        adapter.command::<DeallocXrcdIn>(|input| {
            input.set(DeallocXrcdIn::XRCD, domain.number);
        })?;
        if let Some(file) = domain.file {
            self.domains.remove(&file);
        }
        Ok(())
    }

    /// Records XRC target `number` of a domain, so that others can open it.
    pub(crate) fn enter(&mut self, number: u32, domain: u32, standing: &Arc<Mutex<Standing>>) {
        self.receivers.insert(number, Receiver { domain, standing: Arc::clone(standing) });
    }

    /// Returns the XRC target with this number and domain.
    pub(crate) fn receiver(&self, number: u32, domain: u32) -> Result<Arc<Mutex<Standing>>, Errno> {
        let receiver = self.receivers.get(&number).filter(|receiver| receiver.domain == domain);
        receiver.map(|receiver| Arc::clone(&receiver.standing)).ok_or(Errno::INVALID)
    }

    /// Releases a handle of an XRC target; returns whether it was the last.
    pub(crate) fn leave(&mut self, qp: &Qp) -> bool {
        const HERE_AND_THERE: usize = 2;
        let last = Arc::strong_count(&qp.standing) <= HERE_AND_THERE;
        if last {
            self.receivers.remove(&qp.number);
        }
        last
    }
}

/// Returns the file that a descriptor refers to.
fn identity(descriptor: RawFd) -> Result<File, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer has room for the result, which is initialised if the call succeeds.
    let status = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return Err(Errno::BAD_DESCRIPTOR);
        }
        status.assume_init()
    };
    Ok((status.st_dev, status.st_ino))
}

/// Objects that the kernel driver creates on every device.
#[derive(Debug)]
pub(crate) struct Spare {
    /// A protection domain without memory.
    pub(crate) pd: u32,
    /// A completion queue that is never polled.
    pub(crate) cq: u32,
    /// The counter set of all queue pairs created by verbs.
    pub(crate) counter_set: u8,
}

impl Spare {
    pub(crate) fn new(device: &Device) -> Result<Self, Errno> {
        const ENTRY: usize = 64;
        const LOG_ENTRIES: u8 = 4;
        const RING: usize = ENTRY << LOG_ENTRIES;
        const DOORBELL: usize = 8;
        let pd = command::<AllocPdIn>(device, |_| {})?.view::<AllocPdIn>()?.get(AllocPdOut::PD);
        let counters = command::<AllocQCounterIn>(device, |_| {})?;
        let counter_set = counters.view::<AllocQCounterIn>()?.get(AllocQCounterOut::COUNTER_SET_ID);
        let uar =
            command::<AllocUarIn>(device, |_| {})?.view::<AllocUarIn>()?.get(AllocUarOut::UAR);
        let memory: &'static [AtomicU8] =
            Vec::leak((0..RING + DOORBELL + ENTRY).map(|_| AtomicU8::new(0)).collect());
        let skip = memory.as_ptr().align_offset(ENTRY);
        let memory = &memory[skip..skip + RING + DOORBELL];
        let start = NonNull::from(memory).cast::<u8>();
        // SAFETY: the memory is never freed and may be written through shared references.
        let umem = unsafe { device.register_umem(start, memory.len(), UmemAccess::LOCAL_WRITE) }?;
        let answer = command::<CreateCqIn>(device, |create| {
            create.set(CreateCqIn::CQ_UMEM_VALID, true).set(CreateCqIn::CQ_UMEM_ID, umem);
            create
                .nested(CreateCqIn::CQ_CONTEXT)
                .set(Cqc::OI, true)
                .set(Cqc::LOG_CQ_SIZE, LOG_ENTRIES)
                .set(Cqc::UAR_PAGE, uar)
                .set(Cqc::DBR_UMEM_VALID, true)
                .set(Cqc::DBR_UMEM_ID, umem)
                .set(Cqc::DBR_ADDR, RING as u64);
        })?;
        let cq = answer.view::<CreateCqIn>()?.get(CreateCqOut::CQN);
        Ok(Self { pd, cq, counter_set })
    }
}
