//! The device that a connection is reported for. libucp opens its first endpoint over the
//! transports of the device that the callback names, with the device address of the peer that comes
//! with it.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire::TransportId;
use barewire::address::DeviceAddress;
use barewire_tcp::interfaces;

use crate::iface::Iface;

/// A device of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    /// `None` for a network interface over which this worker has no interface of `tcp`.
    pub(super) address: Option<DeviceAddress>,
}

impl Device {
    pub(super) fn transport(&self) -> TransportId {
        self.address.map_or(TransportId::Tcp, |address| address.transport())
    }
}

/// The devices of a worker's interfaces, each with the interface as its number.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<Vec<(usize, Device)>>);

impl Devices {
    fn all(&self) -> MutexGuard<'_, Vec<(usize, Device)>> {
        // Every change is one operation of the vector, so a poisoned one is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, iface: &Iface) {
        let interface = &iface.interface;
        let address = Some(*interface.address().device());
        // SAFETY: the domain is open while its interfaces are.
        let name = unsafe { &(*iface.md).domain }.name().to_owned();
        self.all().push((std::ptr::from_ref(iface).addr(), Device { name, address }));
    }

    pub(crate) fn remove(&self, iface: &Iface) {
        let number = std::ptr::from_ref(iface).addr();
        self.all().retain(|(other, _)| *other != number);
    }

    /// Returns the device for a connection whose own address is `own`: that of `tcp` on this
    /// network interface, or else the first one of another transport that reaches other processes.
    /// If the peer has named a `transport`, the device is one of it.
    pub(super) fn select(&self, own: IpAddr, transport: Option<TransportId>) -> Device {
        let own = own.to_canonical();
        let known = interfaces::list().unwrap_or_default();
        let over =
            known.into_iter().find(|one| one.addresses.iter().any(|address| address.ip() == own));
        let network = over.map_or_else(|| own.to_string(), |one| one.name);
        let all = self.all();
        let fits = |device: &&Device| transport.is_none_or(|wanted| device.transport() == wanted);
        let mut devices = all.iter().map(|(_, device)| device).filter(fits);
        let found = devices
            .clone()
            .find(|device| device.transport() == TransportId::Tcp && device.name == network)
            .or_else(|| {
                devices.find(|device| {
                    !matches!(device.transport(), TransportId::Tcp | TransportId::Self_)
                })
            });
        found.cloned().unwrap_or(Device { name: network, address: None })
    }
}
