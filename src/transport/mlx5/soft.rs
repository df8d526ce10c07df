//! The software HCA as a device.

use barewire_hca as hca;
use barewire_mlx5::Context;
use barewire_mlx5::channel::soft::Soft;

use super::Domain;
use super::domain::SOFT_DEVICE;
use crate::base::error::OpenError;
use crate::transport::common::registered::refused;

/// Opens a new software HCA with the settings of the environment.
pub(super) fn open() -> Result<Domain, OpenError> {
    let config =
        hca::Config::from_env().map_err(|e| refused(SOFT_DEVICE, "read its settings", e))?;
    let device =
        hca::Device::open(config).map_err(|e| refused(SOFT_DEVICE, "start the software HCA", e))?;
    let context = Context::open_tested(Soft::new(device));
    Domain::new(&context.map_err(|e| refused(SOFT_DEVICE, "query the device", e))?, SOFT_DEVICE)
}

impl Domain {
    /// Opens a domain on a software HCA that the caller opened, for tests and fault injection. Its
    /// families of objects are not tested before their first use: the device may have no thread.
    ///
    /// # Errors
    /// [`OpenError::Device`] if the device refuses.
    pub fn open_soft(device: hca::Device) -> Result<Self, OpenError> {
        let context = Context::open(Soft::new(device))
            .map_err(|e| refused(SOFT_DEVICE, "query the device", e))?;
        Self::new(&context, SOFT_DEVICE)
    }
}
