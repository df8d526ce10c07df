//! Memory regions: REG_MR, REREG_MR, `UVERBS_METHOD_QUERY_MR`.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};

use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc, key,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{
    AllocMw, AllocMwDriver, AllocMwResponse, RegMr, RegMrResponse, ReregMr, Segment, access, driver,
};
use crate::adapter::{Adapter, UserMemory};
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Mr, Object, Pd};

use super::legacy::{CORE_IN, CORE_OUT};

const KNOWN: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::ZERO_BASED
    | access::ON_DEMAND
    | access::HUGETLB
    | access::OPTIONAL;
pub(super) const REMOTE_CHANGES: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// The device's pages.
const LOG_PAGE: u8 = 12;

/// An on-demand region of this length covers the whole address space.
const EVERYTHING: u64 = u64::MAX;
/// Bounds of a process's address space, without its first page.
const ADDRESS_SPACE: (u64, u64) = (1 << LOG_PAGE, (1 << ADDRESS_BITS) - (1 << LOG_PAGE));
/// Bits of the addresses that the kernel hands out (Linux Documentation/arch/arm64/memory.rst and
/// arch/x86/x86_64/mm.rst).
const ADDRESS_BITS: u8 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };

/// The 8 key bits that the driver chooses. They differ for successive keys, so an old key of a
/// reused index is invalid. The first is random, so that a key cannot be derived from its index.
static VARIANT: LazyLock<AtomicU8> =
    LazyLock::new(|| AtomicU8::new(RandomState::new().hash_one(0_u8) as u8));

/// A function of [`UserMemory`].
type Register = fn(&Arc<Adapter>, u64, u64, bool) -> Result<UserMemory, Errno>;

/// Parameters of a region.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) pd: u32,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) address: u64,
    pub(super) access: u32,
}

impl Wanted {
    /// Returns the errors of the kernel (`ib_check_mr_access`, `ib_umem_get`,
    /// `create_user_odp_mr`).
    fn check(&self) -> Result<(), Errno> {
        let on_demand = self.access & access::ON_DEMAND != 0;
        if self.access & access::HUGETLB != 0 && !on_demand && self.access & !KNOWN == 0 {
            // This hint is valid for on-demand regions only.
            return Err(Errno::INVALID.because("access: IBV_ACCESS_HUGETLB without ON_DEMAND"));
        }
        if self.access & !KNOWN != 0 {
            let unknown = self.access & !KNOWN;
            let reason = format_args!("access: the flags {unknown:#x} are not supported");
            return Err(Errno::UNSUPPORTED.because(reason));
        }
        if self.access & REMOTE_CHANGES != 0 && self.access & access::LOCAL_WRITE == 0 {
            let reason = "access: REMOTE_WRITE and REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE";
            return Err(Errno::INVALID.because(reason));
        }
        if self.is_everything() {
            return if self.address == 0 { Ok(()) } else { Err(Errno::INVALID) };
        }
        let page = barewire_hca::host_page() as u64;
        let address_in_page =
            if self.access & access::ZERO_BASED != 0 { self.start } else { self.address };
        if self.length == 0 {
            return Err(Errno::INVALID.because("length: it is 0"));
        }
        if self.start.checked_add(self.length).is_none()
            || self.address.checked_add(self.length).is_none()
            || self.start % page != address_in_page % page
        {
            return Err(Errno::INVALID);
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        self.access & (access::LOCAL_WRITE | REMOTE_CHANGES) != 0
    }

    /// The whole address space, on demand.
    fn is_everything(&self) -> bool {
        self.access & access::ON_DEMAND != 0 && (self.start, self.length) == (0, EVERYTHING)
    }

    fn make(self, adapter: &Arc<Adapter>, pd_number: u32, register: Register) -> Result<Mr, Errno> {
        self.check()?;
        self.make_unchecked(adapter, pd_number, register)
    }

    /// Creates the region without the checks of memory of the program.
    pub(super) fn make_unchecked(
        self,
        adapter: &Arc<Adapter>,
        pd_number: u32,
        register: Register,
    ) -> Result<Mr, Errno> {
        let writable = self.is_writable();
        let ((start, length), address) = if self.is_everything() {
            (ADDRESS_SPACE, ADDRESS_SPACE.0)
        } else {
            ((self.start, self.length), self.address)
        };
        let memory = if self.access & access::ON_DEMAND != 0 {
            UserMemory::register_on_demand(adapter, start, length, writable)?
        } else {
            // A region of device memory may be empty.
            register(adapter, start, length.max(1), writable)?
        };
        let variant = VARIANT.fetch_add(1, Ordering::Relaxed);
        let has = |right| self.access & right != 0;
        let relaxed = has(access::RELAXED_ORDERING);
        let answer = adapter.command::<CreateMkeyIn>(|create| {
            create
                .set(CreateMkeyIn::MKEY_UMEM_VALID, true)
                .set(CreateMkeyIn::MKEY_UMEM_ID, memory.id());
            create
                .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
                .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
                .set(Mkc::LR, true)
                .set(Mkc::LW, has(access::LOCAL_WRITE))
                .set(Mkc::RR, has(access::REMOTE_READ))
                .set(Mkc::RW, has(access::REMOTE_WRITE))
                .set(Mkc::A, has(access::REMOTE_ATOMIC))
                .set(Mkc::RELAXED_ORDERING_READ, relaxed)
                .set(Mkc::RELAXED_ORDERING_WRITE, relaxed)
                .set(Mkc::QPN, ANY_QPN)
                .set(Mkc::MKEY_7_0, variant)
                .set(Mkc::PD, pd_number)
                .set(Mkc::START_ADDR, address)
                .set(Mkc::LEN, length)
                .set(Mkc::LOG_PAGE_SIZE, LOG_PAGE);
        })?;
        let index = answer.view::<CreateMkeyIn>()?.get(CreateMkeyOut::MKEY_INDEX);
        Ok(Mr {
            pd: self.pd,
            index,
            key: key(index, variant),
            start: self.start,
            length: self.length,
            address: self.address,
            access: self.access,
            memory,
            device_memory: None,
        })
    }
}

/// REG_MR.
pub(super) fn register(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: RegMr = call.structure(CORE_IN)?;
    let mut state = context.state();
    let pd = state.objects.get::<Pd>(request.pd_handle)?.number;
    let mr = Wanted {
        pd: request.pd_handle,
        start: request.start,
        length: request.length,
        address: request.hca_va,
        access: request.access_flags,
    }
    .make(&context.adapter, pd, UserMemory::register)?;
    let key = mr.key;
    state.objects.insert_given(&context.adapter, Object::Mr(mr), |mr_handle| {
        call.put(CORE_OUT, RegMrResponse { mr_handle, lkey: key, rkey: key }.as_bytes())
    })
}

/// ALLOC_MW: a free mkey, which work requests bind (linux mr.c: `mlx5_ib_alloc_mw`).
pub(super) fn window(context: &Context, call: &Attributes) -> Result<(), Errno> {
    /// `IB_MW_TYPE_1`, `IB_MW_TYPE_2`.
    const TYPE_1: u8 = 1;
    const TYPE_2: u8 = 2;
    /// Number of translations, a multiple of four.
    const UNIT: u32 = 4;
    let request: AllocMw = call.structure(CORE_IN)?;
    let own = if call.has(driver::IN) {
        call.structure(driver::IN)?
    } else {
        AllocMwDriver::new_zeroed()
    };
    if !matches!(request.mw_type, TYPE_1 | TYPE_2) {
        return Err(Errno::INVALID);
    }
    if own.comp_mask != 0 || own.reserved1 != 0 || own.reserved2 != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let mut state = context.state();
    let pd = state.objects.get::<Pd>(request.pd_handle)?.number;
    let variant = VARIANT.fetch_add(1, Ordering::Relaxed);
    let answer = context.adapter.command::<CreateMkeyIn>(|create| {
        create
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::FREE, true)
            .set(Mkc::UMR_EN, true)
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Klm as u8)
            .set(Mkc::LR, true)
            .set(Mkc::EN_RINVAL, request.mw_type == TYPE_2)
            .set(Mkc::QPN, ANY_QPN)
            .set(Mkc::MKEY_7_0, variant)
            .set(Mkc::PD, pd)
            .set(
                Mkc::TRANSLATIONS_OCTWORD_SIZE,
                u32::from(own.num_klms).max(1).next_multiple_of(UNIT),
            );
    })?;
    let index = answer.view::<CreateMkeyIn>()?.get(CreateMkeyOut::MKEY_INDEX);
    state.objects.insert_given(&context.adapter, Object::Mw { index }, |mw_handle| {
        call.put(CORE_OUT, AllocMwResponse { mw_handle, rkey: key(index, variant) }.as_bytes())
    })
}

/// REREG_MR: creates an mkey with the new parameters, exchanges it with the old one, and destroys
/// the latter. As in the kernel, the pages of a new translation count beside the old ones until
/// then, and the same pages count once (linux mr.c: `mlx5_ib_rereg_user_mr`).
pub(super) fn change(context: &Context, call: &Attributes) -> Result<(), Errno> {
    /// `enum ib_mr_rereg_flags`.
    const TRANSLATION: u32 = 1;
    const PD: u32 = 2;
    const ACCESS: u32 = 4;
    let request: ReregMr = call.structure(CORE_IN)?;
    if request.flags == 0 || request.flags & !(TRANSLATION | PD | ACCESS) != 0 {
        return Err(Errno::INVALID);
    }
    let adapter = &context.adapter;
    let mut state = context.state();
    let mr: &Mr = state.objects.get(request.mr_handle)?;
    if mr.device_memory.is_some() {
        return Err(Errno::INVALID);
    }
    let mut wanted = Wanted {
        pd: mr.pd,
        start: mr.start,
        length: mr.length,
        address: mr.address,
        access: mr.access,
    };
    if request.flags & TRANSLATION != 0 {
        (wanted.start, wanted.length, wanted.address) =
            (request.start, request.length, request.hca_va);
    }
    if request.flags & PD != 0 {
        wanted.pd = request.pd_handle;
    }
    if request.flags & ACCESS != 0 {
        wanted.access = request.access_flags;
    }
    let pd = state.objects.get::<Pd>(wanted.pd)?.number;
    let is_pinned = (mr.access | wanted.access) & access::ON_DEMAND == 0;
    let keeps_pages = request.flags & TRANSLATION == 0 && is_pinned;
    let register = if keeps_pages { UserMemory::register_counted } else { UserMemory::register };
    let mut new = wanted.make(adapter, pd, register)?;
    let mr = state.objects.get_mut::<Mr>(request.mr_handle)?;
    let (index, key) = (mr.index, mr.key);
    // SAFETY: both are keys of this context, one made just now.
    if !unsafe { adapter.device.exchange_mkeys(index, new.index) } {
        return Err(Errno::IO);
    }
    if keeps_pages {
        new.memory.take_count(&mut mr.memory);
    }
    let passing = new.index;
    let old = std::mem::replace(mr, Mr { index, key, ..new });
    adapter.command::<DestroyMkeyIn>(|input| {
        input.set(DestroyMkeyIn::MKEY_INDEX, passing);
    })?;
    drop(old);
    call.put(CORE_OUT, [key, key].as_bytes())
}

/// `UVERBS_METHOD_QUERY_MR`.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0, 1, 2, 3, 4])?;
    let state = context.state();
    let mr: &Mr = state.objects.get(call.handle(0)?)?;
    call.put_word(1, mr.key)?;
    call.put_word(2, mr.key)?;
    call.put(3, &mr.length.to_ne_bytes())?;
    call.put(4, &mr.address.to_ne_bytes())
}

/// `UVERBS_METHOD_ADVISE_MR`: faults in parts of on-demand regions.
pub(super) fn advise(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const PD: u16 = 0;
    const ADVICE: u16 = 1;
    const FLAGS: u16 = 2;
    const LIST: u16 = 3;
    /// `IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH...`: for reading, for writing, and without faulting.
    const WRITE: u64 = 1;
    const NO_FAULT: u64 = 2;
    /// `IB_UVERBS_ADVISE_MR_FLAG_FLUSH`: the caller waits and gets the errors.
    const FLUSH: u64 = 1;
    call.only(&[PD, ADVICE, FLAGS, LIST])?;
    let (advice, flags) = (call.number(ADVICE)?, call.optional_number(FLAGS)?.unwrap_or(0));
    if advice > NO_FAULT {
        return Err(Errno::UNSUPPORTED.because(format_args!("advice: none has the value {advice}")));
    }
    let list = call.bytes(LIST)?;
    if flags & !FLUSH != 0 || list.is_empty() || !list.len().is_multiple_of(size_of::<Segment>()) {
        return Err(Errno::INVALID);
    }
    let state = context.state();
    let pd_handle = call.handle(PD)?;
    state.objects.get::<Pd>(pd_handle)?;
    for segment in list.chunks_exact(size_of::<Segment>()) {
        let segment = Segment::read_from_bytes(segment).map_err(|_| Errno::INVALID)?;
        let unknown = || Errno::NO_ENTRY.because("sg_list: no region has the lkey");
        let mr = state.objects.region(segment.lkey).ok_or_else(unknown)?;
        if mr.pd != pd_handle || mr.access & access::ON_DEMAND == 0 {
            let reason = "sg_list: a region of another pd, or without IBV_ACCESS_ON_DEMAND";
            return Err(Errno::INVALID.because(reason));
        }
        if advice == WRITE && mr.access & access::LOCAL_WRITE == 0 {
            let reason = "sg_list: a region without IBV_ACCESS_LOCAL_WRITE";
            return Err(Errno(libc::EPERM).because(reason));
        }
        let start = segment.addr.wrapping_sub(mr.address).wrapping_add(mr.start);
        let brought = if advice == NO_FAULT {
            Ok(())
        } else {
            mr.memory.prefetch(start, segment.length.into(), advice == WRITE)
        };
        if flags & FLUSH != 0 {
            brought?;
        }
    }
    Ok(())
}
