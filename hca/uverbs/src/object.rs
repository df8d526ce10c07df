//! Objects of a context and their handles.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barewire_hca::UarPage;
use barewire_layouts::command::cq::DestroyCqIn;
use barewire_layouts::command::dct::DestroyDctIn;
use barewire_layouts::command::mkey::DestroyMkeyIn;
use barewire_layouts::command::pd::DeallocPdIn;
use barewire_layouts::command::qp::DestroyQpIn;
use barewire_layouts::command::srq::DestroySrqIn;
use barewire_layouts::command::xrc::DestroyXrcSrqIn;
use barewire_layouts::command::xrq::DestroyXrqIn;
use barewire_layouts::command::{CommandOpcode, OutHeader};
use barewire_layouts::prm::View;
use zerocopy::FromZeros;

use crate::abi::{ModifyQp, QpCap};
use crate::adapter::{Adapter, UserMemory};
use crate::errno::Errno;
use crate::event::Kind;
use crate::qp_type::{QpType, state};
use crate::shared::Domain;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) number: u32,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: u32,
    pub(crate) index: u32,
    pub(crate) key: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) address: u64,
    pub(crate) access: u32,
    pub(crate) memory: UserMemory,
    /// The handle of the device memory of the region, if it is such memory. Declared after `memory`,
    /// whose registration ends first.
    pub(crate) device_memory: Option<(u32, Arc<DeviceMemory>)>,
}

/// Memory on the device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) start: NonNull<u8>,
    /// Bytes of whole pages.
    pub(crate) bytes: usize,
    /// Bytes that the program asked for, and that it got.
    pub(crate) wanted: u64,
    pub(crate) length: u64,
    /// The index by which the program maps it.
    pub(crate) page: u16,
}

// SAFETY: an address range, which every user of the memory accesses as memory that a device may
// write.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) number: u32,
    pub(crate) entry_bytes: u32,
    pub(crate) ring: UserMemory,
    #[expect(dead_code, reason = "held until the object is gone")]
    pub(crate) doorbell: UserMemory,
}

/// The kind of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    Basic,
    /// Of the XRC domain with this handle.
    Xrc(u32),
    /// With tag matching.
    Tags,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) number: u32,
    pub(crate) kind: SrqKind,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    #[expect(dead_code, reason = "held until the object is gone")]
    pub(crate) memory: [UserMemory; 2],
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    /// The number in the device. A DC target has none, 0, until it is ready to receive.
    pub(crate) number: u32,
    pub(crate) kind: QpType,
    /// The handle of its XRC domain, if it is an XRC target.
    pub(crate) xrcd: Option<u32>,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    /// The multicast groups to which it is attached, with their LIDs.
    pub(crate) groups: Vec<([u8; 16], u16)>,
    /// State and attributes, shared by all handles of an XRC target.
    pub(crate) standing: Arc<Mutex<Standing>>,
    /// The parts of a DC target that is not ready to receive yet.
    pub(crate) target: Option<Target>,
    #[expect(dead_code, reason = "held until the object is gone")]
    pub(crate) memory: Vec<UserMemory>,
}

/// State and attributes of a queue pair.
#[derive(Debug)]
pub(crate) struct Standing {
    /// `ib_qp_state` that was set last. The device may have moved the queue pair to error since.
    pub(crate) state: u8,
    /// Attributes that were set so far.
    pub(crate) attributes: ModifyQp,
}

impl Standing {
    /// Returns the initial state.
    pub(crate) fn reset() -> Self {
        Self { state: state::RESET, attributes: ModifyQp::new_zeroed() }
    }
}

/// Numbers of the objects that a DC target refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) srq: u32,
    pub(crate) access_key: u64,
    pub(crate) user_index: u32,
    /// `dctc.cs_res`.
    pub(crate) scatter: u8,
    /// `dctc.ece`, unless MODIFY_QP sets it.
    pub(crate) enhancements: u32,
    /// User handle, for events.
    pub(crate) user_handle: u64,
}

impl Target {
    /// Returns the parts of a DC target that the device does not have yet.
    fn of(object: &Object) -> Option<&Self> {
        if let Object::Qp(qp) = object { qp.target.as_ref() } else { None }
    }
}

impl Qp {
    /// Returns state and attributes.
    pub(crate) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy(&self, adapter: &Adapter) -> Result<u32, Errno> {
        match self.kind {
            // Other handles still refer to it.
            QpType::XrcReceive if !adapter.shared().leave(self) => return Ok(0),
            QpType::Dct if self.number == 0 => return Ok(0),
            QpType::Dct => {
                adapter.command::<DestroyDctIn>(|input| {
                    input.set(DestroyDctIn::DCTN, self.number);
                })?;
            }
            _ => {
                adapter.command::<DestroyQpIn>(|input| {
                    input.set(DestroyQpIn::QPN, self.number);
                })?;
            }
        }
        Ok(adapter.events().end_events(Kind::Qp, self.number))
    }
}

/// A UAR page.
#[derive(Debug)]
pub(crate) struct Uar {
    pub(crate) index: u32,
    pub(crate) page: Arc<UarPage>,
}

/// An object created by DEVX.
#[derive(Debug)]
pub(crate) struct DevxObject {
    /// The command that created it; a number is only unique among the objects of one command.
    pub(crate) made_by: CommandOpcode,
    pub(crate) number: u32,
    /// The command that destroys it.
    pub(crate) destroy: [u8; 16],
}

/// An object with a handle.
#[derive(Debug)]
pub(crate) enum Object {
    Pd(Pd),
    Mr(Mr),
    Cq(Cq),
    Srq(Srq),
    Qp(Box<Qp>),
    /// An XRC domain.
    Xrcd(Domain),
    /// A memory window, by the index of its mkey.
    Mw {
        index: u32,
    },
    /// An address handle; libmlx5 keeps its contents.
    Ah {
        pd: u32,
    },
    Uar(Uar),
    Dm(Arc<DeviceMemory>),
    Umem(UserMemory),
    Devx(DevxObject),
}

/// A kind of object that can be looked up by handle.
pub(crate) trait Handled: Sized {
    fn of(object: &Object) -> Option<&Self>;
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
}

macro_rules! handled {
    ($($type:ty => $variant:ident;)+) => {$(
        impl Handled for $type {
            fn of(object: &Object) -> Option<&Self> {
                if let Object::$variant(object) = object { Some(object) } else { None }
            }

            fn of_mut(object: &mut Object) -> Option<&mut Self> {
                if let Object::$variant(object) = object { Some(object) } else { None }
            }
        }
    )+};
}

handled! {
    Pd => Pd;
    Mr => Mr;
    Cq => Cq;
    Srq => Srq;
    Box<Qp> => Qp;
    Domain => Xrcd;
    Uar => Uar;
    Arc<DeviceMemory> => Dm;
    UserMemory => Umem;
    DevxObject => Devx;
}

impl Object {
    /// Destroys the object in the device. Returns the number of events reported to the program:
    /// `[completion, asynchronous]`.
    fn destroy(&self, adapter: &Adapter) -> Result<[u32; 2], Errno> {
        let mut events = [0; 2];
        match self {
            Self::Pd(pd) => {
                let freed = adapter.command::<DeallocPdIn>(|input| {
                    input.set(DeallocPdIn::PD, pd.number);
                });
                freed.map_err(in_use)?;
            }
            Self::Mr(mr) => {
                adapter.command::<DestroyMkeyIn>(|input| {
                    input.set(DestroyMkeyIn::MKEY_INDEX, mr.index);
                })?;
            }
            Self::Cq(cq) => {
                let destroyed = adapter.command::<DestroyCqIn>(|input| {
                    input.set(DestroyCqIn::CQN, cq.number);
                });
                destroyed.map_err(in_use)?;
                let mut listeners = adapter.events();
                events = [
                    listeners.end_completions(cq.number),
                    listeners.end_events(Kind::Cq, cq.number),
                ];
            }
            Self::Srq(srq) => {
                match srq.kind {
                    SrqKind::Basic => adapter.command::<DestroySrqIn>(|input| {
                        input.set(DestroySrqIn::SRQN, srq.number);
                    }),
                    SrqKind::Xrc(_) => adapter.command::<DestroyXrcSrqIn>(|input| {
                        input.set(DestroyXrcSrqIn::XRC_SRQN, srq.number);
                    }),
                    SrqKind::Tags => adapter.command::<DestroyXrqIn>(|input| {
                        input.set(DestroyXrqIn::XRQN, srq.number);
                    }),
                }?;
                events[1] = adapter.events().end_events(Kind::Srq, srq.number);
            }
            Self::Qp(qp) => events[1] = qp.destroy(adapter)?,
            Self::Xrcd(domain) => adapter.shared().close(adapter, domain)?,
            Self::Mw { index } => {
                adapter.command::<DestroyMkeyIn>(|input| {
                    input.set(DestroyMkeyIn::MKEY_INDEX, *index);
                })?;
            }
            Self::Uar(uar) => adapter.give_uar(uar.index)?,
            Self::Umem(memory) => memory.give_back()?,
            Self::Devx(object) => {
                status(&adapter.raw(&object.destroy, 16))?;
                adapter.events().unsubscribe((object.made_by, object.number));
            }
            Self::Ah { .. } | Self::Dm(_) => {}
        }
        Ok(events)
    }
}

/// The error of a protection domain or completion queue that the device does not give up. A device
/// has `BAD_RES_STATE` for it, EINVAL, but the kernel counts users itself and sends no command
/// (`uverbs_free_pd`, `ib_destroy_cq_user`). The device has `RESOURCE_BUSY` for all others.
fn in_use(error: Errno) -> Errno {
    if error == Errno::INVALID { Errno::BUSY } else { error }
}

/// Converts the status of a command that was executed unchanged.
pub(crate) fn status(answer: &[u8]) -> Result<(), Errno> {
    let header = View::<OutHeader>::new(answer).ok_or(Errno::INVALID)?;
    let opcode = CommandOpcode::QueryHcaCap;
    match header.get(OutHeader::STATUS) {
        Ok(barewire_layouts::command::CommandStatus::Ok) => Ok(()),
        status => Err(barewire_layouts::command::CommandError {
            opcode,
            status: status.map_err(|unknown| unknown.bits as u8),
            syndrome: header.get(OutHeader::SYNDROME),
        }
        .into()),
    }
}

/// The objects of one context.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    table: BTreeMap<u32, Object>,
    next: u32,
}

fn absent(handle: u32) -> Errno {
    Errno::NO_ENTRY.because(format_args!("no object has the handle {handle}"))
}

fn wrong_kind(handle: u32) -> Errno {
    Errno::INVALID.because(format_args!("the object with the handle {handle} is of another kind"))
}

impl Objects {
    /// Adds an object and returns its handle. A handle is reused only after all others were.
    fn insert(&mut self, object: Object) -> u32 {
        while self.table.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.table.insert(handle, object);
        self.next = self.next.wrapping_add(1);
        handle
    }

    /// Adds an object and passes its handle to `give`. If the program does not get it, the object
    /// is destroyed.
    pub(crate) fn insert_given(
        &mut self,
        adapter: &Adapter,
        object: Object,
        give: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let handle = self.insert(object);
        give(handle).inspect_err(|_| {
            // The first error is the one to report.
            let _ = self.destroy(adapter, handle, |_| true);
        })
    }

    /// Returns the object with this handle and kind.
    pub(crate) fn get<T: Handled>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.table.get(&handle).ok_or_else(|| absent(handle))?;
        T::of(object).ok_or_else(|| wrong_kind(handle))
    }

    /// Returns the object with this handle and kind for modification.
    pub(crate) fn get_mut<T: Handled>(&mut self, handle: u32) -> Result<&mut T, Errno> {
        let object = self.table.get_mut(&handle).ok_or_else(|| absent(handle))?;
        T::of_mut(object).ok_or_else(|| wrong_kind(handle))
    }

    /// Destroys an object if `is` accepts its kind. Returns the number of its events that the
    /// program has read.
    pub(crate) fn destroy(
        &mut self,
        adapter: &Adapter,
        handle: u32,
        is: fn(&Object) -> bool,
    ) -> Result<[u32; 2], Errno> {
        let object = self.table.get(&handle).ok_or(Errno::NO_ENTRY)?;
        if !is(object) {
            return Err(Errno::INVALID);
        }
        if self.is_used(handle, object) {
            return Err(Errno::BUSY.because("other objects use it, or it is in a multicast group"));
        }
        let events = object.destroy(adapter)?;
        self.table.remove(&handle);
        Ok(events)
    }

    /// Returns whether other objects depend on this one in ways that the device does not track, or
    /// it is attached to multicast groups.
    fn is_used(&self, handle: u32, object: &Object) -> bool {
        let mut others = self.table.values();
        match object {
            Object::Pd(pd) => others.any(|other| {
                matches!(other, Object::Ah { pd } if *pd == handle)
                    || Target::of(other).is_some_and(|target| target.pd == pd.number)
            }),
            Object::Cq(cq) => {
                others.any(|other| Target::of(other).is_some_and(|it| it.cq == cq.number))
            }
            Object::Srq(srq) => {
                others.any(|other| Target::of(other).is_some_and(|it| it.srq == srq.number))
            }
            // The device counts the users of a domain, but not by which handle they came.
            Object::Xrcd(_) => others.any(|other| {
                let of = match other {
                    Object::Srq(Srq { kind: SrqKind::Xrc(domain), .. }) => Some(*domain),
                    Object::Qp(qp) => qp.xrcd,
                    _ => None,
                };
                of == Some(handle)
            }),
            Object::Qp(qp) => !qp.groups.is_empty(),
            Object::Dm(_) => others
                .filter_map(Mr::of)
                .any(|mr| mr.device_memory.as_ref().is_some_and(|(memory, _)| *memory == handle)),
            _ => false,
        }
    }

    /// Returns the bytes of device memory in use, and the first index by which none is mapped.
    pub(crate) fn device_memory(&self) -> (u64, u16) {
        let all = || self.table.values().filter_map(Arc::<DeviceMemory>::of);
        let index = (0..=u16::MAX).find(|index| all().all(|memory| memory.page != *index));
        (all().map(|memory| memory.length).sum(), index.unwrap_or(u16::MAX))
    }

    /// Returns the device memory to map at this offset.
    pub(crate) fn device_memory_at(
        &self,
        offset: u64,
        length: usize,
    ) -> Option<&Arc<DeviceMemory>> {
        self.table.values().filter_map(Arc::of).find(|memory| memory.is_at(offset, length))
    }

    /// Destroys all objects in reverse order of creation, so that none is in use.
    pub(crate) fn clear(&mut self, adapter: &Adapter) {
        while let Some((_, object)) = self.table.pop_last() {
            // An object that cannot be destroyed stays with the device until the process ends.
            let _ = object.destroy(adapter);
        }
    }

    /// Returns the handles of all objects that `is` accepts.
    pub(crate) fn handles(&self, is: fn(&Object) -> bool) -> Vec<u32> {
        self.table.iter().filter(|(_, object)| is(object)).map(|(&handle, _)| handle).collect()
    }

    /// Returns the memory region with this key.
    pub(crate) fn region(&self, key: u32) -> Option<&Mr> {
        self.table.values().filter_map(Mr::of).find(|mr| mr.key == key)
    }

    /// Returns the UAR page to map at this offset.
    pub(crate) fn uar_at(&self, offset: u64) -> Option<&Uar> {
        self.table.values().filter_map(Uar::of).find(|uar| offset_of(uar.index) == offset)
    }
}

/// Returns the offset at which a UAR page is mapped: as for every mapping, in pages of the kernel.
pub(crate) fn offset_of(uar: u32) -> u64 {
    (u64::from(uar) + 1) * barewire_hca::host_page() as u64
}

/// Returns the offset at which device memory is mapped: command `MLX5_IB_MMAP_DEVICE_MEM` and the
/// index, whose upper byte comes after the command.
pub(crate) fn memory_offset_of(page: u16) -> u64 {
    const COMMAND: u64 = 8 << 8;
    let [low, high] = page.to_le_bytes().map(u64::from);
    (COMMAND | low | high << 16) * barewire_hca::host_page() as u64
}

pub(crate) fn is_pd(object: &Object) -> bool {
    matches!(object, Object::Pd(_))
}
