//! Opening devices of this machine.

use barewire_mlx5::Capabilities;
use barewire_mlx5::setup::{self, SetupWay};
use barewire_verbs as verbs;

use super::KEYS;
use super::domain::{Domain, SOFT_DEVICE};
use crate::base::error::OpenError;
use crate::transport::common::registered::refused;

/// How to set up devices of this machine: `devx` or `init_obj`; `verbs` leaves them to the
/// transports over libibverbs. Default: the first of the two that works.
const SETUP: &str = "BAREWIRE_MLX5_SETUP";

/// A port of a device of this machine.
#[derive(Debug)]
pub(crate) struct Found {
    /// Name for [`Domain::open`].
    pub(crate) device: String,
    /// The setup in use, or why the device cannot be set up.
    pub(crate) setup: Result<SetUp, String>,
}

/// A device that was set up.
#[derive(Debug)]
pub(crate) struct SetUp {
    /// How, and why so.
    pub(crate) how: String,
    pub(crate) capabilities: Capabilities,
}

/// Returns every port of every device that libmlx5 supports. Each is opened and closed.
pub(crate) fn found() -> Vec<Found> {
    let devices = verbs::devices().unwrap_or_default();
    let ports = devices.iter().filter(|device| device.is_mlx5).flat_map(|device| {
        let count = verbs::Context::open(&device.name).map_or(1, |context| context.port_count());
        (1..=count).map(|port| (device.name.as_str(), port))
    });
    let found = ports.map(|(name, port)| {
        let setup = set_up(name, port).map(|opened| SetUp {
            how: format!("set up by {}: {}", opened.way, opened.reason),
            capabilities: *opened.context.capabilities(),
        });
        Found { device: format!("{name}:{port}"), setup }
    });
    found.collect()
}

/// Opens `NAME:PORT`; the default port is 1.
pub(super) fn open(device: &str) -> Result<Domain, OpenError> {
    let (name, port) = match device.split_once(':') {
        None => (device, Some(1)),
        Some((name, port)) => (name, port.parse().ok()),
    };
    let known = verbs::devices().map_err(|error| refused(device, "list the devices", error))?;
    let Some(port) = port.filter(|_| known.iter().any(|known| known.name == name)) else {
        let known = known.iter().map(|device| format!("{}:1", device.name));
        let known: Vec<_> = std::iter::once(SOFT_DEVICE.to_owned()).chain(known).collect();
        return Err(OpenError::UnknownDevice {
            transport: KEYS,
            device: device.to_owned(),
            known: known.join(", "),
        });
    };
    let opened = set_up(name, port).map_err(|reason| refused(device, "set it up", reason))?;
    Domain::new(&opened.context, device)
}

fn set_up(name: &str, port: u8) -> Result<setup::Opened, String> {
    let wanted = match std::env::var(SETUP) {
        Err(_) => None,
        Ok(way) if way == "verbs" => {
            return Err(format!("{SETUP}=verbs leaves it to transports over generic verbs"));
        }
        Ok(way) => {
            Some(way.parse::<SetupWay>().map_err(|error| format!("{SETUP}: {error}, and verbs"))?)
        }
    };
    setup::open(name, port, wanted).map_err(|error| error.to_string())
}
