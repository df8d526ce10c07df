//! One software HCA of the process, with the event queue that the kernel would create for it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barewire_hca::{
    AbsentPages, Device, DoorbellWake, PagingError, UarPage, UmemAccess, check_pin,
};
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut, DeallocUarIn};
use barewire_layouts::command::{Request, answer, request};
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::clock::ClockPage;
use crate::config::{self, Link, MOST_DEVICES, Settings};
use crate::errno::Errno;
use crate::event::{Events, Queue};
use crate::explain;
use crate::pinned::Pinned;
use crate::shared::{Shared, Spare};
use crate::signals::Blocked;
use crate::user_memory;

/// The GUIDs of devices, by number; 0 for those that were never opened. Forked children inherit
/// them.
static GUIDS: [AtomicU64; MOST_DEVICES] = [const { AtomicU64::new(0) }; MOST_DEVICES];

/// A device. It stays open from its first use to the end of the process, so its address does not
/// change while the program opens and closes it.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) device: Device,
    number: usize,
    pub(crate) link: Link,
    /// Whether the program may use DEVX.
    pub(crate) devx: bool,
    /// Number of ports.
    pub(crate) ports: u8,
    /// The event queue of all verbs objects.
    pub(crate) eqn: u32,
    /// The page from which the program reads the device's clock.
    pub(crate) clock: ClockPage,
    /// Objects that the kernel driver creates for itself.
    pub(crate) spare: Spare,
    shared: Mutex<Shared>,
    events: Mutex<Events>,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gid {
    pub(crate) gid: [u8; 16],
    /// The MAC address that belongs to the GID.
    pub(crate) mac: [u8; 6],
}

/// The output of a command that succeeded.
#[derive(Debug)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// Returns the fields of the output.
    pub(crate) fn view<R: Request>(&self) -> Result<View<'_, R::Answer>, Errno> {
        Ok(answer::<R>(&self.bytes)?)
    }
}

impl Adapter {
    /// Explains a restriction of this machine that makes device `number` slower.
    pub(crate) fn explain_wake(&self, number: usize) {
        if let DoorbellWake::Polling(why) = self.device.doorbell_wake() {
            explain::tell_now(&format!(
                "mlx5_{number} polls for doorbells, which is slower ({why}): containers and \
                 sandboxes may forbid it"
            ));
        }
    }

    /// Opens device `number`.
    pub(crate) fn open(number: usize, settings: Settings) -> Result<Arc<Self>, Errno> {
        let Settings { link, devx, ports, .. } = settings;
        let fail = |what: &dyn std::fmt::Display| {
            eprintln!("barewire-hca: mlx5_{number} cannot be opened: {what}");
            Errno::IO
        };
        // Threads that start here must not handle the program's signals.
        let blocked = Blocked::all();
        let device = config::open(number, settings).map_err(|error| fail(&error))?;
        let queue = Queue::new(&device)
            .map_err(|error| fail(&format_args!("no event queue: {error:?}")))?;
        let clock = ClockPage::new(device.clock());
        let spare = Spare::new(&device)
            .map_err(|error| fail(&format_args!("no spare objects: {error:?}")))?;
        let events = Mutex::new(Events::new(device.requirements().kernel_strict));
        let (eqn, shared) = (queue.number(), Mutex::default());
        let adapter =
            Arc::new(Self { device, number, link, devx, ports, eqn, clock, spare, shared, events });
        queue.serve(Arc::clone(&adapter)).map_err(|error| fail(&error))?;
        drop(blocked);
        Ok(adapter)
    }

    /// Returns the table of event subscriptions.
    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State that all contexts of the device share.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a command whose fields `fill` sets.
    pub(crate) fn command<R: Request>(
        &self,
        fill: impl FnOnce(&mut ViewMut<'_, R>),
    ) -> Result<Answer, Errno> {
        command::<R>(&self.device, fill)
    }

    /// Executes a command of a program, given as bytes. The caller checks the status in the output.
    pub(crate) fn raw(&self, input: &[u8], room: usize) -> Vec<u8> {
        let mut output = vec![0; room];
        // SAFETY: as in `command`. A program that sends its own commands is responsible for the
        // objects that they name, as with the kernel's DEVX.
        unsafe { self.device.execute(input, &mut output) };
        output
    }

    /// Allocates a UAR page.
    pub(crate) fn take_uar(&self) -> Result<(u32, Arc<UarPage>), Errno> {
        let answer = self.command::<AllocUarIn>(|_| {})?;
        let index = answer.view::<AllocUarIn>()?.get(AllocUarOut::UAR);
        Ok((index, self.device.uar_page(index).ok_or(Errno::IO)?))
    }

    /// Frees a UAR page.
    pub(crate) fn give_uar(&self, index: u32) -> Result<(), Errno> {
        self.command::<DeallocUarIn>(|input| {
            input.set(DeallocUarIn::UAR, index);
        })
        .map(drop)
    }

    /// Returns the number of entries in a port's GID table.
    pub(crate) fn gids(&self) -> Result<u16, Errno> {
        let answer = self.command::<QueryHcaCapIn>(|input| {
            input.set(
                QueryHcaCapIn::OP_MOD,
                op_mod(CapabilityPage::General, CapabilityMode::Current),
            );
        })?;
        let page = answer.view::<QueryHcaCapIn>()?.nested(QueryHcaCapOut::GENERAL);
        Ok(8 << page.get(HcaCap::GID_TABLE_SIZE).min(8))
    }

    /// Returns entry `index` of the GID table of `port` with its MAC address, or `None` if it is
    /// empty.
    pub(crate) fn gid(&self, port: u8, index: u16) -> Result<Option<Gid>, Errno> {
        let answer = self.command::<QueryRoceAddressIn>(|input| {
            input
                .set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, index)
                .set(QueryRoceAddressIn::VHCA_PORT_NUM, port);
        })?;
        let entry = answer.view::<QueryRoceAddressIn>()?.nested(QueryRoceAddressOut::ROCE_ADDRESS);
        let gid = entry.array(RoceAddress::SOURCE_L3_ADDRESS);
        Ok((gid != [0; 16]).then(|| Gid { gid, mac: entry.array(RoceAddress::SOURCE_MAC) }))
    }

    /// Returns the GUID: the EUI-64 derived from the MAC address of the first device of this number
    /// that the process or its parent opened. libibverbs remembers GUIDs of the parent in a forked
    /// child, and librdmacm knows devices by them.
    pub(crate) fn guid(&self) -> Result<[u8; 8], Errno> {
        let known = GUIDS.get(self.number).ok_or(Errno::IO)?;
        let mut guid = known.load(Ordering::Acquire);
        if guid == 0 {
            let mac = self.gid(1, 0)?.ok_or(Errno::IO)?.mac;
            let own = [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]];
            guid = u64::from_be_bytes(own);
            let set = known.compare_exchange(0, guid, Ordering::AcqRel, Ordering::Acquire);
            guid = set.err().unwrap_or(guid);
        }
        Ok(guid.to_be_bytes())
    }

    /// Returns whether the device supports enhancements of connections (ECE).
    pub(crate) fn has_enhancements(&self) -> bool {
        !self.device.requirements().enhancements.is_none()
    }

    /// Returns the GID of a port.
    pub(crate) fn own_gid(&self, port: u8) -> Result<[u8; 16], Errno> {
        Ok(self.gid(port, 0)?.ok_or(Errno::IO)?.gid)
    }

    /// Returns the GID of the port with this LID, as `port` sees it. The LID is the last 16 bits of
    /// the address.
    pub(crate) fn gid_of(&self, port: u8, lid: u16) -> Result<[u8; 16], Errno> {
        let mut gid = self.own_gid(port)?;
        gid[14..].copy_from_slice(&lid.to_be_bytes());
        Ok(gid)
    }
}

/// Executes a command whose fields `fill` sets.
pub(crate) fn command<R: Request>(
    device: &Device,
    fill: impl FnOnce(&mut ViewMut<'_, R>),
) -> Result<Answer, Errno> {
    let (mut input, mut bytes) = (vec![0; R::BYTES], vec![0; R::Answer::BYTES]);
    fill(&mut request::<R>(&mut input).ok_or(Errno::IO)?);
    // SAFETY: only this crate uses the device, and it registers only memory of programs, which by
    // registering it allow a device to access it.
    unsafe { device.execute_for_kernel(&input, &mut bytes) };
    answer::<R>(&bytes)?;
    Ok(Answer { bytes })
}

/// Memory of the program that the device may access until this value is dropped.
#[derive(Debug)]
pub(crate) struct UserMemory {
    adapter: Arc<Adapter>,
    id: u32,
    /// Address of the first byte.
    start: u64,
    given_back: AtomicBool,
    pinned: Pinned,
}

impl UserMemory {
    /// Registers memory as the kernel does: counts its pages against the limit, and faults in every
    /// page, for writing if `writable`. Returns EFAULT if the program itself may not access a page
    /// so, or if the pages are those of a file that is written back ([`check_pin`]).
    ///
    /// A program promises by registering memory that it stays mapped. The kernel pins the pages and
    /// so survives a broken promise; here the device gets a fault instead.
    pub(crate) fn register(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let pinned = Pinned::new(start, length)?;
        let mut memory = Self::register_counted(adapter, start, length, writable)?;
        memory.pinned = pinned;
        Ok(memory)
    }

    /// Registers memory whose pages count already: [`Self::take_count`].
    pub(crate) fn register_counted(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        if writable {
            check_pin(start as usize, length as usize)
                .map_err(|error| Errno::FAULT.because(format_args!("addr, length: {error}")))?;
        }
        Self::register_uncounted(adapter, start, length, writable)
    }

    /// Takes over the count of the same pages, which `other` is registered for.
    pub(crate) fn take_count(&mut self, other: &mut Self) {
        self.pinned = std::mem::replace(&mut other.pinned, Pinned::none());
    }

    /// Registers memory of libmlx5 or of devices, which does not count against the limit: of
    /// doorbell records, for example, since the kernel counts a page with many of them once.
    pub(crate) fn register_uncounted(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let (start, length) = (start as usize, length as usize);
        let pointer = NonNull::new(start as *mut u8).ok_or(Errno::FAULT)?;
        user_memory::populate(start, length, writable).map_err(|error| {
            let access = if writable { "write to" } else { "read" };
            error.because(format_args!(
                "addr, length: the program may not {access} all of the {length} bytes at {start:#x}"
            ))
        })?;
        // SAFETY: the range is mapped with these rights. A program that registers memory promises
        // that it stays mapped and that its bytes may change at any time (ibv_reg_mr(3)). The
        // memory of queues belongs to libmlx5, which makes the same promise.
        let id = unsafe { adapter.device.register_umem(pointer, length, rights(writable)) }?;
        Ok(Self {
            adapter: Arc::clone(adapter),
            id,
            start: start as u64,
            given_back: AtomicBool::new(false),
            pinned: Pinned::none(),
        })
    }

    /// Registers memory that the device faults in on access. It need not be mapped.
    pub(crate) fn register_on_demand(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let pointer = NonNull::new(start as usize as *mut u8).ok_or(Errno::FAULT)?;
        let device = &adapter.device;
        // SAFETY: a program that registers memory on demand promises that its bytes may change at
        // any time, and that it stays mapped during an atomic operation.
        let id =
            unsafe { device.register_umem_on_demand(pointer, length as usize, rights(writable)) }?;
        Ok(Self {
            adapter: Arc::clone(adapter),
            id,
            start,
            given_back: AtomicBool::new(false),
            pinned: Pinned::none(),
        })
    }

    /// Brings in part of memory that is registered on demand; returns EFAULT if that is not
    /// possible.
    pub(crate) fn prefetch(&self, start: u64, length: u64, write: bool) -> Result<(), Errno> {
        let pages =
            AbsentPages { umem: self.id, offset: start.wrapping_sub(self.start), length, write };
        self.adapter.device.page_in(pages).map_err(|error| match error {
            PagingError::ReadOnly { .. } => Errno(libc::EPERM),
            _ => Errno::FAULT,
        })
    }

    /// Returns the UMEM number for commands.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Deregisters the memory. Unlike a drop, this reports whether an object still uses it.
    pub(crate) fn give_back(&self) -> Result<(), Errno> {
        if !self.given_back.load(Ordering::Acquire) {
            // SAFETY: registered by `register` or `register_on_demand`, and not yet deregistered.
            // If two threads arrive here together, the second finds no such number, since numbers
            // are reused late.
            unsafe { self.adapter.device.deregister_umem(self.id) }?;
            self.given_back.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        // It can be in use only if the command that destroys its user failed; then the device has
        // failed as a whole.
        let _ = self.give_back();
    }
}

fn rights(writable: bool) -> UmemAccess {
    if writable { UmemAccess::LOCAL_WRITE } else { UmemAccess::empty() }
}
