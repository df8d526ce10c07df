//! The names of devices.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::base::address::TransportId;

/// A device of a transport, as [`Domain::open`](crate::Domain::open) takes it.
///
/// [`components`](crate::components) lists the devices of this machine. As text it is the
/// transport's name, a slash and the transport's name of the device.
///
/// ```
/// use barewire::{DeviceId, TransportId};
///
/// let device: DeviceId = "rc_mlx5/soft0:1".parse()?;
/// assert_eq!((device.transport(), device.name()), (TransportId::RcMlx5, "soft0:1"));
/// assert_eq!(device.to_string(), "rc_mlx5/soft0:1");
/// # Ok::<(), barewire::DeviceIdError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceId {
    transport: TransportId,
    name: Box<str>,
}

impl DeviceId {
    /// Creates the id of the device that `transport` calls `name`. Whether it exists is checked on
    /// opening.
    pub fn new(transport: TransportId, name: &str) -> Self {
        Self { transport, name: name.into() }
    }

    /// Returns the transport that opens the device.
    pub fn transport(&self) -> TransportId {
        self.transport
    }

    /// Returns the transport's name of the device, such as `mlx5_0:1`, `lo` or `memory`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport, self.name)
    }
}

impl FromStr for DeviceId {
    type Err = DeviceIdError;

    fn from_str(text: &str) -> Result<Self, DeviceIdError> {
        let (transport, name) = text.split_once('/').ok_or(DeviceIdError::Form)?;
        if name.is_empty() {
            return Err(DeviceIdError::Form);
        }
        let unknown = |_| DeviceIdError::UnknownTransport {
            name: transport.to_owned(),
            known: TransportId::list(TransportId::ALL),
        };
        Ok(Self::new(transport.parse().map_err(unknown)?, name))
    }
}

/// Why a text is not a [`DeviceId`].
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceIdError {
    /// There is no slash, or nothing after it.
    #[error("a device is TRANSPORT/DEVICE, such as rc_mlx5/mlx5_0:1 or tcp/lo")]
    Form,
    /// The name before the slash is not a transport.
    #[error("unknown transport '{name}': there are {known}")]
    UnknownTransport {
        /// The name.
        name: String,
        /// The names of the transports, separated by commas.
        known: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_device_or_the_defect_is_named() {
        // Interfaces and addresses of IPv6 have colons; only the first slash separates.
        for text in ["tcp/fe80::1%eth0", "shm/memory", "rc_mlx5/a/b"] {
            assert_eq!(text.parse::<DeviceId>().unwrap().to_string(), text);
        }
        for text in ["", "tcp", "tcp/"] {
            assert_eq!(text.parse::<DeviceId>(), Err(DeviceIdError::Form), "{text}");
        }
        let error = "pigeon/loft".parse::<DeviceId>().unwrap_err().to_string();
        assert!(error.contains("'pigeon'") && error.contains("rc_verbs"), "{error}");
    }
}
