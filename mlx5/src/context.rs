//! An open device: its capabilities, protection domains and UAR pages.

use core::any::Any;
use core::cell::OnceCell;
use core::ptr::NonNull;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crate::backend::{Backend, commands};
use crate::channel::shared_memory::SharedMemory;
use crate::channel::{self, CommandChannel, DeviceEvents, Object};
use crate::doorbell::{Half, SharedRegister};
use crate::error::Error;
#[cfg(feature = "verbs")]
use crate::error::system;
use crate::object_events::{AllEvents, Hub};
use crate::trial::Trials;
use crate::values::{Capabilities, Port, PortAddress, PortOptions};

/// An open device.
#[derive(Clone, Debug)]
#[must_use = "dropping the last handle closes the device"]
pub struct Context(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    backend: Backend,
    capabilities: Capabilities,
    port: Port,
    key_variant: AtomicU8,
    targets: AtomicU8,
    /// Of queues that are created by commands.
    queue_memory: SharedMemory,
    /// The events of objects, since the first was created; `None` if there are none.
    objects: OnceLock<Option<Arc<Hub>>>,
    /// `None` if the device is not tested.
    trials: Option<Arc<Trials>>,
}

impl Context {
    /// Opens the device at the other end of `channel`.
    ///
    /// # Errors
    /// If the device does not respond as an mlx5 device does.
    pub fn open(channel: impl CommandChannel + 'static) -> Result<Self, Error> {
        Self::over(channel, None)
    }

    /// As [`Self::open`], for a device whose families of objects are [tested](Self::test) before
    /// their first use.
    ///
    /// # Errors
    /// As there.
    pub fn open_tested(channel: impl CommandChannel + 'static) -> Result<Self, Error> {
        Self::over(channel, Some(Arc::default()))
    }

    /// As [`Self::open`], with the tests of the device.
    pub(crate) fn over(
        channel: impl CommandChannel + 'static,
        trials: Option<Arc<Trials>>,
    ) -> Result<Self, Error> {
        let capabilities = commands::capabilities(&channel)?;
        let port = commands::port(&channel, PortOptions::default())?;
        Ok(Self::new(Backend::Commands(Box::new(channel)), capabilities, port, trials))
    }

    pub(crate) fn new(
        backend: Backend,
        capabilities: Capabilities,
        port: Port,
        trials: Option<Arc<Trials>>,
    ) -> Self {
        // Random, so that a key cannot be derived from its index.
        let variant = RandomState::new().hash_one(0_u8) as u8;
        let (key_variant, targets) = (AtomicU8::new(variant), AtomicU8::new(variant));
        let queue_memory = SharedMemory::default();
        Self(Arc::new(Shared {
            backend,
            capabilities,
            port,
            key_variant,
            targets,
            queue_memory,
            objects: OnceLock::new(),
            trials,
        }))
    }

    /// The capabilities of the device.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// Returns whether completions carry the value of
    /// [`RcConfig::user_index`](crate::RcConfig::user_index). If not, libmlx5 assigns indices,
    /// counting from 0 over all queues, and does not report them.
    pub fn takes_user_index(&self) -> bool {
        match self.backend() {
            Backend::Commands(_) => true,
            #[cfg(feature = "verbs")]
            Backend::InitObj(_) => false,
        }
    }

    /// The port in use, with its default GID and partition.
    pub fn port(&self) -> &Port {
        &self.0.port
    }

    /// The events of the device and its ports, or `None` if the channel has none.
    ///
    /// # Errors
    /// If the kernel refused.
    pub fn device_events(&self) -> Result<Option<Box<dyn DeviceEvents>>, Error> {
        match self.backend() {
            Backend::Commands(channel) => {
                let Some(device) = channel.device_events()? else { return Ok(None) };
                let Some(objects) = self.object_events() else { return Ok(Some(device)) };
                let all = AllEvents::new(device, Arc::clone(objects));
                let failed = |source| Error::System { operation: "watching the device", source };
                Ok(Some(Box::new(all.map_err(failed)?)))
            }
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => Ok(Some(device.events())),
        }
    }

    /// Reads the events of queue pairs and completion queues that have arrived, without waiting,
    /// for [`RcQueuePair::is_drained`](crate::RcQueuePair::is_drained). It takes a lock and system
    /// calls.
    pub fn read_queue_events(&self) {
        if let Some(Some(objects)) = self.0.objects.get() {
            objects.read();
        }
    }

    /// The events of objects that commands create.
    pub(crate) fn object_events(&self) -> Option<&Arc<Hub>> {
        let open = || match self.backend() {
            Backend::Commands(_) => {
                let failed = |error: &io::Error| {
                    tracing::debug!(%error, "events of queues are not delivered");
                };
                Hub::new().inspect_err(failed).ok().map(Arc::new)
            }
            #[cfg(feature = "verbs")]
            Backend::InitObj(_) => None,
        };
        self.0.objects.get_or_init(open).as_ref()
    }

    /// The port in use, with the GID and the partition that `options` names, for
    /// [`RcConfig::port`](crate::RcConfig::port).
    ///
    /// # Errors
    /// If an entry does not exist.
    pub fn choose_port(&self, options: PortOptions) -> Result<Port, Error> {
        match self.backend() {
            Backend::Commands(channel) => commands::port(&**channel, options),
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => device.choose_port(options),
        }
    }

    /// The kernel's name of the device, such as `mlx5_0`; `None` for `soft0`.
    pub fn device_name(&self) -> Option<&str> {
        match self.backend() {
            Backend::Commands(channel) => channel.device_name(),
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => Some(device.name()),
        }
    }

    /// The address at which peers reach the port in use.
    pub fn port_address(&self) -> PortAddress {
        self.0.port.address
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }

    /// Fails if `other` is another context: object numbers of one context name other objects in
    /// another.
    pub(crate) fn owns(&self, other: &Self) -> Result<(), Error> {
        if Arc::ptr_eq(&self.0, &other.0) { Ok(()) } else { Self::foreign() }
    }

    /// The error for an object of another device.
    pub(crate) fn foreign<T>() -> Result<T, Error> {
        Err(Error::parameter("device", 0u32, "the same for all objects"))
    }

    /// The tests of the device, if it is tested.
    pub(crate) fn trials(&self) -> Option<&Trials> {
        self.0.trials.as_deref()
    }

    /// The memory of queues that are created by commands.
    pub(crate) fn queue_memory(&self) -> &SharedMemory {
        &self.0.queue_memory
    }

    /// The turn of the next target of DC among the bonded ports.
    pub(crate) fn next_target(&self) -> u8 {
        self.0.targets.fetch_add(1, Ordering::Relaxed)
    }

    /// The low byte of the next mkey. It differs from key to key, so that a stale key of a reused
    /// index fails.
    pub(crate) fn next_key_variant(&self) -> u8 {
        self.0.key_variant.fetch_add(1, Ordering::Relaxed)
    }
}

/// A protection domain: mkeys and queue pairs work together only within one domain.
#[derive(Clone, Debug)]
#[must_use = "dropping the last handle frees it"]
pub struct ProtectionDomain(Arc<PdShared>);

#[derive(Debug)]
struct PdShared {
    object: DomainObject,
    context: Context,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) enum DomainObject {
    Commands {
        number: u32,
        _object: Box<dyn Object>,
    },
    /// A domain of the kernel, which registers its memory.
    #[cfg(feature = "verbs")]
    Verbs {
        number: u32,
        domain: barewire_verbs::ProtectionDomain,
    },
}

impl DomainObject {
    /// The number in commands.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Commands { number, .. } => *number,
            #[cfg(feature = "verbs")]
            Self::Verbs { number, .. } => *number,
        }
    }

    #[cfg(feature = "verbs")]
    fn of_verbs(domain: barewire_verbs::ProtectionDomain) -> Result<Self, Error> {
        let number =
            domain.number().map_err(|error| system("opening a protection domain", error))?;
        Ok(Self::Verbs { number, domain })
    }
}

impl ProtectionDomain {
    /// Allocates a domain (ibv_alloc_pd, or ALLOC_PD on the software HCA).
    ///
    /// # Errors
    /// If the device refused.
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        let object = match context.backend() {
            Backend::Commands(channel) => {
                #[cfg(feature = "verbs")]
                if let Some(domain) = channel.kernel_domain()? {
                    let object = DomainObject::of_verbs(domain)?;
                    return Ok(Self(Arc::new(PdShared { object, context: context.clone() })));
                }
                let (object, number) = commands::allocate_pd(&**channel)?;
                DomainObject::Commands { number, _object: object }
            }
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => DomainObject::of_verbs(device.allocate_pd()?)?,
        };
        Ok(Self(Arc::new(PdShared { object, context: context.clone() })))
    }

    /// The device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns whether both are handles to one domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn object(&self) -> &DomainObject {
        &self.0.object
    }
}

/// A BlueFlame register of one thread. The queues that use it share it without a lock, so none of
/// them may leave the thread. Before a post writes its WQE to the register, it drains the burst
/// that another queue may have left in the write-combining buffer
/// ([`crate::barrier::doorbell_record_before_doorbell`]).
#[derive(Clone, Debug)]
#[must_use = "dropping the last handle frees it"]
pub struct Uar(Rc<UarShared>);

#[derive(Debug)]
struct UarShared {
    own: Registers,
    /// The next half of `own`.
    half: OnceCell<Half>,
    /// A second register, for queues of several threads, allocated when the first of them is
    /// created.
    shared: OnceCell<Registers>,
    lock: OnceCell<Arc<SharedRegister>>,
    context: Context,
}

/// A register as the context's [`Backend`] represents it.
#[derive(Clone, Debug)]
pub(crate) enum Registers {
    Page(Arc<dyn channel::Uar>),
    /// `None` for the register of the context.
    #[cfg(feature = "verbs")]
    ThreadDomain(Option<barewire_verbs::dv::ThreadDomain>),
}

impl Registers {
    fn allocate(context: &Context) -> Result<Self, Error> {
        Ok(match context.backend() {
            Backend::Commands(channel) => Self::Page(Arc::from(channel.allocate_uar()?)),
            #[cfg(feature = "verbs")]
            Backend::InitObj(device) => Self::ThreadDomain(device.allocate_register()?),
        })
    }
}

impl Uar {
    /// Allocates a register.
    ///
    /// # Errors
    /// If the device has none left.
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        let own = Registers::allocate(context)?;
        let (half, shared, lock) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Ok(Self(Rc::new(UarShared { own, half, shared, lock, context: context.clone() })))
    }

    /// The device that the register belongs to.
    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// The register for queues of this thread.
    pub(crate) fn own(&self) -> &Registers {
        &self.0.own
    }

    /// The next half of `register`: the one of all queues of this thread, if it is theirs.
    pub(crate) fn half(&self, register: NonNull<u8>) -> Half {
        let half = self.0.half.get_or_init(|| Half::new(register));
        if half.is_of(register) { half.clone() } else { Half::new(register) }
    }

    /// The register for queues of several threads.
    pub(crate) fn shared(&self) -> Result<&Registers, Error> {
        if let Some(shared) = self.0.shared.get() {
            return Ok(shared);
        }
        let shared = Registers::allocate(&self.0.context)?;
        Ok(self.0.shared.get_or_init(|| shared))
    }

    /// The lock of [`Self::shared`], whose address is `register`.
    pub(crate) fn lock(&self, register: NonNull<u8>) -> Arc<SharedRegister> {
        let share = || {
            let keep: Arc<dyn Any + Send + Sync> = Arc::new(self.0.shared.get().cloned());
            // SAFETY: `keep` keeps the register mapped, and queues write it only under this lock.
            unsafe { SharedRegister::new(register, keep) }
        };
        self.0.lock.get_or_init(share).clone()
    }
}
