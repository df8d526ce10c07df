//! What a node uses, and how long it waits.

use std::time::Duration;

use barewire::config::ConfigError;
use barewire::{DeviceId, InterfaceConfig, TransportId};
use barewire_tcp::Key;

/// Names the transports and devices of [`Rules::from_env`].
const NAMES_VARIABLE: &str = "BAREWIRE_TRANSPORTS";
/// Holds the liveness of [`Rules::from_env`].
const LIVENESS_VARIABLE: &str = "BAREWIRE_LIVENESS";
/// The default of [`Rules::keepalive`].
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What a node uses, and how long it waits.
///
/// ```
/// use barewire_wireup::node::Rules;
///
/// // Shared memory, and one software device, which is never used unless it is named.
/// let mut rules = Rules::default().only(["self", "shm", "tcp/lo", "soft0:1"]);
/// rules.config = rules.config.send_ring(64);
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
    /// Settings of the interfaces. Only [`from_env`](Self::from_env) reads their environment
    /// variables. Its `keepalive` probes every endpoint, those that are being connected included: a
    /// node needs [`Self::keepalive`] instead.
    pub config: InterfaceConfig,
    /// How long each phase of a link may take; 10 s by default.
    pub deadline: Duration,
    /// Links at once that are being connected; others wait in order.
    pub half_open: usize,
    /// How often the devices of idle peers are asked whether they still serve the peer; every 10 s
    /// by default. See [`Self::keepalive`](Self::keepalive()).
    pub keepalive: Option<Duration>,
    /// How long a peer may be silent before its node is asked; no limit by default. See
    /// [`Self::liveness`](Self::liveness()).
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
            keepalive: Some(KEEPALIVE),
            liveness: None,
        }
    }
}

impl Rules {
    /// The default, with what environment variables override: `BAREWIRE_TRANSPORTS=shm,tcp/lo` is
    /// [`only`](Self::only), `BAREWIRE_KEEPALIVE` is [`keepalive`](Self::keepalive()),
    /// `BAREWIRE_LIVENESS=60s` is [`liveness`](Self::liveness()), and the other settings of
    /// interfaces are those of [`InterfaceConfig::from_env`], which also reports unknown variables.
    /// What the program sets afterwards overrides the environment.
    ///
    /// ```
    /// use barewire_wireup::{Node, Rules};
    ///
    /// let node = Node::open(&Rules::from_env()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        let config = InterfaceConfig::default().keepalive(Some(KEEPALIVE)).overruled_by_env()?;
        let [names, liveness] = [NAMES_VARIABLE, LIVENESS_VARIABLE]
            .map(|name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned());
        let liveness = parse_liveness(&liveness)?;
        Ok(Self { liveness, ..Self::from_settings(config, &names) })
    }

    /// The rules for these settings, whose keepalive is that of the links, and these names.
    fn from_settings(config: InterfaceConfig, names: &str) -> Self {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let (keepalive, config) = (config.keepalive, config.keepalive(None));
        Self { config, keepalive, ..Self::default().only(names) }
    }

    /// Uses these transports and devices only.
    ///
    /// A link over `rc_mlx5`, `rc_verbs` or `xrc_mlx5` needs a second transport over which the two
    /// nodes exchange the addresses of queue pairs: `shm`, `tcp`, `ud_mlx5`, `ud_verbs` or
    /// `dc_mlx5`. The name of a device (`mlx5_0:1`) admits all transports over it, and so is
    /// enough. A name that nothing has is [absent](super::Node::absent).
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

    /// With another interval at which the peers of connected links are checked over `rc_mlx5`,
    /// `rc_verbs` and `xrc_mlx5`, at least 250 ms; `None` turns the checks off. The peer's device
    /// responds, so a peer that lives is not reported, however long it calls no progress. [The
    /// guide](barewire::guide::errors#keepalive-and-liveness-of-a-node) compares
    /// this with [`liveness`](Self::liveness()).
    #[must_use]
    pub fn keepalive(self, interval: Option<Duration>) -> Self {
        Self { keepalive: interval, ..self }
    }

    /// With pings of silent peers, over all transports. The peer's node responds, so **a peer that
    /// calls no progress for twice the interval is reported as dead**, even if it only computes.
    /// [The guide](barewire::guide::errors#keepalive-and-liveness-of-a-node) compares this with
    /// [`keepalive`](Self::keepalive()).
    #[must_use]
    pub fn liveness(self, interval: Duration) -> Self {
        Self { liveness: Some(interval), ..self }
    }

    /// The names that are those of no device and no transport of this machine.
    pub(super) fn unknown<'a>(&'a self, known: &'a [DeviceId]) -> impl Iterator<Item = &'a String> {
        self.names.iter().filter(|name| {
            !known.iter().any(|device| {
                **name == device.transport().name()
                    || **name == device.name()
                    || **name == device.to_string()
            })
        })
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

/// Reads an interval, in the form of the setting `keepalive`; empty for none.
fn parse_liveness(text: &str) -> Result<Option<Duration>, ConfigError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let read = InterfaceConfig::default().with_setting("keepalive", text);
    let config = read.transpose().map_err(|mut error| {
        LIVENESS_VARIABLE.clone_into(&mut error.variable);
        error
    })?;
    Ok(config.and_then(|config| config.keepalive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_is_read_as_keepalive_is() {
        assert_eq!(parse_liveness("60s").unwrap(), Some(Duration::from_mins(1)));
        assert_eq!((parse_liveness("").unwrap(), parse_liveness("off").unwrap()), (None, None));
        let error = parse_liveness("soon").unwrap_err().to_string();
        assert!(error.starts_with("BAREWIRE_LIVENESS='soon' is not valid"), "{error}");
    }

    #[test]
    fn the_environment_overrides_names_and_settings() {
        let second = Some(Duration::from_secs(1));
        let config = InterfaceConfig::default().send_ring(64).keepalive(second);
        let rules = Rules::from_settings(config, " shm, tcp/lo,");
        assert_eq!((rules.names, rules.keepalive), (vec!["shm".into(), "tcp/lo".into()], second));
        assert_eq!(rules.config, InterfaceConfig::default().send_ring(64));
        let rules = Rules::from_settings(InterfaceConfig::default(), "");
        assert_eq!((rules.names, rules.keepalive), (Vec::new(), None));
    }

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
