//! Commands to the device through the kernel (DEVX).
#![allow(unsafe_code, reason = "registering memory is a promise that the compiler cannot check")]

use std::fmt;
use std::io;
use std::ptr::NonNull;

use crate::memory::Access;
use crate::sys::{self, DevxObject, DevxUar, DevxUmem};

/// A device that takes commands, as bytes of the Programmer's Reference Manual: big-endian, opcode first.
///
/// A call fails if the command did not reach the device. If it did, the call is `Ok` and `output` holds the answer: its first byte is the
/// status (0 is good), bytes 4 to 8 the syndrome. The kernel adds the context's user identity, so that objects of other processes are out
/// of reach, and takes no commands that the device's administration is made of.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = barewire_verbs::Context::open_devx("mlx5_0")?;
/// let devx = context.devx().ok_or("opened without")?;
/// let mut answer = [0; 16 + 4096];
/// // QUERY_HCA_CAP: general capabilities, current values.
/// // SAFETY: the command names no object.
/// unsafe { devx.general(&[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &mut answer) }?;
/// assert_eq!(answer[0], 0, "the device refused");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Devx(sys::Devx);

impl Devx {
    pub(crate) fn new(devx: sys::Devx) -> Self {
        Self(devx)
    }

    pub(super) fn handle(&self) -> &sys::Devx {
        &self.0
    }

    /// Runs a command that makes no object.
    ///
    /// # Safety
    /// Commands name objects by number, and the device takes every object of the context for the
    /// caller's. The command names no object (memory, key, protection domain, queue or any other) that
    /// another user of the context made, unless that user allows what the command does. Otherwise the
    /// device could be made to write memory whose owner relies on nobody else having a key to it.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(devx: &barewire_verbs::dv::Devx, command: &[u8]) {
    ///     let _ = devx.general(command, &mut [0; 16]);
    /// }
    /// ```
    ///
    /// # Errors
    /// If the device gave no answer. `EINVAL` is the kernel's for a command that makes an object or is not for programs.
    pub unsafe fn general(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.general(input, output)
    }

    /// Runs a command that makes an object; `None` if the device refused.
    ///
    /// # Safety
    /// As for [`Self::general`].
    ///
    /// ```compile_fail,E0133
    /// fn anyone(devx: &barewire_verbs::dv::Devx, command: &[u8]) {
    ///     let _ = devx.create(command, &mut [0; 16]);
    /// }
    /// ```
    ///
    /// # Errors
    /// If the device gave no answer.
    pub unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> io::Result<Option<Object>> {
        Ok(self.0.create(input, output)?.map(Object))
    }

    /// Lets commands name memory. `access` says whether the device may write it ([`Access::LOCAL_WRITE`]); it may always read.
    ///
    /// # Safety
    /// Until [`Umem::deregister`] has returned `Ok`, `start .. start + length` stays mapped and is accessed by this process only in ways
    /// that tolerate a device which reads and writes it at the same time. Dropping the [`Umem`] deregisters too, but does not tell whether
    /// it could: an object that still uses the memory prevents it.
    ///
    /// # Errors
    /// If memory of this size may not be locked, is not mapped, or the device refused.
    pub unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> io::Result<Umem> {
        // SAFETY: passed on to the caller.
        let umem = unsafe { self.0.register(start, length, access.to_verbs()) }?;
        Ok(Umem { id: umem.id(), umem })
    }

    /// Takes a UAR page.
    ///
    /// # Errors
    /// If there is none left, or it cannot be mapped so: [`UarKind::BlueFlame`] needs a processor that combines writes.
    pub fn allocate_uar(&self, kind: UarKind) -> io::Result<Uar> {
        let uar = self.0.allocate_uar(kind == UarKind::BlueFlame)?;
        let (page, base, register) = uar.facts();
        let missing = || io::Error::other("libmlx5 gave a UAR without an address");
        Ok(Uar {
            kind,
            page,
            base: NonNull::new(base).ok_or_else(missing)?,
            register: NonNull::new(register).ok_or_else(missing)?,
            handle: uar,
        })
    }

    /// The device's number of the event queue behind a completion vector, the first being 0.
    ///
    /// # Errors
    /// If there is no such vector.
    pub fn event_queue(&self, vector: u32) -> io::Result<u32> {
        self.0.event_queue(vector)
    }
}

impl fmt::Debug for Devx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Devx").field(&self.0.context().name()).finish()
    }
}

/// An object that a command made. Dropping it destroys it; the device refuses while another object uses it, and it is then destroyed with
/// the context.
pub struct Object(DevxObject);

impl Object {
    pub(super) fn handle(&self) -> &DevxObject {
        &self.0
    }

    /// Runs a command that changes the object.
    ///
    /// # Safety
    /// As for [`Devx::general`].
    ///
    /// # Errors
    /// If the device gave no answer. `EINVAL` is the kernel's for a command about another object, or one that changes none.
    pub unsafe fn modify(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.modify(input, output)
    }

    /// Runs a command that queries the object.
    ///
    /// # Safety
    /// As for [`Devx::general`].
    ///
    /// # Errors
    /// If the device gave no answer. `EINVAL` is the kernel's for a command about another object, or one that queries none.
    pub unsafe fn query(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.query(input, output)
    }

    /// Runs a command about the object: [`Self::query`] if its opcode is one of the queries, [`Self::modify`] otherwise.
    ///
    /// # Safety
    /// As for [`Devx::general`].
    ///
    /// # Errors
    /// As there.
    pub unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { if is_query(input) { self.query(input, output) } else { self.modify(input, output) } }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").finish_non_exhaustive()
    }
}

/// Whether a command asks for what an object is (mlx5_ifc.h: `MLX5_CMD_OP_QUERY_*`).
fn is_query(command: &[u8]) -> bool {
    let [high, low, ..] = *command else { return false };
    matches!(
        u16::from_be_bytes([high, low]),
        0x201 // MKEY
        | 0x402 // CQ
        | 0x50b // QP
        | 0x702 | 0x707 // SRQ, XRC_SRQ
        | 0x713 // DCT
        | 0x719 | 0x725 | 0x727 // XRQ, XRQ_DC_PARAMS_ENTRY, XRQ_ERROR_PARAMS
        | 0x773 // Q_COUNTER
        | 0x784 // SCHEDULING_ELEMENT
        | 0x903 | 0x907 | 0x90b | 0x90f | 0x915 | 0x919 // TIR, SQ, RQ, RMP, TIS, RQT
        | 0x932 | 0x935 | 0x937 | 0x93b // FLOW_TABLE, _GROUP, _TABLE_ENTRY, _COUNTER
        | 0x93f | 0x942 // PACKET_REFORMAT_CONTEXT, MODIFY_HEADER_CONTEXT
        | 0xa02 // GENERAL_OBJECT
    )
}

/// Memory that commands can name. Dropping it takes the memory from the device if no object uses it.
pub struct Umem {
    id: u32,
    umem: DevxUmem,
}

impl Umem {
    /// The number that commands name it by.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes the memory from the device. Once it has, it does no more.
    ///
    /// # Errors
    /// If an object uses the memory, which must then stay as it is.
    pub fn deregister(&mut self) -> io::Result<()> {
        self.umem.deregister()
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How a UAR page is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarKind {
    /// Write-combining: stores reach the device in bursts. The page's register belongs to this allocation alone.
    BlueFlame,
    /// Not cached: every store is one access. libmlx5 gives every such allocation of a context the same page, which it also rings itself.
    NonCached,
}

/// A mapped UAR page. Dropping it gives it back.
pub struct Uar {
    kind: UarKind,
    page: u32,
    base: NonNull<u8>,
    register: NonNull<u8>,
    #[expect(dead_code, reason = "gives the page back")]
    handle: DevxUar,
}

// SAFETY: two addresses of a page that is mapped for the whole process, and a handle that any thread may drop.
unsafe impl Send for Uar {}
// SAFETY: as above; nothing here follows the addresses.
unsafe impl Sync for Uar {}

impl Uar {
    /// How it is mapped.
    pub fn kind(&self) -> UarKind {
        self.kind
    }

    /// The page's number in contexts.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// The first byte of the page of 4096 bytes, mapped for writes as long as `self` lives.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The first byte of the BlueFlame register in it that is this allocation's.
    pub fn register(&self) -> NonNull<u8> {
        self.register
    }
}

impl fmt::Debug for Uar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uar").field("kind", &self.kind).field("page", &self.page).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_told_from_changes() {
        assert!(is_query(&[0x05, 0x0b, 0, 0]));
        assert!(!is_query(&[0x05, 0x02, 0, 0]), "RST2INIT_QP");
        assert!(!is_query(&[0x05]));
        assert!(!is_query(&[]));
    }

    #[test]
    fn handles_may_go_to_any_thread() {
        fn any<T: Send + Sync>() {}
        any::<Devx>();
        any::<Object>();
        any::<Umem>();
        any::<Uar>();
    }
}
