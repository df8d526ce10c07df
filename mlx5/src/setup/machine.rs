//! Devices of this machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use barewire_verbs as verbs;

use super::{NotOpened, Opened, SetupWay};
use crate::backend::{Backend, init_obj};
use crate::channel::mlx5dv::Mlx5dv;
use crate::context::Context;
use crate::error::{Error, system};
use crate::route::Route;
use crate::trial::{Family, Trials};
use crate::values::RcPath;

/// Opens the port of a device by the first way that works.
pub(super) fn open(name: &str, port: u8, wanted: Option<SetupWay>) -> Result<Opened, NotOpened> {
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
            context.test(Family::Reliable)?;
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
/// [`RcPath::to`], as [`RcQueuePair::read_back`](crate::RcQueuePair::read_back) does. What differs
/// between the two is what this driver and the kernel's choose differently.
///
/// # Errors
/// If the device does not support DEVX, or the kernel refused.
pub fn kernel_queue_pair(name: &str, port: u8) -> Result<Vec<(&'static str, u64)>, Error> {
    let (context, devx) = devx(name)?;
    let route = Route::new(&context, port)?;
    let pair = route.kernel_pair(&devx)?;
    let port = route.port();
    let path = RcPath::to(&pair.address(port));
    pair.connect((port, route.port_type()), &path)?;
    pair.read_back()
}

fn devx(name: &str) -> Result<(verbs::Context, verbs::dv::Devx), Error> {
    let context =
        verbs::Context::open_devx(name).map_err(|error| system("opening the device", error))?;
    let devx =
        context.devx().ok_or_else(|| system("opening the device", "it does not support DEVX"))?;
    Ok((context, devx))
}

/// The tests of a port with one backend, which all contexts of a process share.
fn trials(name: &str, port: u8, way: SetupWay) -> Arc<Trials> {
    type Known = BTreeMap<(String, u8, SetupWay), Arc<Trials>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(known.entry((name.to_owned(), port, way)).or_default())
}

/// The device, and the reason for its GID.
pub(super) fn by_devx(name: &str, port: u8) -> Result<(Context, String), Error> {
    let (context, devx) = devx(name)?;
    let route = Route::new(&context, port)?;
    let reason = route.reason().to_owned();
    let trials = trials(name, port, SetupWay::Devx);
    Ok((Context::over(Mlx5dv::new(devx, route)?, Some(trials))?, reason))
}

/// The device, and the reason for its GID.
pub(super) fn by_init_obj(name: &str, port: u8) -> Result<(Context, String), Error> {
    let context =
        verbs::Context::open(name).map_err(|error| system("opening the device", error))?;
    let route = Route::new(&context, port)?;
    let (reason, address) = (route.reason().to_owned(), *route.port());
    let device = init_obj::Device::new(context, route);
    let capabilities = device.capabilities()?;
    let trials = trials(name, port, SetupWay::InitObj);
    Ok((Context::new(Backend::InitObj(device), capabilities, address, Some(trials)), reason))
}
