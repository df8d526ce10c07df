//! Opens a device by its name: one of this machine by the best backend that works, or the software
//! HCA.

use core::fmt;
use core::str::FromStr;

use crate::context::Context;
use crate::error::Error;

#[cfg(feature = "verbs")]
mod machine;
#[cfg(feature = "soft")]
mod software;

#[cfg(feature = "verbs")]
pub use machine::kernel_queue_pair;

/// The name of the software HCA.
const SOFT: &str = "soft0";

/// The backend for a device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetupWay {
    /// PRM commands, which the kernel passes to the device. The software HCA takes them as well.
    Devx,
    /// Verbs objects, exported by `mlx5dv_init_obj`.
    InitObj,
}

impl fmt::Display for SetupWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Devx => "devx",
            Self::InitObj => "init_obj",
        })
    }
}

/// The error for an unknown name of a backend.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown backend '{0}': use devx or init_obj")]
pub struct UnknownWay(String);

impl FromStr for SetupWay {
    type Err = UnknownWay;

    fn from_str(name: &str) -> Result<Self, UnknownWay> {
        match name {
            "devx" => Ok(Self::Devx),
            "init_obj" => Ok(Self::InitObj),
            _ => Err(UnknownWay(name.to_owned())),
        }
    }
}

/// An open device and its backend.
#[derive(Debug)]
pub struct Opened {
    /// The device.
    pub context: Context,
    /// The backend.
    pub way: SetupWay,
    /// The reason for the backend and for the GID, as text for the user.
    pub reason: String,
}

/// The error for a device that cannot be driven directly. Generic verbs may still work.
#[derive(thiserror::Error)]
#[error("{device} cannot be driven directly: {}", .tried.iter().map(|(way, error)| format!("{way}: {error}")).collect::<Vec<_>>().join("; "))]
pub struct NotOpened {
    /// Name of the device.
    pub device: String,
    /// The attempts, in order, and their errors.
    pub tried: Vec<(SetupWay, Error)>,
}

/// Opens port `port` of a device. Programs that are to run with and without an adapter take the
/// name as a setting.
///
/// - `soft0` is a new software HCA in this process, with one port and the settings of the
///   environment ([`hca::Config::from_env`](crate::hca::Config::from_env)). It needs the feature
///   `soft`. Under `barewire hca run --ports 2`, `mlx5_0` is one with two ports.
/// - Other names are those of libibverbs, and need the feature `verbs`. The device is set up by
///   DEVX if that works, else by `mlx5dv_init_obj`; or only by `wanted` if it is given. A backend
///   works if a queue pair that is connected to itself can write, which is tested once in a process.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// let opened = barewire_mlx5::setup::open("soft0", 1, None)?;
/// println!("set up by {}: {}", opened.way, opened.reason);
/// println!("{:?}", opened.context.capabilities());
/// # }
/// # Ok::<(), barewire_mlx5::setup::NotOpened>(())
/// ```
///
/// # Errors
/// [`NotOpened`], with the reason of each attempt.
#[cfg_attr(not(any(feature = "soft", feature = "verbs")), expect(unused_variables))]
pub fn open(name: &str, port: u8, wanted: Option<SetupWay>) -> Result<Opened, NotOpened> {
    #[cfg(feature = "soft")]
    if name == SOFT {
        return software::open(port, wanted);
    }
    if name.strip_prefix("soft").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        && name != SOFT
    {
        let takes = if name.contains(':') {
            "the name of the software HCA is soft0, and its port is an argument of its own"
        } else {
            "the name of the software HCA is soft0, of which each call opens another one"
        };
        return not_opened(name, wanted, takes);
    }
    #[cfg(feature = "verbs")]
    if name != SOFT {
        return machine::open(name, port, wanted);
    }
    lacking(name, wanted)
}

/// The error for a device that needs a feature which this build lacks.
fn lacking(name: &str, wanted: Option<SetupWay>) -> Result<Opened, NotOpened> {
    let feature = if name == SOFT { "soft" } else { "verbs" };
    let lacks = format!("this build lacks the feature {feature} of barewire-mlx5, which it needs");
    not_opened(name, wanted, &lacks)
}

/// The error for a device that cannot be opened for a reason.
fn not_opened(name: &str, wanted: Option<SetupWay>, reason: &str) -> Result<Opened, NotOpened> {
    let error = crate::error::system("opening the device", reason);
    let tried = vec![(wanted.unwrap_or(SetupWay::Devx), error)];
    Err(NotOpened { device: name.to_owned(), tried })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_names() {
        for way in [SetupWay::Devx, SetupWay::InitObj] {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("verbs".parse::<SetupWay>().unwrap_err().to_string().contains("devx or init_obj"));
    }

    #[test]
    #[cfg(feature = "verbs")]
    fn a_device_that_is_not_there_is_refused_with_every_reason() {
        let error = open("no_such_device", 1, None).unwrap_err();
        assert_eq!(error.tried.len(), 2);
        let words = error.to_string();
        assert!(words.contains("devx: ") && words.contains("init_obj: "), "{words}");
        assert_eq!(open("no_such_device", 1, Some(SetupWay::InitObj)).unwrap_err().tried.len(), 1);
    }

    #[test]
    #[cfg(not(feature = "verbs"))]
    fn a_build_without_verbs_says_which_feature_a_device_needs() {
        let words = open("mlx5_0", 1, None).unwrap_err().to_string();
        assert!(words.starts_with("mlx5_0 cannot be driven directly: devx: "), "{words}");
        assert!(words.contains("lacks the feature verbs of barewire-mlx5"), "{words}");
    }

    #[test]
    #[cfg(not(feature = "soft"))]
    fn a_build_without_the_software_hca_says_so() {
        let words = open(SOFT, 1, None).unwrap_err().to_string();
        assert!(words.contains("lacks the feature soft of barewire-mlx5"), "{words}");
    }

    #[test]
    fn another_name_of_the_software_hca_is_refused_with_the_right_one() {
        for (name, hint) in [("soft0:1", "port"), ("soft1", "another one")] {
            let words = open(name, 1, None).unwrap_err().to_string();
            assert!(words.starts_with(name) && words.contains(" is soft0, "), "{words}");
            assert!(words.contains(hint), "{words}");
        }
    }

    #[test]
    #[cfg(feature = "soft")]
    fn the_software_hca_has_one_port_and_takes_commands() {
        let opened = open(SOFT, 1, Some(SetupWay::Devx)).unwrap();
        assert_eq!(opened.way, SetupWay::Devx);
        let port = open(SOFT, 2, None).unwrap_err().to_string();
        assert!(port.contains("port is 2, but must be 1 (hca run --ports 2"), "{port}");
        let way = open(SOFT, 1, Some(SetupWay::InitObj)).unwrap_err().to_string();
        assert!(way.contains("init_obj: "), "{way}");
    }
}
