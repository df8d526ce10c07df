//! The software HCA.

use super::{NotOpened, Opened, SOFT, SetupWay};
use crate::channel::soft::Soft;
use crate::context::Context;
use crate::error::{Error, system};
use crate::hca::{Config, Device};

/// Opens a new device.
pub(super) fn open(port: u8, wanted: Option<SetupWay>) -> Result<Opened, NotOpened> {
    let way = wanted.unwrap_or(SetupWay::Devx);
    let context = match (way, port) {
        (SetupWay::InitObj, _) => {
            Err(system("opening the device", "the software HCA is set up by commands: use devx"))
        }
        (SetupWay::Devx, 1) => create(),
        (SetupWay::Devx, port) => Err(Error::parameter(
            "port",
            port,
            "1 (hca run --ports 2 and the feature verbs make a device of two, mlx5_0)",
        )),
    };
    let reason = "the software HCA in this process takes commands".to_owned();
    match context {
        Ok(context) => Ok(Opened { context, way, reason }),
        Err(error) => Err(NotOpened { device: SOFT.to_owned(), tried: vec![(way, error)] }),
    }
}

fn create() -> Result<Context, Error> {
    let config = Config::from_env().map_err(|error| system("reading its settings", error))?;
    let device = Device::open(config).map_err(|error| system("starting the device", error))?;
    Context::open_tested(Soft::new(device))
}
