//! Memory windows: the dynamic API.

use std::ops::Range;

use crate::base::attributes::Flags;
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, PostError};
use crate::base::memory::Access;
use crate::base::status::Posted;
use crate::dynamic::domain::{self, Domain, having};
use crate::dynamic::endpoint::{self, Endpoint};
use crate::dynamic::memory::{self, Memory};
use crate::transport;

/// A memory window: a key that opens a part of a region to the peer of one endpoint, for a time.
///
/// Binding a window to memory and invalidating it are posts of an endpoint, and so much cheaper
/// than a registration. Each bind has a new key; the peer uses it as it uses the key of a region,
/// with the addresses of the region. Over `rc_mlx5` only the peer of the endpoint can use it. Over
/// the others, every peer that has the key can: for `xrc_mlx5` and `dc_mlx5`, the requests of peers
/// do not arrive at the queue that binds. Accesses outside the range, without the right, or after
/// the invalidation are refused: the operation and its endpoint fail, or over `self` the post.
///
/// If the endpoint that bound the window fails or is closed, the window is free again: it can be
/// bound by another endpoint, which takes a command of the device. The old key may still give
/// access until then: over `rc_mlx5` only to the peer of a later endpoint with the same queue pair
/// number, over the other transports to every peer that has the key. [`Self::bind`] and
/// [`Self::invalidate`], by any other endpoint, and dropping the window end this access. Let the
/// endpoint finish its posts (flush) before it is closed: those behind a change of the window may
/// fail.
///
/// Windows exist on transports with [`Flags::WINDOWS`]. Dropping a window ends the access.
///
/// ```
/// use barewire::{Access, Domain, Interface, InterfaceConfig, PostError, Window, Worker};
///
/// let mut worker = Worker::new();
/// let domain = Domain::open(&"self/memory".parse()?)?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let endpoint = interface.connect(&interface.address())?;
/// let memory = domain.allocate(4096, Access::LOCAL_WRITE)?;
///
/// let mut window = Window::new(&domain)?;
/// let _ = window.bind(&endpoint, &memory, 64..128, Access::REMOTE_WRITE, None)?;
/// let key = domain.unpack_key(&window.pack_key().expect("it is bound"))?;
/// endpoint.put_short(b"granted", memory.address() + 64, &key)?;
/// let _ = window.invalidate(&endpoint, None)?;
/// let refused = endpoint.put_short(b"revoked", memory.address() + 64, &key);
/// assert_eq!(refused, Err(PostError::KeyExpired));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The window borrows the memory, which therefore cannot be freed before it:
///
/// ```compile_fail,E0505
/// use barewire::{Access, ChangeError, Domain, Endpoint, Window};
///
/// fn open(domain: &Domain, endpoint: &Endpoint) -> Result<(), ChangeError> {
///     let memory = domain.allocate(4096, Access::all())?;
///     let mut window = Window::new(domain)?;
///     let _ = window.bind(endpoint, &memory, 0..64, Access::REMOTE_READ, None)?;
///     drop(memory);
///     let _ = window.invalidate(endpoint, None)?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the peer's access"]
pub struct Window<'m>(Kind<'m>);

#[derive(Debug)]
enum Kind<'m> {
    Self_(transport::self_::Window<'m>),
    #[cfg(feature = "tcp")]
    Tcp(transport::tcp::Window<'m>),
    #[cfg(feature = "mlx5")]
    Mlx5(transport::mlx5::Window<'m>),
}

impl<'m> Window<'m> {
    /// Creates a window, which is free.
    ///
    /// # Errors
    /// [`ChangeError::Unsupported`] names the transports that have windows; [`ChangeError::Key`] if
    /// the device refuses.
    pub fn new(domain: &Domain) -> Result<Self, ChangeError> {
        match &domain.0 {
            domain::Kind::Self_(domain) => {
                Ok(Self(Kind::Self_(transport::self_::Window::new(domain))))
            }
            #[cfg(feature = "tcp")]
            domain::Kind::Tcp(domain) => Ok(Self(Kind::Tcp(transport::tcp::Window::new(domain)))),
            #[cfg(feature = "mlx5")]
            domain::Kind::RcMlx5(domain) => {
                transport::mlx5::Window::new(domain).map(|window| Self(Kind::Mlx5(window)))
            }
            #[cfg(feature = "mlx5")]
            domain::Kind::XrcMlx5(domain) | domain::Kind::DcMlx5(domain) => {
                transport::mlx5::Window::new_shared(domain).map(|window| Self(Kind::Mlx5(window)))
            }
            #[allow(unreachable_patterns, reason = "a build may have these transports only")]
            _ => Err(unsupported(domain, Flags::WINDOWS, "windows")),
        }
    }

    /// Posts the bind of the window to `range` of `memory`, with the rights `access` for the peer of
    /// `endpoint`. They need not be rights of the memory, except that puts and atomics need memory
    /// that may be written. Later posts of this endpoint take effect after the bind, so that one of
    /// them may send the key. `completion` counts the bind down when it is done.
    ///
    /// # Errors
    /// [`ChangeError::Bound`] if the window is bound; [`ChangeError::Post`], as of other posts;
    /// [`ChangeError`]
    pub fn bind(
        &mut self,
        endpoint: &Endpoint,
        memory: &'m Memory,
        range: Range<usize>,
        access: Access,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        match (&mut self.0, &endpoint.0, &memory.0) {
            (Kind::Self_(window), endpoint::Kind::Self_(endpoint), memory::Kind::Self_(memory)) => {
                window.bind(endpoint, memory, range, access, completion)
            }
            #[cfg(feature = "tcp")]
            (Kind::Tcp(window), endpoint::Kind::Tcp(endpoint), memory::Kind::Tcp(memory)) => {
                window.bind(endpoint, memory, range, access, completion)
            }
            #[cfg(feature = "mlx5")]
            (Kind::Mlx5(window), endpoint, memory) => {
                let memory = memory.of_mlx5().ok_or(PostError::ForeignMemory)?;
                match endpoint {
                    endpoint::Kind::RcMlx5(endpoint) => {
                        window.bind(endpoint, memory, range, access, completion)
                    }
                    endpoint::Kind::XrcMlx5(endpoint) => {
                        window.bind(endpoint, memory, range, access, completion)
                    }
                    endpoint::Kind::DcMlx5(endpoint) => {
                        window.bind(endpoint, memory, range, access, completion)
                    }
                    _ => Err(PostError::ForeignMemory.into()),
                }
            }
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            _ => Err(PostError::ForeignMemory.into()),
        }
    }

    /// Posts the end of the peer's access. When the post is done, the peer's device, or post, is
    /// refused the key. `endpoint` is the one that bound the window; if that one has ended, any.
    /// The endpoint can bind the window again at once, with a new key; another endpoint, when the
    /// post is done.
    ///
    /// # Errors
    /// [`ChangeError::Free`] if the window is not bound; [`ChangeError::OtherEndpoint`],
    /// [`ChangeError::Post`]
    pub fn invalidate(
        &mut self,
        endpoint: &Endpoint,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        match (&mut self.0, &endpoint.0) {
            (Kind::Self_(window), endpoint::Kind::Self_(endpoint)) => {
                window.invalidate(endpoint, completion)
            }
            #[cfg(feature = "tcp")]
            (Kind::Tcp(window), endpoint::Kind::Tcp(endpoint)) => {
                window.invalidate(endpoint, completion)
            }
            #[cfg(feature = "mlx5")]
            (Kind::Mlx5(window), endpoint::Kind::RcMlx5(endpoint)) => {
                window.invalidate(endpoint, completion)
            }
            #[cfg(feature = "mlx5")]
            (Kind::Mlx5(window), endpoint::Kind::XrcMlx5(endpoint)) => {
                window.invalidate(endpoint, completion)
            }
            #[cfg(feature = "mlx5")]
            (Kind::Mlx5(window), endpoint::Kind::DcMlx5(endpoint)) => {
                window.invalidate(endpoint, completion)
            }
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            _ => Err(ChangeError::OtherEndpoint),
        }
    }

    /// Returns the address by which the peer names the first byte: that of the byte in its region.
    /// `None` while the window is free.
    pub fn address(&self) -> Option<u64> {
        match &self.0 {
            Kind::Self_(window) => window.address(),
            #[cfg(feature = "tcp")]
            Kind::Tcp(window) => window.address(),
            #[cfg(feature = "mlx5")]
            Kind::Mlx5(window) => window.address(),
        }
    }

    /// Returns the bytes from which the peer creates its [`RemoteKey`](crate::RemoteKey). `None`
    /// while the window is free.
    pub fn pack_key(&self) -> Option<Vec<u8>> {
        match &self.0 {
            Kind::Self_(window) => window.pack_key(),
            #[cfg(feature = "tcp")]
            Kind::Tcp(window) => window.pack_key(),
            #[cfg(feature = "mlx5")]
            Kind::Mlx5(window) => window.pack_key(),
        }
    }
}

/// Returns the error of a transport without `what`, whose flag is `needs`.
#[cold]
pub(crate) fn unsupported(domain: &Domain, needs: Flags, what: &'static str) -> ChangeError {
    let (transport, instead) = (domain.transport(), having(needs));
    ChangeError::Unsupported { transport, what, instead }
}
