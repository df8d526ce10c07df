//! Wakes a sleeping device by the first store to one of its UAR pages.
//!
//! A doorbell is a store to memory, which wakes no thread. Before the device's thread sleeps, it
//! therefore write-protects the pages by a userfaultfd. The next store faults; the kernel reports
//! the fault on the descriptor, the thread removes the protection, and the store completes. While
//! the thread is awake the pages are writable, and a doorbell costs only the store.
//!
//! No store blocks forever: after each sleep the thread removes the protection first, before it
//! takes a lock or stores to a page itself. Closing the descriptor, at the latest when the thread
//! ends, removes it as well.
//!
//! Sources: userfaultfd(2), ioctl_userfaultfd(2), linux/userfaultfd.h.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use barewire_layouts::doorbell::UAR_PAGE;

use crate::memory::host_page;
use crate::object::UarPage;

const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
/// A message. Its contents are ignored: only stores to these pages are reported.
const MESSAGE: usize = 32;

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// The number of an ioctl that takes a `T` (asm-generic/ioctl.h). `direction` is 2 to read, 3 to
/// read and write.
const fn request<T>(direction: u64, number: u64) -> u64 {
    direction << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

const HANDSHAKE: u64 = request::<Handshake>(3, 0x3f);
const REGISTER: u64 = request::<Register>(3, 0x00);
const UNREGISTER: u64 = request::<Range>(2, 0x01);
const WRITEPROTECT: u64 = request::<WriteProtect>(3, 0x06);

/// Write-protects UAR pages and reports stores to them.
#[derive(Debug)]
pub(crate) struct Sentry {
    fd: OwnedFd,
    pages: Vec<Arc<UarPage>>,
    /// The caller's version of the set of pages.
    version: Option<u64>,
    closed: bool,
}

impl Sentry {
    /// Opens the descriptor.
    ///
    /// # Errors
    /// The kernel's error: it has no userfaultfd, or not for this user, or not with write
    /// protection.
    pub(crate) fn new() -> io::Result<Self> {
        if cfg!(barewire_sanitize) {
            // ThreadSanitizer holds a lock of its own while it carries out an atomic store. A store
            // that waits for this device would keep the device from loading the same word.
            return Err(io::Error::other("ThreadSanitizer does not let a store wait"));
        }
        let host_page = host_page();
        if host_page != UAR_PAGE {
            return Err(io::Error::other(format!(
                "pages of the host have {host_page} bytes, not {UAR_PAGE}"
            )));
        }
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let sentry = Self { fd, pages: Vec::new(), version: None, closed: false };
        let mut handshake = Handshake { api: API, features: FEATURE_PAGEFAULT_FLAG_WP, ioctls: 0 };
        sentry.control(HANDSHAKE, &mut handshake)?;
        Ok(sentry)
    }

    /// Returns the descriptor, which is readable after a store.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watches these pages instead of the previous ones, unless `version` shows that they are the
    /// same.
    pub(crate) fn watch<'a>(
        &mut self,
        version: u64,
        pages: impl Iterator<Item = &'a Arc<UarPage>>,
    ) -> io::Result<()> {
        if self.version == Some(version) {
            return Ok(());
        }
        self.version = None;
        for page in self.pages.drain(..).collect::<Vec<_>>() {
            self.control(UNREGISTER, &mut range(&page))?;
        }
        for page in pages {
            let mut register = Register { range: range(page), mode: REGISTER_MODE_WP, ioctls: 0 };
            self.control(REGISTER, &mut register)?;
            self.pages.push(Arc::clone(page));
        }
        self.version = Some(version);
        Ok(())
    }

    /// Blocks the next store to any page.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.closed = true;
        self.protect(WRITEPROTECT_MODE_WP)
    }

    /// Lets stores proceed, including one that is blocked. Returns whether one was.
    pub(crate) fn open(&mut self) -> io::Result<bool> {
        if !std::mem::take(&mut self.closed) {
            return Ok(false);
        }
        // A message disappears when its fault is resolved, so it is read first.
        let mut messages = [0_u8; 16 * MESSAGE];
        // SAFETY: the buffer has the given length. It fails if there is no message.
        let length =
            unsafe { libc::read(self.descriptor(), messages.as_mut_ptr().cast(), messages.len()) };
        self.protect(0)?;
        Ok(length > 0)
    }

    fn protect(&self, mode: u64) -> io::Result<()> {
        self.pages.iter().try_for_each(|page| {
            self.control(WRITEPROTECT, &mut WriteProtect { range: range(page), mode })
        })
    }

    fn control<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        // SAFETY: the request's number contains the size of `T`; the kernel reads and writes no
        // more than that.
        let result =
            unsafe { libc::ioctl(self.descriptor(), request as _, std::ptr::from_mut(argument)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn range(page: &UarPage) -> Range {
    Range { start: page.as_ptr().addr().get() as u64, length: UAR_PAGE as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Uar;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn requests_are_numbered_as_the_kernel_numbers_them() {
        assert_eq!(
            [HANDSHAKE, REGISTER, UNREGISTER, WRITEPROTECT],
            [0xc018_aa3f, 0xc020_aa00, 0x8010_aa01, 0xc018_aa06]
        );
    }

    #[test]
    fn a_store_waits_until_the_page_is_open() {
        let mut sentry = match Sentry::new() {
            Ok(sentry) => sentry,
            Err(error) => return println!("skipped: no userfaultfd here: {error}"),
        };
        let page = Uar::new().page;
        sentry.watch(1, [&page].into_iter()).unwrap();
        for round in 1..4 {
            sentry.close().unwrap();
            let stored = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    page.swap(0x800, round);
                    stored.store(true, Ordering::SeqCst);
                });
                let mut poll =
                    libc::pollfd { fd: sentry.descriptor(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one live range.
                assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 10_000) }, 1);
                // Loads proceed; the store blocks.
                assert!(page.load(0x800) == round - 1 && !stored.load(Ordering::SeqCst));
                assert!(sentry.open().unwrap());
                let deadline = Instant::now() + Duration::from_secs(10);
                while !stored.load(Ordering::SeqCst) {
                    assert!(Instant::now() < deadline, "the store still waits");
                    std::thread::yield_now();
                }
            });
            assert_eq!(page.load(0x800), round);
            assert!(!sentry.open().unwrap());
        }
        // A page that is no longer watched, and a drop while a page is protected.
        sentry.close().unwrap();
        sentry.open().unwrap();
        let other = Uar::new().page;
        sentry.watch(2, [&other].into_iter()).unwrap();
        sentry.close().unwrap();
        page.swap(0x800, 9);
        drop(sentry);
        other.swap(0x800, 9);
    }
}
