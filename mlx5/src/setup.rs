//! Opens a device of this machine by the best backend that works.

use core::fmt;
use core::str::FromStr;

use barewire_verbs as verbs;

use crate::backend::{Backend, init_obj};
use crate::channel::mlx5dv::Mlx5dv;
use crate::context::Context;
use crate::error::{Error, system};
use crate::route::Route;
use crate::smoke;
use crate::values::RcPath;

/// The backend for a device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetupWay {
    /// PRM commands, which the kernel passes to the device.
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

/// As [`Display`](fmt::Display): what `main` prints if it returns the error.
impl fmt::Debug for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opens the device that libibverbs calls `name` and uses its port `port`: by DEVX if that works,
/// else by `mlx5dv_init_obj`; or only by `wanted` if it is given. A backend works if a queue pair
/// that is connected to itself can write, which is tested once in a process.
///
/// ```no_run
/// let opened = barewire_mlx5::setup::open("mlx5_0", 1, None)?;
/// println!("set up by {}: {}", opened.way, opened.reason);
/// println!("{:?}", opened.context.capabilities());
/// # Ok::<(), barewire_mlx5::setup::NotOpened>(())
/// ```
///
/// # Errors
/// [`NotOpened`], with the reason of each attempt.
pub fn open(name: &str, port: u8, wanted: Option<SetupWay>) -> Result<Opened, NotOpened> {
    let mut tried = Vec::new();
    for way in [SetupWay::Devx, SetupWay::InitObj] {
        if wanted.is_some_and(|wanted| wanted != way) {
            continue;
        }
        let opened = match way {
            SetupWay::Devx => by_devx(name, port),
            SetupWay::InitObj => by_init_obj(name, port),
        };
        let tested = opened.and_then(|(context, gid)| {
            smoke::test((name, port, way), &context)?;
            Ok((context, gid))
        });
        match tested {
            Ok((context, gid)) => {
                let why = match (wanted, &tried[..]) {
                    (Some(_), _) => "as requested".to_owned(),
                    (None, []) => "the kernel supports DEVX, and a test passed".to_owned(),
                    (None, [(way, error), ..]) => format!("{way} failed: {error}"),
                };
                let place = verbs::numa::far(name).map_or(String::new(), |far| format!("; {far}"));
                return Ok(Opened { context, way, reason: format!("{why}; {gid}{place}") });
            }
            Err(error) => tried.push((way, error)),
        }
    }
    Err(NotOpened { device: name.to_owned(), tried })
}

/// Queries a queue pair that the kernel sets up on a port and connects to itself with the values of
/// [`RcPath::new`], as [`RcQueuePair::read_back`](crate::RcQueuePair::read_back) does. What differs
/// between the two is what this driver and the kernel's choose differently.
///
/// # Errors
/// If the device does not support DEVX, or the kernel refused.
pub fn kernel_queue_pair(name: &str, port: u8) -> Result<Vec<(&'static str, u64)>, Error> {
    let (context, devx) = devx(name)?;
    let route = Route::new(&context, port)?;
    let pair = route.kernel_pair(&devx)?;
    let path = RcPath::new(route.port().address, pair.number());
    pair.connect((route.port(), route.port_type()), &path)?;
    pair.read_back()
}

fn devx(name: &str) -> Result<(verbs::Context, verbs::dv::Devx), Error> {
    let context =
        verbs::Context::open_devx(name).map_err(|error| system("opening the device", error))?;
    let devx =
        context.devx().ok_or_else(|| system("opening the device", "it does not support DEVX"))?;
    Ok((context, devx))
}

/// The device, and the reason for its GID.
fn by_devx(name: &str, port: u8) -> Result<(Context, String), Error> {
    let (context, devx) = devx(name)?;
    let route = Route::new(&context, port)?;
    let reason = route.reason().to_owned();
    Ok((Context::open(Mlx5dv::new(devx, route)?)?, reason))
}

/// The device, and the reason for its GID.
fn by_init_obj(name: &str, port: u8) -> Result<(Context, String), Error> {
    let context =
        verbs::Context::open(name).map_err(|error| system("opening the device", error))?;
    let route = Route::new(&context, port)?;
    let (reason, address) = (route.reason().to_owned(), *route.port());
    let device = init_obj::Device::new(context, route);
    let capabilities = device.capabilities()?;
    Ok((Context::new(Backend::InitObj(device), capabilities, address), reason))
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
    fn a_device_that_is_not_there_is_refused_with_every_reason() {
        let error = open("no_such_device", 1, None).unwrap_err();
        assert_eq!(error.tried.len(), 2);
        let words = error.to_string();
        assert!(words.contains("devx: ") && words.contains("init_obj: "), "{words}");
        assert_eq!(open("no_such_device", 1, Some(SetupWay::InitObj)).unwrap_err().tried.len(), 1);
    }
}
