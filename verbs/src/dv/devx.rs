//! Commands to the device through the kernel (DEVX).
#![allow(unsafe_code, reason = "registration has a contract that the compiler cannot check")]

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::hint;
use crate::memory::Access;
use crate::sys::{self, DevxObject, DevxUar, DevxUmem};

/// A handle for sending commands to a device. Commands are byte strings in the format of the
/// Programmer's Reference Manual: big-endian, opcode first.
///
/// A call returns an error if the command did not reach the device. Otherwise it returns `Ok`, and
/// `output` holds the device's response: byte 0 is the status (0 is success), bytes 4 to 8 are the
/// syndrome. The kernel adds the context's user id to each command, so that objects of other
/// processes are not accessible, and rejects commands for administration of the device.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = barewire_verbs::Context::open_devx("mlx5_0")?;
/// let devx = context.devx().ok_or("opened without")?;
/// let mut output = [0; 16 + 4096];
/// // QUERY_HCA_CAP: general capabilities, current values.
/// // SAFETY: the command names no object.
/// unsafe { devx.general(&[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &mut output) }?;
/// assert_eq!(output[0], 0, "the device reported an error");
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

    /// Executes a command that does not create an object.
    ///
    /// # Safety
    /// Commands identify objects by number, and the device gives every command access to all
    /// objects of the context. The command must not name an object (memory, key, protection domain,
    /// queue or any other) that other code created in the same context, unless that code permits
    /// the effect of the command. Otherwise the device could be made to write to memory whose owner
    /// relies on being the only holder of a key to it.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(devx: &barewire_verbs::dv::Devx, command: &[u8]) {
    ///     let _ = devx.general(command, &mut [0; 16]);
    /// }
    /// ```
    ///
    /// # Errors
    /// If the device did not respond. The kernel returns `EINVAL` for a command that creates an
    /// object or that programs may not use.
    pub unsafe fn general(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.general(input, output)
    }

    /// Executes a command that creates an object. Returns `None` if the device reported an error.
    ///
    /// # Safety
    /// The contract of [`Self::general`].
    ///
    /// ```compile_fail,E0133
    /// fn anyone(devx: &barewire_verbs::dv::Devx, command: &[u8]) {
    ///     let _ = devx.create(command, &mut [0; 16]);
    /// }
    /// ```
    ///
    /// # Errors
    /// If the device did not respond.
    pub unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> io::Result<Option<Object>> {
        Ok(self.0.create(input, output)?.map(Object))
    }

    /// Registers memory as a UMEM, which commands can name. The device may write to it if `access`
    /// has [`Access::LOCAL_WRITE`]; it may always read.
    ///
    /// # Safety
    /// Until [`Umem::deregister`] has returned `Ok`, `start .. start + length` must stay mapped,
    /// and this process must access it only in ways that tolerate a device which reads and writes
    /// it at the same time. Dropping the [`Umem`] also deregisters it, but does not report whether
    /// that succeeded: it fails while an object uses the memory.
    ///
    /// # Errors
    /// If the memory is not mapped or may not be locked, or if the device reports an error.
    pub unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> io::Result<Umem> {
        // SAFETY: the caller guarantees the contract of this function, which is that of
        // `Mr::register`: the memory stays mapped and tolerates accesses by the device until it is
        // deregistered.
        let umem = unsafe { self.0.register(start, length, access.to_verbs()) };
        let umem = umem.map_err(hint::explained)?;
        Ok(Umem { id: umem.id(), umem })
    }

    /// Allocates a UAR page.
    ///
    /// # Errors
    /// If no page is left, or the page cannot be mapped in this way: [`UarKind::BlueFlame`]
    /// requires a processor with write-combining.
    pub fn allocate_uar(&self, kind: UarKind) -> io::Result<Uar> {
        let uar = self.0.allocate_uar(kind == UarKind::BlueFlame)?;
        let (page, register) = uar.address();
        let missing = || io::Error::other("libmlx5 gave a UAR without an address");
        let base = register.map_addr(page_of);
        Ok(Uar {
            kind,
            page,
            base: NonNull::new(base).ok_or_else(missing)?,
            register: NonNull::new(register).ok_or_else(missing)?,
            handle: uar,
        })
    }

    /// Executes a command that queries a queue pair that verbs created in the same context. The
    /// kernel refuses commands that name another object.
    ///
    /// # Errors
    /// `EINVAL` if the queue pair belongs to another context, or if the device did not respond.
    pub fn query_pair<A>(
        &self,
        pair: &crate::QueuePair<A>,
        input: &[u8],
        output: &mut [u8],
    ) -> io::Result<()> {
        if !Arc::ptr_eq(pair.handle().context(), self.0.context()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.0.query_pair(pair.handle(), input, output)
    }

    /// The completion vector for queues that the calling thread creates: its interrupts go to the
    /// thread's CPU where the device has a vector for each, as by the kernel's default placement.
    pub fn completion_vector(&self) -> u32 {
        self.0.context().completion_vector()
    }

    /// The device's number of the event queue of a completion vector. Vectors are numbered from 0.
    ///
    /// # Errors
    /// If the vector does not exist.
    pub fn event_queue(&self, vector: u32) -> io::Result<u32> {
        self.0.event_queue(vector)
    }
}

impl fmt::Debug for Devx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Devx").field(&self.0.context().name()).finish()
    }
}

/// An object created by a command. Dropping it destroys it. The device refuses while another object
/// uses it; the object is then destroyed with the context.
pub struct Object(DevxObject);

impl Object {
    pub(super) fn handle(&self) -> &DevxObject {
        &self.0
    }

    /// Executes a command that modifies the object.
    ///
    /// # Safety
    /// The contract of [`Devx::general`].
    ///
    /// # Errors
    /// If the device did not respond. The kernel returns `EINVAL` for a command that names another
    /// object, or that does not modify one.
    pub unsafe fn modify(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.modify(input, output)
    }

    /// Executes a command that queries the object.
    ///
    /// # Safety
    /// The contract of [`Devx::general`].
    ///
    /// # Errors
    /// If the device did not respond. The kernel returns `EINVAL` for a command that names another
    /// object, or that does not query one.
    pub unsafe fn query(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        self.0.query(input, output)
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// If the kernel or the device refused, or the object belongs to the parent process. The object
    /// then exists until the process ends.
    pub fn destroy(self) -> io::Result<()> {
        self.0.destroy_now()
    }

    /// Executes a command about the object: with [`Self::query`] if the opcode is that of a query,
    /// and with [`Self::modify`] otherwise.
    ///
    /// # Safety
    /// The contract of [`Devx::general`].
    ///
    /// # Errors
    /// Those of [`Self::query`] and [`Self::modify`].
    pub unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> io::Result<()> {
        // SAFETY: the caller guarantees the contract of `Devx::general` for this command, which is
        // also that of `query` and `modify`.
        unsafe {
            if is_query(input) { self.query(input, output) } else { self.modify(input, output) }
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").finish_non_exhaustive()
    }
}

/// Returns true if the opcode is that of a query (mlx5_ifc.h: `MLX5_CMD_OP_QUERY_*`).
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

/// Registered memory that commands can name. Dropping it deregisters the memory, unless an object
/// uses it.
pub struct Umem {
    id: u32,
    umem: DevxUmem,
}

impl Umem {
    /// The UMEM's number in commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Deregisters the memory. Further calls do nothing once one has succeeded.
    ///
    /// # Errors
    /// If an object uses the memory, which then stays registered.
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
    /// Write-combining: stores reach the device in bursts. The register is used by this allocation
    /// only.
    BlueFlame,
    /// Uncached: every store is one access. libmlx5 returns the same page for all such allocations
    /// of a context, and also writes doorbells to it itself.
    NonCached,
}

/// Returns the address of the UAR page with a register. libmlx5's `base_addr` is the start of the
/// kernel's page, which contains several UARs where it is larger than 4 KiB.
fn page_of(register: usize) -> usize {
    const UAR_PAGE: usize = 4096;
    register & !(UAR_PAGE - 1)
}

/// A mapped UAR page. Dropping it frees the page.
pub struct Uar {
    kind: UarKind,
    page: u32,
    base: NonNull<u8>,
    register: NonNull<u8>,
    #[expect(dead_code, reason = "frees the page when dropped")]
    handle: DevxUar,
}

// SAFETY: the addresses point to a page that is mapped for the whole process, and `DevxUar` may be
// dropped by any thread.
unsafe impl Send for Uar {}
// SAFETY: the methods only return the addresses and never dereference them, so shared references
// may be used by several threads.
unsafe impl Sync for Uar {}

impl Uar {
    /// The kind of mapping.
    pub fn kind(&self) -> UarKind {
        self.kind
    }

    /// The page's index, by which commands name it.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// The first byte of the UAR's page of 4096 bytes. It is mapped for writing as long as `self`
    /// lives.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The first byte of this allocation's BlueFlame register in the page.
    pub fn register(&self) -> NonNull<u8> {
        self.register
    }
}

impl fmt::Debug for Uar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uar")
            .field("kind", &self.kind)
            .field("page", &self.page)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uar_is_found_in_a_larger_page_of_the_kernel() {
        let mapped = 0x7f12_3456_0000;
        for (uar, register) in [(0, 0x800), (3, 0x900), (15, 0x800), (15, 0xf00)] {
            assert_eq!(page_of(mapped + uar * 4096 + register), mapped + uar * 4096);
        }
    }

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
