//! The memory of requests.
#![allow(unsafe_code, reason = "registers memory that the buffer owns: see `Storage`")]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire::{Access, Domain, Memory, MemoryError};

use super::protocol::Payload;
use crate::words::{WORD, Words};

/// Most bytes that are copied word by word.
const SHORT: usize = 64;
/// Alignment of memory of at least so many bytes. The kernel copies whole pages fastest between
/// buffers that start at pages, and about half as fast between others.
const PAGE: usize = 4096;
/// Alignment of shorter memory.
const LINE: usize = 64;

/// The rights of transfers that peers read.
const READABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);

/// Memory that messages are sent from and received into. Clones are handles to the same memory.
///
/// A request holds a handle until it is complete, so dropping a buffer early does no harm. Like
/// [`Memory`], a buffer is read and written by copies: devices and peers may access it at the same
/// time. It is registered with a device when a rendezvous first needs it there, and stays
/// registered until it is dropped, so that using a buffer again costs no registration.
///
/// ```
/// use barewire_wireup::tag::Buffer;
/// let buffer = Buffer::from_bytes(b"hello")?;
/// assert_eq!((buffer.len(), &buffer.to_vec()[..]), (5, &b"hello"[..]));
/// # Ok::<(), barewire::MemoryError>(())
/// ```
#[derive(Clone)]
pub struct Buffer(Rc<Inner>);

/// The memory, its registrations, and who uses them.
struct Inner {
    length: usize,
    /// Replaced when peers must lose a key to memory that a domain allocated.
    storage: RefCell<Rc<Storage>>,
    registrations: RefCell<Vec<Registration>>,
    /// Announcements under way.
    shares: Cell<u32>,
    /// A peer has a key that it must lose once no share is left.
    stale: Cell<bool>,
}

/// Aligned memory.
///
/// Invariant: the memory is freed only if every registration of it was deregistered successfully.
/// It is leaked otherwise.
struct Storage {
    start: NonNull<AtomicU64>,
    words: usize,
    /// Taken when this is dropped.
    owner: Option<Owner>,
    /// A device refused to deregister the memory.
    leaked: Cell<bool>,
}

/// What owns memory.
enum Owner {
    /// The registration is with the transport `self`, for copies. Its key is never packed.
    Process(#[allow(dead_code, reason = "owns the memory")] Words, Option<Memory>),
    /// The domain that allocated the memory, and the key, if peers can use it.
    Domain(Rc<Domain>, Memory, Option<Vec<u8>>),
}

struct Registration {
    domain: Rc<Domain>,
    memory: Memory,
    /// The packed key; `None` if peers cannot use the registration.
    key: Option<Vec<u8>>,
}

thread_local! {
    static LOCAL: RefCell<Option<Domain>> = const { RefCell::new(None) };
}

/// The domain through which buffers are read and written.
fn local_domain() -> Result<Domain, MemoryError> {
    LOCAL.with_borrow_mut(|local| {
        if local.is_none() {
            *local = "self/memory".parse().ok().and_then(|device| Domain::open(&device).ok());
        }
        local.clone().ok_or(MemoryError::Empty)
    })
}

impl Buffer {
    /// Zeroed memory of `length` bytes.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`]
    pub fn new(length: usize) -> Result<Self, MemoryError> {
        Ok(Self::of(length, Storage::new(length)?))
    }

    /// Zeroed memory of `length` bytes that `domain` allocates. Over `shm`, peers read such memory
    /// without a system call, several times as fast as other memory. It takes a file descriptor.
    ///
    /// # Errors
    /// Those of [`Domain::allocate`].
    pub fn allocate(length: usize, domain: &Rc<Domain>) -> Result<Self, MemoryError> {
        Ok(Self::of(length, Storage::allocate(length, domain)?))
    }

    fn of(length: usize, storage: Storage) -> Self {
        Self(Rc::new(Inner {
            length,
            storage: RefCell::new(Rc::new(storage)),
            registrations: RefCell::default(),
            shares: Cell::new(0),
            stale: Cell::new(false),
        }))
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MemoryError> {
        let buffer = Self::new(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), MemoryError> {
        let region = self.0.length;
        let inside = offset.checked_add(length).is_some_and(|end| end <= region);
        if inside { Ok(()) } else { Err(MemoryError::OutOfRange { offset, length, region }) }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, source.len())?;
        let storage = self.0.storage.borrow();
        if let Some(words) = storage.short(offset, source.len())
            && let (source, []) = source.as_chunks()
        {
            for (word, bytes) in words.iter().zip(source) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            return Ok(());
        }
        storage.memory()?.write(offset, source)
    }

    /// Copies from `offset` into `target`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, target.len())?;
        let storage = self.0.storage.borrow();
        if let Some(words) = storage.short(offset, target.len()) {
            let (target, rest) = target.as_chunks_mut();
            let mut words = words.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            for bytes in target {
                *bytes = words.next().unwrap_or_default();
            }
            if !rest.is_empty() {
                rest.copy_from_slice(&words.next().unwrap_or_default()[..rest.len()]);
            }
            return Ok(());
        }
        storage.memory()?.read(offset, target)
    }

    /// A copy of all bytes, if they are a word.
    #[inline(always)]
    pub(super) fn word(&self) -> Option<[u8; WORD]> {
        if self.0.length != WORD {
            return None;
        }
        let storage = self.0.storage.borrow();
        storage.words().first().map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.0.length];
        Payload::read(self, 0, &mut bytes);
        bytes
    }

    /// Address of the first byte, as peers name it. Another one once peers have lost their keys.
    pub(super) fn address(&self) -> u64 {
        self.0.storage.borrow().start.addr().get() as u64
    }

    /// Lets `access` have the registration with `domain`, and the key that peers read the memory
    /// with (`None` if they cannot). Registers the memory first if it is not registered there.
    pub(super) fn registered<R>(
        &self,
        domain: &Rc<Domain>,
        access: impl FnOnce(&Memory, Option<&[u8]>) -> R,
    ) -> Result<R, MemoryError> {
        let storage = self.0.storage.borrow();
        if let Some(Owner::Domain(owner, memory, key)) = &storage.owner
            && Rc::ptr_eq(owner, domain)
        {
            return Ok(access(memory, key.as_deref()));
        }
        let mut registrations = self.0.registrations.borrow_mut();
        let found =
            registrations.iter().position(|registration| Rc::ptr_eq(&registration.domain, domain));
        let at = found.unwrap_or(registrations.len());
        if found.is_none() {
            let memory = storage.register(domain, READABLE)?;
            let key = usable_key(domain, &memory);
            registrations.push(Registration { domain: Rc::clone(domain), memory, key });
        }
        let registration = &registrations[at];
        Ok(access(&registration.memory, registration.key.as_deref()))
    }

    /// Gives peers the right to write the memory, over `domain`, and the key for it. `None` if
    /// peers cannot reach the memory there.
    pub(super) fn grant(&self, domain: &Domain) -> Option<(Grant, Vec<u8>)> {
        let storage = Rc::clone(&self.0.storage.borrow());
        let memory = storage.register(domain, Access::LOCAL_WRITE | Access::REMOTE_WRITE).ok()?;
        let key = usable_key(domain, &memory);
        let grant = Grant { memory: Some(memory), storage };
        Some((grant, key?))
    }
}

/// The packed key of `memory`, if a peer can do something with it.
fn usable_key(domain: &Domain, memory: &Memory) -> Option<Vec<u8>> {
    let key = memory.pack_key();
    domain.unpack_key(&key).is_ok().then_some(key)
}

impl Storage {
    /// Memory of the process.
    fn new(length: usize) -> Result<Self, MemoryError> {
        let words = Words::new(length, if length < PAGE { LINE } else { PAGE })?;
        let slice = words.as_slice();
        let (start, count) = (NonNull::from(slice).cast(), slice.len());
        let owner = Some(Owner::Process(words, None));
        let mut storage = Self { start, words: count, owner, leaked: Cell::new(false) };
        let registered = storage.register(&local_domain()?, Access::LOCAL_WRITE)?;
        if let Some(Owner::Process(_, local)) = &mut storage.owner {
            *local = Some(registered);
        }
        Ok(storage)
    }

    /// Memory of a domain.
    fn allocate(length: usize, domain: &Rc<Domain>) -> Result<Self, MemoryError> {
        let no_memory = MemoryError::NoMemory { length };
        let length = length.checked_next_multiple_of(WORD).ok_or(no_memory)?.max(WORD);
        let memory = domain.allocate(length, READABLE)?;
        let key = usable_key(domain, &memory);
        Ok(Self {
            start: memory.start().cast(),
            words: length / WORD,
            owner: Some(Owner::Domain(Rc::clone(domain), memory, key)),
            leaked: Cell::new(false),
        })
    }

    /// The domain that allocated the memory.
    fn domain(&self) -> Option<&Rc<Domain>> {
        match &self.owner {
            Some(Owner::Domain(domain, ..)) => Some(domain),
            _ => None,
        }
    }

    /// The words of a short range that starts at one, which are copied one by one.
    #[inline]
    fn short(&self, offset: usize, length: usize) -> Option<&[AtomicU64]> {
        let is_short = length <= SHORT && offset.is_multiple_of(WORD);
        if is_short { self.words().get(offset / WORD..) } else { None }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `owner` keeps `words` aligned, initialized words alive, and everyone else
        // accesses them as atomic words, too.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn memory(&self) -> Result<&Memory, MemoryError> {
        match &self.owner {
            Some(Owner::Process(_, Some(memory)) | Owner::Domain(_, memory, _)) => Ok(memory),
            _ => Err(MemoryError::Empty),
        }
    }

    fn register(&self, domain: &Domain, access: Access) -> Result<Memory, MemoryError> {
        let length = size_of_val(self.words());
        // SAFETY: the range is memory of `self.owner`, which is not freed until every registration
        // was deregistered with `Ok` (the invariant of `Storage`; a `Grant` keeps the `Storage`).
        // This process accesses the range only through the methods of `Memory`, and as whole words
        // by atomics, as these do.
        unsafe { domain.register(self.start.cast(), length, access) }
    }

    /// Deregisters `memory`, a registration of the words.
    fn deregister(&self, memory: Memory) {
        if memory.deregister().is_err() {
            self.leaked.set(true);
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let owner = match self.owner.take() {
            Some(Owner::Process(allocation, Some(local))) => {
                self.deregister(local);
                Some(Owner::Process(allocation, None))
            }
            owner => owner,
        };
        if self.leaked.get() {
            std::mem::forget(owner);
        }
    }
}

impl Inner {
    fn deregister_all(&self) {
        let storage = self.storage.borrow();
        for registration in self.registrations.take() {
            storage.deregister(registration.memory);
        }
    }

    /// Makes the peers' keys useless. Memory of a domain is replaced, unless a peer may write to
    /// it.
    fn revoke(&self) {
        self.deregister_all();
        let mut storage = self.storage.borrow_mut();
        let Some(domain) = storage.domain() else { return };
        let new = Storage::allocate(self.length, domain).or_else(|_| Storage::new(self.length));
        if let (Ok(new), 1) = (new, Rc::strong_count(&storage)) {
            for (to, from) in new.words().iter().zip(storage.words()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            *storage = Rc::new(new);
        } else {
            self.stale.set(true);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.deregister_all();
    }
}

/// The right of a peer to write a buffer. It ends when this is dropped.
pub struct Grant {
    /// Taken when it is dropped.
    memory: Option<Memory>,
    storage: Rc<Storage>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.storage.deregister(memory);
        }
    }
}

impl Payload for Buffer {
    type Grant = Grant;

    #[inline]
    fn len(&self) -> usize {
        self.0.length
    }

    #[inline]
    fn read(&self, offset: usize, target: &mut [u8]) {
        let length = target.len().min(self.0.length.saturating_sub(offset));
        // Inside, by the length.
        let _ = Buffer::read(self, offset, &mut target[..length]);
    }

    #[inline(always)]
    fn write(&self, offset: usize, source: &[u8]) {
        if let (0, Ok(word)) = (offset, source.try_into())
            && let Some(first) = self.0.storage.borrow().words().first()
            && WORD <= self.0.length
        {
            return first.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        let length = source.len().min(self.0.length.saturating_sub(offset));
        // Inside, by the length.
        let _ = Buffer::write(self, offset, &source[..length]);
    }

    fn share(&self) {
        self.0.shares.set(self.0.shares.get() + 1);
    }

    fn unshare(&self, revoke: bool) {
        let inner = &self.0;
        let left = inner.shares.get().saturating_sub(1);
        inner.shares.set(left);
        if revoke {
            inner.stale.set(true);
        }
        if left == 0 && inner.stale.replace(false) {
            inner.revoke();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("length", &self.0.length).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("memory", &self.memory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_outside_are_refused() {
        let buffer = Buffer::from_bytes(&[1, 2, 3]).unwrap();
        assert!(buffer.write(2, &[0, 0]).is_err() && buffer.read(usize::MAX, &mut [0]).is_err());
        Payload::write(&buffer, 2, &[9, 9]);
        let mut target = [7; 3];
        Payload::read(&buffer, 1, &mut target);
        assert_eq!((buffer.to_vec(), target), (vec![1, 2, 9], [2, 9, 7]));
        assert!(Buffer::new(0).unwrap().is_empty());
    }

    /// A program may allocate what a peer announces.
    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        let shm = Rc::new(Domain::open(&"shm/memory".parse().unwrap()).unwrap());
        for length in [1 << 50, 1 << 62, 1 << 63, usize::MAX] {
            let error = Buffer::new(length).unwrap_err();
            assert!(matches!(error, MemoryError::NoMemory { .. }), "{length:#x}: {error}");
            assert!(Buffer::allocate(length, &shm).is_err(), "{length:#x}");
        }
    }

    #[test]
    fn a_registration_is_kept_until_it_is_stale_and_unused() {
        let domain = Rc::new(Domain::open(&"tcp/lo".parse().unwrap()).unwrap());
        let buffer = Buffer::from_bytes(&[5; 100]).unwrap();
        let key = |buffer: &Buffer| {
            buffer.registered(&domain, |_, key| key.map(<[u8]>::to_vec)).unwrap().expect("shared")
        };
        let first = key(&buffer);
        assert_eq!(key(&buffer), first);
        buffer.share();
        buffer.share();
        buffer.unshare(true);
        assert_eq!(key(&buffer), first, "another announcement uses it");
        buffer.unshare(false);
        assert_ne!(key(&buffer), first, "revoked");
    }

    #[test]
    fn memory_that_peers_cannot_map_has_no_key() {
        let shm = Rc::new(Domain::open(&"shm/memory".parse().unwrap()).unwrap());
        let buffer = Buffer::new(10).unwrap();
        assert!(buffer.registered(&shm, |_, key| key.is_none()).unwrap());
        assert!(buffer.grant(&shm).is_none());
    }

    #[test]
    fn memory_of_a_domain_is_replaced_when_peers_lose_their_keys() {
        let shm = Rc::new(Domain::open(&"shm/memory".parse().unwrap()).unwrap());
        let cma = Rc::new(Domain::open(&"cma/memory".parse().unwrap()).unwrap());
        let buffer = Buffer::allocate(5000, &shm).unwrap();
        let pattern: Vec<_> = (0..5000).map(|at| at as u8).collect();
        buffer.write(0, &pattern).unwrap();
        let key = |domain| {
            let key = buffer.registered(domain, |_, key| key.map(<[u8]>::to_vec));
            (key.unwrap().expect("peers read it"), buffer.address())
        };
        let (first, other) = (key(&shm), key(&cma));
        buffer.share();
        let (grant, _) = buffer.grant(&cma).expect("peers write it");
        buffer.unshare(true);
        assert_eq!(key(&shm), first, "a peer may be writing to it");
        drop(grant);
        buffer.share();
        buffer.unshare(false);
        assert!(key(&shm) != first && key(&cma) != other, "revoked");
        assert_eq!(buffer.to_vec(), pattern);
    }
}
