//! The static API: one module per transport, each with `Domain`, `Interface`, `Progress`,
//! `Endpoint`, `Memory` and `RemoteKey`. Everything inlines, and an operation that a transport
//! lacks is a compile error (see [`capability`](crate::capability)).
//!
//! Code that is generic over the transport takes a [`Transport`]:
//!
//! ```
//! use barewire::capability::{PutShort, RemoteMemory};
//! use barewire::transport::{self, Domain as _, Interface as _, Memory as _, Transport};
//! use barewire::{Access, InterfaceConfig};
//!
//! /// Writes a byte of this process's memory through a connection to itself.
//! fn loop_back<T: Transport>(device: &str) -> Result<u8, Box<dyn std::error::Error>>
//! where
//!     T::Endpoint: PutShort + RemoteMemory<Key = T::RemoteKey>,
//! {
//!     let domain = T::open(device)?;
//!     let (interface, _progress) = T::open_interface(&domain, &InterfaceConfig::default())?;
//!     let endpoint = T::connect_to_interface(&interface, &interface.address())?;
//!     let memory = domain.allocate(64, Access::REMOTE_WRITE)?;
//!     let key = domain.unpack_key(&memory.pack_key())?;
//!     endpoint.put_short(&[7], memory.address(), &key)?;
//!     let mut byte = [0];
//!     memory.read(0, &mut byte)?;
//!     Ok(byte[0])
//! }
//!
//! assert_eq!(loop_back::<transport::self_::Self_>("memory")?, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cma")]
pub mod cma;
pub(crate) mod common;
#[cfg(feature = "mlx5")]
pub mod dc_mlx5;
pub mod handle;
#[cfg(feature = "mlx5")]
pub(crate) mod mlx5;
mod object;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub mod rc;
#[cfg(feature = "mlx5")]
pub mod rc_mlx5;
#[cfg(feature = "verbs")]
pub mod rc_verbs;
#[cfg(feature = "verbs")]
pub(crate) mod rdma;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
mod reliable;
pub mod self_;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub mod ud;
#[cfg(feature = "mlx5")]
pub mod ud_mlx5;
#[cfg(feature = "verbs")]
pub mod ud_verbs;
#[cfg(feature = "mlx5")]
pub mod xrc_mlx5;

pub use crate::dynamic::transport::Transport;
pub use object::{Domain, Endpoint, Interface, Memory, Progress};

use crate::base::address::TransportId;
use crate::base::error::OpenError;

/// Checks the name of the only device of a transport.
pub(crate) fn only_device(
    transport: TransportId,
    known: &str,
    device: &str,
) -> Result<(), OpenError> {
    if device == known {
        return Ok(());
    }
    Err(OpenError::UnknownDevice { transport, device: device.to_owned(), known: known.to_owned() })
}

pub(crate) mod sealed {
    use super::common::handlers::Handlers;

    /// The part of every interface that its handlers need.
    pub trait Handled {
        fn handlers(&self) -> &Handlers;

        /// Makes the next progress install new handlers.
        fn call_attention(&self);

        /// See [`crate::Interface::hold_sender`].
        fn hold_sender(&self) -> bool;

        /// See [`crate::Interface::release_senders`].
        fn release_senders(&self);
    }
}
