//! The names of the transport and its device, and the sizes of its operations.

use crate::base::address::TransportId;

/// The transport.
pub(crate) const ID: TransportId = TransportId::Cma;
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Slices per operation.
pub(super) const MAX_IOV: usize = barewire_shm::MAX_RANGES;
/// Most bytes that a post copies, and one progress call for an endpoint: less than a tenth of a
/// millisecond at memory speed.
pub(super) const SLICE: usize = 1 << 20;
/// As [`SLICE`], when several endpoints have transfers in progress.
pub(super) const SLICE_OF_MANY: usize = 256 << 10;
/// Operations in progress per endpoint.
pub(super) const MAX_IN_PROGRESS: usize = 64;
