//! The domain: an address of this host, the job's key, and memory that a thread serves to peers.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use barewire_shared_bytes::SharedBytes;
use barewire_tcp::inbox::Inbox;
use barewire_tcp::interfaces::{self, NetworkInterface};
use barewire_tcp::key::KeyError as NoKey;
use barewire_tcp::leftover::Courier;
use barewire_tcp::listener::Limits;
use barewire_tcp::region::{Region, Regions, Rights};
use barewire_tcp::target::Target;
use barewire_tcp::{HostAddress, Key};
use thiserror::Error;

use super::ID;
use super::address::{self, RemoteKey};
use crate::base::config::Choice;
use crate::base::error::{ChangeError, ConnectError, KeyError, MemoryError, OpenError, Source};
use crate::base::fork::Maker;
use crate::base::memory::{Access, MemoryConfig, domain_tag, memory_access};
use crate::base::random;
use crate::transport;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pool::Block;

/// An address of this host, and the memory that is registered for it. Cloning gives another handle
/// to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    device: String,
    address: HostAddress,
    key: Key,
    /// The key is that of this process, which no other has.
    is_keyless: bool,
    /// Part of every key: a peer that connects to the target names it.
    number: u64,
    tag: u32,
    regions: Arc<Regions>,
    local: Mutex<Local>,
    /// A child by fork takes no lock, as a thread of the parent may hold it.
    maker: Maker,
    /// Started when memory is registered for remote access, or a key is packed.
    target: Mutex<Option<Target>>,
    /// Connections to the target are protected even if the peer does not request it.
    protected: AtomicBool,
}

/// Regions by the number that slices carry.
#[derive(Debug, Default)]
struct Local {
    next: u32,
    live: HashMap<u32, Arc<Region>>,
}

/// The address is reachable from other hosts, and there is no key.
#[derive(Debug, Error)]
#[error(
    "other hosts reach this address, and there is no key to authenticate peers: make one \
     (barewire key job.key) and give every process of the job BAREWIRE_KEY_FILE=job.key"
)]
struct Keyless;

/// The network interfaces of this host.
///
/// # Errors
/// [`OpenError::Device`] if the kernel does not list them.
pub fn devices() -> Result<Vec<NetworkInterface>, OpenError> {
    interfaces::list().map_err(|e| refused("*", "list the network interfaces", e))
}

/// The network interface of the route to `peer`, and the source address of the packets.
///
/// # Errors
/// [`OpenError::Device`] if there is no route.
pub fn toward(peer: impl Into<HostAddress>) -> Result<(NetworkInterface, HostAddress), OpenError> {
    let peer = peer.into();
    let source =
        interfaces::source_of(peer).map_err(|e| refused(&peer.to_string(), "find a route", e))?;
    let with_source =
        devices()?.into_iter().find(|interface| interface.addresses.contains(&source));
    // An address without an interface, such as 127.0.0.2.
    let nameless =
        || NetworkInterface { name: source.to_string(), addresses: vec![source], reason: None };
    Ok((with_source.unwrap_or_else(nameless), source))
}

impl Domain {
    /// Opens a network interface by its name, or an address of this host, with the key of the
    /// environment ([`Key::from_env`]). Without one, the loopback accepts only peers of this
    /// process.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`]; [`OpenError::Device`] if there is no usable key.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        let address = find(device)?;
        let no_key = |source: Source| refused(device, "find the job's key", source);
        let (key, is_keyless) = match Key::from_env().map_err(|e| no_key(e.into()))? {
            Some(key) => (key, false),
            None if address.is_loopback() => (process_key().map_err(|e| no_key(e.into()))?, true),
            None => return Err(no_key(Keyless.into())),
        };
        Ok(Self::new(device, address, key, is_keyless))
    }

    /// Opens a network interface, or an address of this host, with a key.
    pub fn open_with_key(device: &str, key: Key) -> Result<Self, OpenError> {
        Ok(Self::new(device, find(device)?, key, false))
    }

    fn new(device: &str, address: HostAddress, key: Key, is_keyless: bool) -> Self {
        Self(Arc::new(Shared {
            device: device.to_owned(),
            address,
            key,
            is_keyless,
            number: random::number(),
            tag: domain_tag(),
            regions: Arc::default(),
            local: Mutex::default(),
            maker: Maker::this_process(),
            target: Mutex::default(),
            protected: AtomicBool::new(!address.is_loopback()),
        }))
    }

    /// # Safety
    /// As [`Self::register`], until the memory or the owner, if there is one, is dropped.
    unsafe fn add(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: MemoryConfig,
        owner: Option<Allocation>,
    ) -> Result<Memory, MemoryError> {
        let (bytes, access) = (config.bytes(start, len)?, config.access());
        let refused =
            |source: std::io::Error| MemoryError::Device { length: len, source: source.into() };
        let shared = &*self.0;
        shared.serve_if(access).map_err(refused)?;
        let owner = owner.map(|allocation| Box::new(allocation) as Box<_>);
        // SAFETY: the caller's promise.
        let region = unsafe { Region::new(start, len, rights(access), owner) };
        let region = Arc::new(region.at(bytes.address()));
        let (token, number) = shared.add(&region).map_err(refused)?;
        Ok(Memory { bytes, access, region, token, number, domain: self.clone() })
    }

    /// Adds a region that is a part of others, until [`Self::end`].
    pub(super) fn add_entry(&self, region: Region, access: Access) -> Result<Entry, ChangeError> {
        let refused = |source: std::io::Error| ChangeError::Key(source.into());
        self.0.serve_if(access).map_err(refused)?;
        let region = Arc::new(region);
        let (token, number) = self.0.add(&region).map_err(refused)?;
        Ok(Entry { region, token, number })
    }

    /// Ends every access to a region, unless this is a forked child, in which the parent's stays.
    pub(super) fn end(&self, region: &Region, token: u64, number: u32) {
        if self.0.maker.is_parent() {
            return;
        }
        self.0.regions.remove(token);
        self.0.local().live.remove(&number);
        region.revoke();
    }

    /// Returns the bytes of the key of a region.
    pub(super) fn pack_token(&self, token: u64) -> Vec<u8> {
        let shared = &*self.0;
        // Without a target the key has port 0, which posts refuse.
        let _ = shared.serve();
        let port = shared.target().as_ref().map_or(0, |target| target.address().port());
        address::key(&RemoteKey { port, domain: shared.number, token }).bytes().to_vec()
    }

    /// The address of this host at which it is.
    pub fn address(&self) -> HostAddress {
        self.0.address
    }

    pub(super) fn key(&self) -> &Key {
        &self.0.key
    }

    /// Has the thread of this domain accept connections to the interface of this number. Returns the
    /// address at which it listens, the connections, and the handle by which others have it send.
    pub(super) fn accept_for(&self, number: u64) -> std::io::Result<(SocketAddr, Inbox, Courier)> {
        self.0.serve()?;
        let target = self.0.target();
        let target = target.as_ref().ok_or(std::io::ErrorKind::NotFound)?;
        Ok((target.address(), target.inbox(number)?, target.courier()))
    }

    /// Notes the address of an interface of this domain.
    pub(super) fn note(&self, listener: SocketAddr) {
        if self.0.is_keyless {
            keyless().insert(listener);
        }
    }

    /// Fails if the peer at this address cannot have the key of this domain.
    pub(super) fn check_key(&self, peer: SocketAddr) -> Result<(), ConnectError> {
        if !self.0.is_keyless || keyless().contains(&peer) {
            return Ok(());
        }
        let reason = "tcp needs a job key to reach another process: make one with barewire key job.key \
                      and give every process of the job BAREWIRE_KEY_FILE=job.key";
        let (peer, reason) = (peer.to_string(), reason.to_owned());
        Err(ConnectError::Unreachable { transport: ID, peer, reason })
    }

    /// Whether connections are to be protected by this setting.
    pub(super) fn wants_protection(&self, integrity: Choice) -> bool {
        match integrity {
            Choice::Auto => !self.address().is_loopback(),
            Choice::Yes => true,
            Choice::No => false,
        }
    }

    /// Applies the setting of an interface to the domain's memory. Returns whether connections are
    /// protected.
    pub(super) fn protect(&self, integrity: Choice) -> bool {
        let protected = self.wants_protection(integrity);
        if integrity != Choice::Auto {
            self.0.protected.store(protected, Ordering::Relaxed);
            if let Some(target) = self.0.target().as_ref() {
                target.protect(protected);
            }
        }
        protected
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    /// The region of a slice of this domain, unless it was deregistered.
    pub(super) fn region(&self, number: u32) -> Option<Arc<Region>> {
        self.0.local().live.get(&number).cloned()
    }

    pub(super) fn refused(&self, step: &'static str, error: impl Into<Source>) -> OpenError {
        refused(&self.0.device, step, error)
    }
}

impl transport::Domain for Domain {
    type Memory = Memory;
    type RemoteKey = RemoteKey;

    fn allocate(&self, len: usize, config: impl Into<MemoryConfig>) -> Result<Memory, MemoryError> {
        let allocation = Allocation::new(len)?;
        let start = allocation.start();
        // SAFETY: the region owns the memory, which is accessed only through the region and
        // `SharedBytes` of the same bounds.
        unsafe { self.add(start, len, config.into(), Some(allocation)) }
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        // SAFETY: the caller's promise; `Memory` revokes the region when it is deregistered or
        // dropped.
        unsafe { self.add(start, len, config.into(), None) }
    }

    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        address::unpack_key(bytes)
    }

    fn name(&self) -> &str {
        &self.0.device
    }
}

impl Shared {
    fn local(&self) -> MutexGuard<'_, Local> {
        // Every change is one map operation, so a poisoned map is consistent.
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self) -> MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region. Returns its numbers for peers and for slices.
    fn add(&self, region: &Arc<Region>) -> std::io::Result<(u64, u32)> {
        let token = self.regions.add(region)?;
        let mut local = self.local();
        let number = loop {
            let number = local.next;
            local.next = number.wrapping_add(1);
            if !local.live.contains_key(&number) {
                break number;
            }
        };
        local.live.insert(number, Arc::clone(region));
        Ok((token, number))
    }

    /// Starts the thread that serves peers if they have rights.
    fn serve_if(&self, access: Access) -> std::io::Result<()> {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if access.intersects(remote) { self.serve() } else { Ok(()) }
    }

    /// Starts the thread that serves peers, unless it runs.
    fn serve(&self) -> std::io::Result<()> {
        let mut target = self.target();
        if target.is_none() {
            let (key, regions) = (self.key.clone(), Arc::clone(&self.regions));
            let limits =
                Limits { protected: self.protected.load(Ordering::Relaxed), ..Limits::default() };
            *target = Some(Target::start(self.address, key, self.number, regions, limits)?);
        }
        Ok(())
    }
}

/// A region of the tables that is a part of others.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) region: Arc<Region>,
    pub(super) token: u64,
    /// For slices.
    pub(super) number: u32,
}

/// Returns the rights of peers.
pub(super) fn rights(access: Access) -> Rights {
    Rights {
        write: access.contains(Access::REMOTE_WRITE),
        read: access.contains(Access::REMOTE_READ),
        atomic: access.contains(Access::REMOTE_ATOMIC),
    }
}

fn refused(device: &str, step: &'static str, error: impl Into<Source>) -> OpenError {
    OpenError::Device { device: device.to_owned(), step, source: error.into() }
}

/// The address of a network interface, or the address itself.
fn find(device: &str) -> Result<HostAddress, OpenError> {
    let interfaces = devices()?;
    if let Some(interface) = interfaces.iter().find(|interface| interface.name == device)
        && let Some(address) = interface.addresses.first()
    {
        return Ok(*address);
    }
    if let Ok(address) = device.parse::<HostAddress>()
        // All of 127.0.0.0/8 is local.
        && (address.is_loopback() || interfaces.iter().any(|interface| interface.addresses.contains(&address)))
    {
        return Ok(address);
    }
    let known = interfaces.iter().filter(|interface| !interface.addresses.is_empty());
    let known: Vec<String> = known
        .map(|interface| {
            let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
            format!("{} ({})", interface.name, addresses.join(" "))
        })
        .collect();
    let mut known = known.join(", ");
    if device == "route" {
        known += "; the command line's 'route' is what transport::tcp::toward returns for a peer";
    }
    Err(OpenError::UnknownDevice { transport: ID, device: device.to_owned(), known })
}

/// The addresses of interfaces of this process without a key, also of closed ones: a connection to
/// such an address fails in its turn. The set is bounded by the number of ports.
fn keyless() -> MutexGuard<'static, HashSet<SocketAddr>> {
    static ADDRESSES: LazyLock<Mutex<HashSet<SocketAddr>>> = LazyLock::new(Mutex::default);
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key for connections within this process.
fn process_key() -> Result<Key, NoKey> {
    static KEY: OnceLock<Key> = OnceLock::new();
    if let Some(key) = KEY.get() {
        return Ok(key.clone());
    }
    let key = Key::generate()?;
    Ok(KEY.get_or_init(|| key).clone())
}

/// A registered region. Dropping it revokes every key to it: operations in flight fail, and the
/// memory is not accessed any more.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory {
    bytes: SharedBytes,
    access: Access,
    region: Arc<Region>,
    token: u64,
    number: u32,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.number
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain.tag()
    }

    /// Deregisters the region. After `Ok`, no key and no operation in flight accesses the memory:
    /// allocated memory is freed, and registered memory belongs to the caller again.
    ///
    /// # Errors
    /// None: there is no device that could refuse.
    pub fn deregister(self) -> Result<(), MemoryError> {
        // The drop waits for accesses in progress.
        drop(self);
        Ok(())
    }

    /// The bytes from which the peer's [`unpack_key`](crate::Domain::unpack_key) makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        self.domain.pack_token(self.token)
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.domain.end(&self.region, self.token, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Domain as _;

    #[test]
    fn an_address_that_others_reach_needs_a_key() {
        let text = Keyless.to_string();
        assert!(
            text.contains("BAREWIRE_KEY_FILE") && text.contains("barewire key job.key"),
            "{text}"
        );
        assert!(matches!(Domain::open("nosuch0"), Err(OpenError::UnknownDevice { .. })));
        assert!(matches!(Domain::open("192.0.2.1"), Err(OpenError::UnknownDevice { .. })));
        assert_eq!(Domain::open("127.0.0.9").unwrap().address().to_string(), "127.0.0.9");
    }

    #[test]
    fn a_thread_serves_memory_that_peers_may_reach() {
        let domain = Domain::open("lo").unwrap();
        let private = domain.allocate(8, Access::LOCAL_WRITE).unwrap();
        assert!(domain.0.target().is_none());
        let shared = domain.allocate(8, Access::REMOTE_READ).unwrap();
        assert!(domain.0.target().is_some());
        for memory in [&private, &shared] {
            assert_ne!(address::unpack_key(&memory.pack_key()).unwrap().port, 0);
        }
        assert!(domain.region(shared.number).is_some());
        let number = shared.number;
        drop(shared);
        assert!(domain.region(number).is_none());
    }
}
