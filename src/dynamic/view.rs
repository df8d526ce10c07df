//! Views, several ranges of memory under one key: the dynamic API.

use std::ops::Range;

use crate::base::attributes::Flags;
use crate::base::completion::Completion;
use crate::base::error::{ChangeError, MemoryError, PostError};
use crate::base::interleaved;
use crate::base::memory::{Access, Slice};
use crate::base::status::Posted;
use crate::dynamic::domain::{self, Domain};
use crate::dynamic::endpoint::{self, Endpoint};
use crate::dynamic::memory::Memory;
use crate::dynamic::transport::Transport;
use crate::dynamic::window::unsupported;
use crate::transport;

/// Ranges of memory under one key, whose addresses start at 0: joined one after the other, or
/// interleaved in a pattern that repeats, such as the column of a matrix. The device gathers and
/// scatters; over `self`, `shm` and `tcp`, the library does.
///
/// A view is used as memory is: peers create a [`RemoteKey`](crate::RemoteKey) from
/// [`Self::pack_key`], and [`Self::slice`] is for zero-copy operations of this process. Its layout is
/// changed by a post of an endpoint. Later posts of this endpoint take effect after the change;
/// others may use the view once the change is done. Each layout has a new key, and the old one is
/// refused.
///
/// Views exist on transports with [`Flags::VIEWS`]. Where there are none,
/// [`Memory::strided`] returns the slices of a pattern, for as many as one operation takes.
///
/// ```
/// use barewire::{Access, Domain, Endpoint, FlushMode, Interleaved, InterfaceConfig, Interface, View, Worker};
///
/// let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
/// let mut worker = Worker::new();
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
/// here.connect(&there.address())?;
/// there.connect(&here.address())?;
///
/// // A matrix of 100 rows of 16 bytes. Its view is the column of bytes 4 to 7.
/// let matrix = domain.allocate(1600, Access::all())?;
/// let column = Interleaved { memory: &matrix, offset: 4, bytes: 4, stride: 16 };
/// let mut view = View::new(&domain, 2)?;
/// let _ = view.stride(&here, Access::REMOTE_WRITE, column, 100, None)?;
/// worker.flush(&here, FlushMode::Local)?;
/// let key = domain.unpack_key(&view.pack_key())?;
/// there.put_short(b"rows", 4 * 99, &key)?;
/// worker.flush(&there, FlushMode::Remote)?;
/// let mut last = [0; 4];
/// matrix.read(99 * 16 + 4, &mut last)?;
/// assert_eq!((&last, view.len()), (b"rows", 400));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The view borrows the memory, which therefore cannot be freed before it:
///
/// ```compile_fail,E0505
/// use barewire::{Access, ChangeError, Domain, Endpoint, View};
///
/// fn join(domain: &Domain, endpoint: &Endpoint) -> Result<(), ChangeError> {
///     let memory = domain.allocate(4096, Access::all())?;
///     let mut view = View::new(domain, 2)?;
///     let _ = view.join(endpoint, Access::REMOTE_READ, &[(&memory, 0..8), (&memory, 64..72)], None)?;
///     drop(memory);
///     let _ = view.pack_key();
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it destroys the key"]
pub struct View<'m>(Kind<'m>);

#[derive(Debug)]
enum Kind<'m> {
    Self_(transport::self_::View<'m>),
    #[cfg(feature = "shm")]
    Shm(transport::shm::View<'m>),
    #[cfg(feature = "tcp")]
    Tcp(transport::tcp::View<'m>),
    #[cfg(feature = "mlx5")]
    Mlx5(transport::mlx5::View<'m>),
}

/// A range of an interleaved view. `M` is the type of the memory.
pub type Interleaved<'m, M = Memory> = interleaved::Interleaved<'m, M>;

/// `posting!((view, endpoint), of => expression)`: the expression with the view and the endpoint of
/// one transport, and the function `of` to its memory.
macro_rules! posting {
    (($view:ident, $endpoint:ident), $of:ident => $post:expr) => {
        match (&mut $view.0, &$endpoint.0) {
            (Kind::Self_($view), endpoint::Kind::Self_($endpoint)) => {
                let $of = of::<transport::self_::Self_>;
                $post
            }
            #[cfg(feature = "shm")]
            (Kind::Shm($view), endpoint::Kind::Shm($endpoint)) => {
                let $of = of::<transport::shm::Shm>;
                $post
            }
            #[cfg(feature = "tcp")]
            (Kind::Tcp($view), endpoint::Kind::Tcp($endpoint)) => {
                let $of = of::<transport::tcp::Tcp>;
                $post
            }
            #[cfg(feature = "mlx5")]
            (Kind::Mlx5($view), endpoint) => {
                let $of = of_mlx5;
                match endpoint {
                    endpoint::Kind::RcMlx5($endpoint) => $post,
                    endpoint::Kind::XrcMlx5($endpoint) => $post,
                    endpoint::Kind::DcMlx5($endpoint) => $post,
                    _ => Err(PostError::ForeignMemory.into()),
                }
            }
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            _ => Err(PostError::ForeignMemory.into()),
        }
    };
}

/// `with!(view, inner => expression)`: the expression with the view of the transport.
macro_rules! with {
    ($view:expr, $inner:ident => $result:expr) => {
        match &$view.0 {
            Kind::Self_($inner) => $result,
            #[cfg(feature = "shm")]
            Kind::Shm($inner) => $result,
            #[cfg(feature = "tcp")]
            Kind::Tcp($inner) => $result,
            #[cfg(feature = "mlx5")]
            Kind::Mlx5($inner) => $result,
        }
    };
}

impl<'m> View<'m> {
    /// Creates a view without a layout, with room for `entries` ranges, at most 24; an interleaved
    /// layout takes one more. Over devices set up by `init_obj`, views have room for 4.
    ///
    /// # Errors
    /// [`ChangeError::Unsupported`] names the transports that have views; [`ChangeError::Key`] if
    /// the device refuses; [`ChangeError::Entries`] if their number is out of range.
    pub fn new(domain: &Domain, entries: usize) -> Result<Self, ChangeError> {
        match &domain.0 {
            domain::Kind::Self_(domain) => {
                transport::self_::View::new(domain, entries).map(|view| Self(Kind::Self_(view)))
            }
            #[cfg(feature = "shm")]
            domain::Kind::Shm(domain) => {
                transport::shm::View::new(domain, entries).map(|view| Self(Kind::Shm(view)))
            }
            #[cfg(feature = "tcp")]
            domain::Kind::Tcp(domain) => {
                transport::tcp::View::new(domain, entries).map(|view| Self(Kind::Tcp(view)))
            }
            #[cfg(feature = "mlx5")]
            domain::Kind::RcMlx5(domain)
            | domain::Kind::XrcMlx5(domain)
            | domain::Kind::DcMlx5(domain) => {
                transport::mlx5::View::new(domain, entries).map(|view| Self(Kind::Mlx5(view)))
            }
            #[allow(unreachable_patterns, reason = "a build may have these transports only")]
            _ => Err(unsupported(domain, Flags::VIEWS, "views")),
        }
    }

    /// Posts a layout: the ranges one after the other. The memory has the rights `access`.
    ///
    /// # Errors
    /// [`ChangeError::Post`], as of other posts; [`ChangeError`]
    pub fn join(
        &mut self,
        endpoint: &Endpoint,
        access: Access,
        ranges: &[(&'m Memory, Range<usize>)],
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let view = self;
        posting!((view, endpoint), of => {
            let range =
                |(memory, range): &(&'m Memory, Range<usize>)| Ok((of(memory)?, range.clone()));
            let ranges = ranges.iter().map(range).collect::<Result<Vec<_>, ChangeError>>()?;
            view.join(endpoint, access, ranges, completion)
        })
    }

    /// Posts a layout: in each of `repeat` repetitions, the bytes of all ranges. The memory has the
    /// rights `access`.
    ///
    /// # Errors
    /// [`ChangeError::Wide`] for strides and lengths over 16 bits; [`ChangeError::Post`], as of
    /// other posts; [`ChangeError`]
    pub fn interleave(
        &mut self,
        endpoint: &Endpoint,
        access: Access,
        ranges: &[Interleaved<'m>],
        repeat: u32,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        let view = self;
        posting!((view, endpoint), of => {
            let range = |&Interleaved { memory, offset, bytes, stride }: &Interleaved<'m>| {
                Ok(Interleaved { memory: of(memory)?, offset, bytes, stride })
            };
            let ranges = ranges.iter().map(range).collect::<Result<Vec<_>, ChangeError>>()?;
            view.interleave(endpoint, access, ranges, repeat, completion)
        })
    }

    /// Posts a layout of `count` elements, each a stride after the previous one: the column of a
    /// matrix. It takes two entries of the view.
    ///
    /// # Errors
    /// As [`Self::interleave`].
    pub fn stride(
        &mut self,
        endpoint: &Endpoint,
        access: Access,
        elements: Interleaved<'m>,
        count: u32,
        completion: Option<&Completion>,
    ) -> Result<Posted, ChangeError> {
        self.interleave(endpoint, access, &[elements], count, completion)
    }

    /// Returns the length in bytes, of all ranges or all repetitions; 0 before the first layout.
    pub fn len(&self) -> u64 {
        with!(self, view => view.len())
    }

    /// Returns whether the view has no layout yet.
    pub fn is_empty(&self) -> bool {
        with!(self, view => view.is_empty())
    }

    /// Returns a range of the view for zero-copy operations. Transports that copy the slices of
    /// messages, `ud_mlx5` and `ud_verbs`, refuse it.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Slice<'_>, MemoryError> {
        with!(self, view => view.slice(offset, length))
    }

    /// Returns the bytes from which a peer creates its [`RemoteKey`](crate::RemoteKey) of this
    /// layout. Before the first layout, no peer can use them.
    pub fn pack_key(&self) -> Vec<u8> {
        with!(self, view => view.pack_key())
    }
}

#[cfg(feature = "mlx5")]
fn of_mlx5(memory: &Memory) -> Result<&transport::mlx5::Memory, ChangeError> {
    Ok(memory.0.of_mlx5().ok_or(PostError::ForeignMemory)?)
}

fn of<T: Transport>(memory: &Memory) -> Result<&T::Memory, ChangeError> {
    Ok(memory.as_static::<T>().ok_or(PostError::ForeignMemory)?)
}
