//! The operations of endpoints, as traits.
//!
//! In the static API each operation is a trait. A transport's endpoint implements those that it
//! supports; a post of another operation does not compile. In the dynamic API the same facts are
//! data, [`Attributes`](crate::Attributes), and an unsupported operation returns
//! [`PostError::Unsupported`](crate::PostError::Unsupported).
//!
//! A post of a short or buffered operation, or of an atomic without result, has copied what it
//! needs: it returns `()` or the number of bytes. The others return [`Posted`](crate::Posted):
//! after [`Done`](crate::Posted::Done) the caller may reuse the buffers, and the completion does
//! not count the operation. `self` and `shm` finish every operation in the post, since the CPU
//! carries it out. After [`InProgress`](crate::Posted::InProgress) progress finishes it.
//!
//! ```
//! use barewire::capability::PutShort;
//! use barewire::transport::{Domain as _, Interface as _, Memory as _, self_};
//! use barewire::{Access, InterfaceConfig, PostError};
//!
//! /// Sets a flag at the peer, over any transport that has `put_short`.
//! fn raise<E: PutShort>(endpoint: &E, flag: u64, key: &E::Key) -> Result<(), PostError> {
//!     endpoint.put_short(&[1], flag, key)
//! }
//!
//! let domain = self_::Domain::open("memory")?;
//! let (interface, _progress) = self_::Interface::open(&domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//! let memory = domain.allocate(64, Access::REMOTE_WRITE)?;
//! raise(&endpoint, memory.address() + 8, &domain.unpack_key(&memory.pack_key())?)?;
//! let mut flag = [0];
//! memory.read(8, &mut flag)?;
//! assert_eq!(flag, [1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::base::capability::*;
pub use crate::dynamic::tag::TagReceives;
