//! One software HCA of the process with the event queue that the kernel would have for it, and what every method needs of it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barewire_hca::{Device, UarPage, UmemAccess};
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::command::uar::{AllocUarIn, AllocUarOut, DeallocUarIn};
use barewire_layouts::command::{Request, answer, request};
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::clock::ClockPage;
use crate::config::{self, Link, Settings};
use crate::errno::Errno;
use crate::event::{Events, Queue};
use crate::shared::{Shared, Spare};
use crate::signals::Blocked;

/// A device, open from its first use to the end of the process: its address does not change while programs open and close it.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) device: Device,
    pub(crate) link: Link,
    /// Programs may have DEVX.
    pub(crate) devx: bool,
    /// How many ports there are.
    pub(crate) ports: u8,
    /// The event queue for everything that verbs objects tell.
    pub(crate) eqn: u32,
    /// What programs read the device's clock by.
    pub(crate) clock: ClockPage,
    /// What a kernel has of its own.
    pub(crate) spare: Spare,
    shared: Mutex<Shared>,
    events: Mutex<Events>,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gid {
    pub(crate) gid: [u8; 16],
    /// The Ethernet address that goes with it.
    pub(crate) mac: [u8; 6],
}

/// The answer of a command that succeeded.
#[derive(Debug)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// Its fields.
    pub(crate) fn view<R: Request>(&self) -> Result<View<'_, R::Answer>, Errno> {
        Ok(answer::<R>(&self.bytes)?)
    }
}

impl Adapter {
    /// Opens device `number`.
    pub(crate) fn open(number: usize, settings: Settings) -> Result<Arc<Self>, Errno> {
        let Settings { link, devx, ports, .. } = settings;
        let fail = |what: &dyn std::fmt::Display| {
            eprintln!("barewire-hca: mlx5_{number} cannot be opened: {what}");
            Errno::IO
        };
        // The program's signals are not for the threads that start here.
        let blocked = Blocked::all();
        let device = config::open(number, settings).map_err(|error| fail(&error))?;
        let queue = Queue::new(&device).map_err(|error| fail(&format_args!("no event queue: {error:?}")))?;
        let clock = ClockPage::new(device.clock());
        let spare =
            Spare::new(&device).map_err(|error| fail(&format_args!("no spare objects: {error:?}")))?;
        let (eqn, events, shared) = (queue.number(), Mutex::default(), Mutex::default());
        let adapter = Arc::new(Self { device, link, devx, ports, eqn, clock, spare, shared, events });
        queue.serve(Arc::clone(&adapter)).map_err(|error| fail(&error))?;
        drop(blocked);
        Ok(adapter)
    }

    /// Who is told of what.
    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What contexts share.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a command that `fill` completes.
    pub(crate) fn command<R: Request>(
        &self,
        fill: impl FnOnce(&mut ViewMut<'_, R>),
    ) -> Result<Answer, Errno> {
        command::<R>(&self.device, fill)
    }

    /// Carries out a command as it is, of whatever kind. The answer's status is left to the caller.
    pub(crate) fn raw(&self, input: &[u8], room: usize) -> Vec<u8> {
        let mut output = vec![0; room];
        self.device.execute(input, &mut output);
        output
    }

    /// Takes a UAR page.
    pub(crate) fn take_uar(&self) -> Result<(u32, Arc<UarPage>), Errno> {
        let answer = self.command::<AllocUarIn>(|_| {})?;
        let index = answer.view::<AllocUarIn>()?.get(AllocUarOut::UAR);
        Ok((index, self.device.uar_page(index).ok_or(Errno::IO)?))
    }

    /// Gives a UAR page back.
    pub(crate) fn give_uar(&self, index: u32) -> Result<(), Errno> {
        self.command::<DeallocUarIn>(|input| {
            input.set(DeallocUarIn::UAR, index);
        })
        .map(drop)
    }

    /// Entries of the GID table of a port.
    pub(crate) fn gids(&self) -> Result<u16, Errno> {
        let answer = self.command::<QueryHcaCapIn>(|input| {
            input.set(QueryHcaCapIn::OP_MOD, op_mod(CapabilityPage::General, CapabilityMode::Current));
        })?;
        let page = answer.view::<QueryHcaCapIn>()?.nested(QueryHcaCapOut::GENERAL);
        Ok(8 << page.get(HcaCap::GID_TABLE_SIZE).min(8))
    }

    /// Entry `index` of the GID table of port `port`, and its Ethernet address; `None` if it is empty.
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

    /// The EUI-64 made of it.
    pub(crate) fn guid(&self) -> Result<[u8; 8], Errno> {
        let mac = self.gid(1, 0)?.ok_or(Errno::IO)?.mac;
        Ok([mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]])
    }

    /// The GID of the port with this LID, as port `port` sees it: the last 16 bits of the address, which the device takes for it.
    pub(crate) fn gid_of(&self, port: u8, lid: u16) -> Result<[u8; 16], Errno> {
        let mut gid = self.gid(port, 0)?.ok_or(Errno::IO)?.gid;
        gid[14..].copy_from_slice(&lid.to_be_bytes());
        Ok(gid)
    }
}

/// Carries out a command that `fill` completes.
pub(crate) fn command<R: Request>(
    device: &Device,
    fill: impl FnOnce(&mut ViewMut<'_, R>),
) -> Result<Answer, Errno> {
    let (mut input, mut bytes) = (vec![0; R::BYTES], vec![0; R::Answer::BYTES]);
    fill(&mut request::<R>(&mut input).ok_or(Errno::IO)?);
    device.execute(&input, &mut bytes);
    answer::<R>(&bytes)?;
    Ok(Answer { bytes })
}

/// Memory of the program that the device may access, until it is dropped.
#[derive(Debug)]
pub(crate) struct UserMemory {
    adapter: Arc<Adapter>,
    id: u32,
    given_back: AtomicBool,
}

impl UserMemory {
    /// Registers memory as a kernel does: every page is brought in, for writing if `writable`.
    ///
    /// That the memory stays until it is given back is what a program promises by registering it. A kernel would keep the pages of
    /// one that breaks its promise; here the device then finds nothing there.
    pub(crate) fn register(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let (start, length) = (start as usize, length as usize);
        let pointer = NonNull::new(start as *mut u8).ok_or(Errno::FAULT)?;
        populate(start, length, writable)?;
        // SAFETY: the range is mapped with these rights; that it stays so, and that its bytes may change at any time, is what a program
        // that registers memory promises (ibv_reg_mr). The queues' memory is libmlx5's, which promises the same.
        let id = unsafe { adapter.device.register_umem(pointer, length, rights(writable)) }?;
        Ok(Self { adapter: Arc::clone(adapter), id, given_back: AtomicBool::new(false) })
    }

    /// Registers memory that the device brings in on demand, and that need not be there.
    pub(crate) fn register_on_demand(
        adapter: &Arc<Adapter>,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let pointer = NonNull::new(start as usize as *mut u8).ok_or(Errno::FAULT)?;
        let device = &adapter.device;
        // SAFETY: that bytes may change at any time, and that memory stays for as long as an atomic operation takes, is what a program
        // promises by registering it so.
        let id = unsafe { device.register_umem_on_demand(pointer, length as usize, rights(writable)) }?;
        Ok(Self { adapter: Arc::clone(adapter), id, given_back: AtomicBool::new(false) })
    }

    /// Its number in commands.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Gives it back before the drop does, to know whether something still uses it.
    pub(crate) fn give_back(&self) -> Result<(), Errno> {
        if !self.given_back.load(Ordering::Acquire) {
            self.adapter.device.deregister_umem(self.id)?;
            self.given_back.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        // It is in use still only if the command that destroys its user failed, and then the device is over.
        let _ = self.give_back();
    }
}

fn rights(writable: bool) -> UmemAccess {
    if writable { UmemAccess::LOCAL_WRITE } else { UmemAccess::empty() }
}

/// Brings the pages of a range in, as pinning them would; EFAULT if that is not possible.
pub(crate) fn populate(start: usize, length: usize, writable: bool) -> Result<(), Errno> {
    const PAGE: usize = 4096;
    let end = start.checked_add(length).ok_or(Errno::INVALID)?;
    let first = start & !(PAGE - 1);
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let length = end.checked_next_multiple_of(PAGE).ok_or(Errno::INVALID)? - first;
    // SAFETY: this advice changes no content.
    if unsafe { libc::madvise(first as *mut libc::c_void, length, advice) } == 0 {
        return Ok(());
    }
    match Errno::last() {
        // A kernel that does not know this advice.
        Errno::INVALID => Ok(()),
        Errno(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON) => Err(Errno::FAULT),
        other => Err(other),
    }
}
