//! Settings from the environment.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::InterfaceConfig;
use super::value::Value;
use crate::base::report;

const PREFIX: &str = "BAREWIRE_";

/// An environment variable that is not a setting of interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// The other environment variables of this library, its command line and the software HCA.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "BAREWIRE_KEY", doc: "the job's key for tcp: 64 hexadecimal digits" },
    Variable {
        name: "BAREWIRE_KEY_FILE",
        doc: "a file with the job's key for tcp: 32 bytes or 64 hexadecimal digits, readable by its owner alone",
    },
    Variable {
        name: "BAREWIRE_TCP_PORTS",
        doc: "ports on which tcp and control connections listen, such as 47000-47999 [default: free ones]",
    },
    Variable {
        name: "BAREWIRE_MLX5_SETUP",
        doc: "how rc_mlx5 sets up a device of the machine: devx or init_obj [default: the first that works]",
    },
    Variable {
        name: "BAREWIRE_SHM_DIR",
        doc: "directory for the sockets of shm, or abstract for the abstract namespace [default: $XDG_RUNTIME_DIR/barewire or /tmp/barewire-UID]",
    },
    Variable {
        name: "BAREWIRE_TRANSPORTS",
        doc: "transports and devices of nodes whose program calls Rules::from_env, such as shm,tcp/lo [default: all but software devices]",
    },
    Variable {
        name: "BAREWIRE_LIVENESS",
        doc: "liveness of nodes whose program calls Rules::from_env, such as 60s; off: none [default: off]",
    },
    Variable {
        name: "BAREWIRE_BOOTSTRAP",
        doc: "how ranks find each other: pmix, pmi1, tcp, directory or single [default: what the launcher sets]",
    },
    Variable {
        name: "BAREWIRE_BOOTSTRAP_DIR",
        doc: "directory that the ranks share; each run needs an empty one",
    },
    Variable {
        name: "BAREWIRE_BOOTSTRAP_FD",
        doc: "descriptor of the socket that listens for the other ranks, which barewire run sets for rank 0",
    },
    Variable {
        name: "BAREWIRE_BOOTSTRAP_PORT",
        doc: "port of rank 0 instead of MASTER_PORT [default: MASTER_PORT; under torchrun, whose store has that port, the next one]",
    },
    Variable {
        name: "BAREWIRE_BOOTSTRAP_TIMEOUT",
        doc: "seconds in which all ranks must start [default: 60]",
    },
    Variable {
        name: "BAREWIRE_HCA_ADDRESS",
        doc: "address of the software HCA, such as 127.7.0.1; processes cannot share one [default: a free one of 127.0.0.0/8]",
    },
    Variable {
        name: "BAREWIRE_HCA_ADDRESSES",
        doc: "addresses of the devices of barewire hca run, in order: 127.7.0.1,127.7.0.2",
    },
    Variable {
        name: "BAREWIRE_HCA_FAULTS",
        doc: "faults of the software HCA's wire: drop=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01,seed=7",
    },
    Variable {
        name: "BAREWIRE_HCA_PCAP",
        doc: "capture file of the software HCA's wire; %a is its address, %p the process number",
    },
    Variable {
        name: "BAREWIRE_HCA_KEY",
        doc: "key of the software HCA's packets: 64 hexadecimal digits [default: from the user's file]",
    },
    Variable {
        name: "BAREWIRE_HCA_WIRE",
        doc: "auto; udp, without shared memory; or roce, without authentication, for other RoCE peers [default: auto]",
    },
    Variable {
        name: "BAREWIRE_NCCL_DEVICES",
        doc: "devices of the plugin for NCCL: mlx5_0:1,mlx5_1:1, or soft0,soft1 [default: all adapters]",
    },
    Variable {
        name: "BAREWIRE_HCA_RESERVED",
        doc: "reserved bits in WQEs: ignore, or refuse to test a driver [default: ignore]",
    },
    Variable {
        name: "BAREWIRE_HCA_REQUIRE",
        doc: "what the software HCA requires of a driver, as some ports do: mtu=1500,udp-ports=50000-60000",
    },
    Variable {
        name: "BAREWIRE_HCA_DEVICES",
        doc: "number of devices that `barewire hca run` provides",
    },
    Variable { name: "BAREWIRE_HCA_PORTS", doc: "number of ports of each of these devices" },
    Variable {
        name: "BAREWIRE_HCA_LINK",
        doc: "link layer of these devices: ethernet or infiniband",
    },
    Variable { name: "BAREWIRE_HCA_DEVX", doc: "no: these devices have no DEVX" },
    Variable {
        name: "BAREWIRE_HCA_EXPLAIN",
        doc: "yes: a line on standard error for each call that these devices refuse",
    },
    Variable {
        name: "BAREWIRE_HCA_MEMLOCK",
        doc: "yes: these devices refuse memory beyond RLIMIT_MEMLOCK",
    },
    Variable { name: "BAREWIRE_HCA_YIELD", doc: "no: programs that poll do not run these devices" },
];

/// Prefixes of variables of this repository's own tests.
const OF_TESTS: &[&str] =
    &["TEST_", "VM_", "SHM_", "HCA_SOAK_", "CONFINED_TEST", "BENCH_", "COMPARE_"];

/// The unknown variables of this process were listed.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Returns the environment variable of a setting.
pub(super) fn variable(setting: &str) -> String {
    format!("{PREFIX}{}", setting.to_uppercase())
}

/// The value of a variable is not valid for its setting.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{variable}='{text}' is not valid: the setting takes {form} ({unit})")]
#[non_exhaustive]
pub struct ConfigError {
    /// Its name.
    pub variable: String,
    /// Its value.
    pub text: String,
    /// The accepted form.
    pub form: &'static str,
    /// The unit of the value.
    pub unit: &'static str,
}

pub(super) fn overrule<V: Value>(
    setting: &str,
    unit: &'static str,
    text_of: &impl Fn(&str) -> Option<String>,
    value: &mut V,
) -> Result<(), ConfigError> {
    let variable = variable(setting);
    let Some(text) =
        text_of(&variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    else {
        return Ok(());
    };
    match V::parse(&text) {
        Some(new) => *value = new,
        None => return Err(ConfigError { variable, text, form: V::FORM, unit }),
    }
    Ok(())
}

/// Refuses sizes of rings that variables set outside the range that is documented, also for
/// transports that have no such ring: a program may use several.
pub(super) fn check_rings(
    config: &InterfaceConfig,
    text_of: &impl Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    let send = (16, "a power of two from 16 to 32768", "blocks of 64 bytes");
    let receive = (4, "a power of two from 4 to 32768", "messages");
    for (setting, value, (least, form, unit)) in
        [("send_ring", config.send_ring, send), ("receive_ring", config.receive_ring, receive)]
    {
        let variable = variable(setting);
        let text = text_of(&variable).filter(|text| !text.trim().is_empty());
        if let Some(text) = text
            && !((least..=32768).contains(&value) && value.is_power_of_two())
        {
            return Err(ConfigError { variable, text, form, unit });
        }
    }
    Ok(())
}

/// An unknown variable with this library's prefix.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{name} is not a variable of barewire{}", like(.meant.as_deref()))]
#[non_exhaustive]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// A known variable with a similar name.
    pub meant: Option<String>,
}

fn like(meant: Option<&str>) -> String {
    meant.map_or_else(
        || ": see barewire info --config".to_owned(),
        |meant| format!(": did you mean {meant}?"),
    )
}

/// Returns the variables that are set and have this library's prefix, but are unknown: most likely
/// misspelt. A program that calls this reports them itself: the settings do not report them as
/// well.
pub fn unknown_variables() -> Vec<UnknownVariable> {
    REPORTED.store(true, Ordering::Relaxed);
    unknown(env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown(names: impl Iterator<Item = String>) -> Vec<UnknownVariable> {
    let settings = InterfaceConfig::NAMES.iter().map(|name| variable(name));
    let known: Vec<String> =
        settings.chain(VARIABLES.iter().map(|other| other.name.to_owned())).collect();
    let is_unknown = |name: &String| match name.strip_prefix(PREFIX) {
        Some(rest) => !known.contains(name) && !OF_TESTS.iter().any(|test| rest.starts_with(test)),
        None => false,
    };
    let meant = |name: &str| {
        let (known, distance) = known
            .iter()
            .map(|known| (known, strsim::damerau_levenshtein(known, name)))
            .min_by_key(|&(_, distance)| distance)?;
        (distance <= 3).then(|| known.clone())
    };
    let mut unknown: Vec<_> = names
        .filter(is_unknown)
        .map(|name| UnknownVariable { meant: meant(&name), name })
        .collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown
}

impl InterfaceConfig {
    /// Returns the defaults, with the settings that environment variables override.
    /// [`Setting::variable`](super::Setting::variable) is the name of a setting's variable.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::default().overruled_by_env()
    }

    /// Returns these settings, with those that environment variables override. The first call
    /// logs a warning for each unknown variable of barewire, or writes it to standard error if the
    /// program has no subscriber of `tracing`.
    pub fn overruled_by_env(self) -> Result<Self, ConfigError> {
        if !REPORTED.load(Ordering::Relaxed) {
            unknown_variables().iter().for_each(report::warn);
        }
        self.overruled(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Returns these settings with one changed to `value`, a text as in its environment variable.
    /// Case does not matter in the name. `None` if there is no setting of this name.
    ///
    /// ```
    /// use barewire::InterfaceConfig;
    ///
    /// let config = InterfaceConfig::default().with_setting("SEND_RING", "1K").unwrap()?;
    /// assert_eq!(config.send_ring, 1024);
    /// assert!(InterfaceConfig::default().with_setting("no_such_setting", "1").is_none());
    /// # Ok::<(), barewire::config::ConfigError>(())
    /// ```
    pub fn with_setting(self, name: &str, value: &str) -> Option<Result<Self, ConfigError>> {
        let name = Self::NAMES.iter().find(|known| known.eq_ignore_ascii_case(name))?;
        let changed = variable(name);
        Some(self.overruled(|variable| (variable == changed).then(|| value.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::config::Setting;

    #[test]
    fn variables_overrule() {
        let text = |name: &str| {
            Some(match name {
                "BAREWIRE_SEND_RING" => "1K".to_owned(),
                "BAREWIRE_PEER_TIMEOUT" => " 250ms ".to_owned(),
                "BAREWIRE_RETRY_COUNT" => String::new(),
                _ => return None,
            })
        };
        let config = InterfaceConfig::default().overruled(text).unwrap();
        let expected =
            InterfaceConfig::default().send_ring(1024).peer_timeout(Duration::from_millis(250));
        assert_eq!(config, expected);
        let wrong = |name: &str| (name == "BAREWIRE_PATH_MTU").then(|| "big".to_owned());
        let error = InterfaceConfig::default().overruled(wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "BAREWIRE_PATH_MTU='big' is not valid: the setting takes a whole number, such as 64 or 4K (bytes)"
        );
    }

    #[test]
    fn rings_have_their_range_for_every_transport() {
        let with = |name: &str, value: &str| {
            InterfaceConfig::default().with_setting(name, value).unwrap().map_err(|e| e.to_string())
        };
        for wrong in ["3", "100", "64K"] {
            let text = format!(
                "BAREWIRE_SEND_RING='{wrong}' is not valid: the setting takes a power of two from \
                 16 to 32768 (blocks of 64 bytes)"
            );
            assert_eq!(with("send_ring", wrong), Err(text));
        }
        assert!(with("receive_ring", "2").unwrap_err().contains("from 4 to 32768 (messages)"));
        assert!(with("send_ring", "16").is_ok() && with("receive_ring", "32K").is_ok());
        // A program may set fewer for transports that take them.
        let small = InterfaceConfig::default().send_ring(3);
        assert!(small.with_setting("receive_ring", "8").unwrap().is_ok());
    }

    #[test]
    fn unknown_variables_are_told_with_what_was_meant() {
        let names = [
            "BAREWIRE_SENDRING",
            "BAREWIRE_SEND_RING",
            "HEADROOM",
            "BAREWIRE_NONSENSE_AT_ALL",
            "BAREWIRE_KEY_FILE",
        ];
        let found: Vec<String> = unknown(names.iter().map(ToString::to_string))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "BAREWIRE_NONSENSE_AT_ALL is not a variable of barewire: see barewire info --config",
                "BAREWIRE_SENDRING is not a variable of barewire: did you mean BAREWIRE_SEND_RING?",
            ]
        );
    }

    #[test]
    fn settings_know_their_variable() {
        let settings = InterfaceConfig::default().settings();
        let first: &Setting = settings.first().unwrap();
        assert_eq!(first.variable(), "BAREWIRE_SEND_RING");
    }
}
