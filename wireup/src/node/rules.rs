//! What a node uses, and how long it waits.

use std::time::Duration;

use barewire::{DeviceId, InterfaceConfig, TransportId};
use barewire_tcp::Key;

/// What a node uses, and how long it waits.
///
/// ```
/// use barewire_wireup::node::Rules;
///
/// // Shared memory, and one software device, which is never used unless it is named.
/// let rules = Rules::default().only(["self", "shm", "tcp/lo", "soft0:1"]);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rules {
    /// Transports (`shm`), devices (`mlx5_0:1`) or both (`tcp/eth0`); none for everything but
    /// software devices. A software device is used only if it is named.
    pub names: Vec<String>,
    /// Lanes for bulk transfers, at most.
    pub rails: usize,
    /// Links that each interface is expected to have: it raises the latency of some devices.
    pub endpoints: u32,
    /// The job's key for `tcp`. Without one, that of the environment: see [`Key::from_env`].
    pub key: Option<Key>,
    /// Settings of the interfaces.
    pub config: InterfaceConfig,
    /// How long each phase of a link may take.
    pub deadline: Duration,
    /// Links at once that are being connected; others wait in order.
    pub half_open: usize,
    /// A connected peer that is silent for this long, although it was asked twice, has failed.
    pub liveness: Option<Duration>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            rails: 2,
            endpoints: 1,
            key: None,
            config: InterfaceConfig::default(),
            deadline: Duration::from_secs(10),
            half_open: 64,
            liveness: None,
        }
    }
}

impl Rules {
    /// Uses these transports and devices only.
    #[must_use]
    pub fn only<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// With the job's key.
    #[must_use]
    pub fn key(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// With this deadline of each phase of a link.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// With pings of silent peers.
    #[must_use]
    pub fn liveness(self, interval: Duration) -> Self {
        Self { liveness: Some(interval), ..self }
    }

    /// Whether a device is to be opened, and if not, why.
    pub(super) fn admit(&self, device: &DeviceId, software: bool) -> Result<(), &'static str> {
        let both = device.to_string();
        let names_device = self.names.iter().any(|name| *name == device.name() || *name == both);
        let named = |name: &String| name == device.transport().name();
        match software {
            true if !names_device => {
                Err("a software device, which is used only if its name is given")
            }
            _ if names_device || self.names.iter().any(named) => Ok(()),
            // Links use endpoints, each with a connection: this would be `rc_mlx5` with more bytes.
            _ if device.transport() == TransportId::XrcMlx5 => {
                Err("links have no use for it unless its name is given")
            }
            _ if self.names.is_empty() => Ok(()),
            _ => Err("the rules do not name it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_software_device_is_never_used_unnamed() {
        let admitted = |names: &[&str], device: &str, software| {
            let device = device.parse().unwrap();
            Rules::default().only(names.iter().copied()).admit(&device, software).is_ok()
        };
        assert!(!admitted(&[], "rc_mlx5/soft0:1", true));
        assert!(!admitted(&["rc_mlx5"], "rc_mlx5/soft0:1", true));
        assert!(admitted(&["soft0:1"], "rc_mlx5/soft0:1", true));
        assert!(admitted(&["rc_mlx5/soft0:1"], "rc_mlx5/soft0:1", true));
        assert!(admitted(&[], "shm/memory", false));
        assert!(admitted(&["shm"], "shm/memory", false));
        assert!(!admitted(&["shm"], "cma/memory", false));
        assert!(!admitted(&["tcp/lo"], "tcp/eth0", false));
        assert!(!admitted(&[], "xrc_mlx5/mlx5_0:1", false));
        assert!(admitted(&["xrc_mlx5"], "xrc_mlx5/mlx5_0:1", false));
    }
}
