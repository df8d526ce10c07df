//! The commands that programs write to the file.

use std::net::UdpSocket;
use std::os::fd::RawFd;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::abi::{
    Accept, Bind, BindIp, CommandHeader, Connect, CreateId, DestroyId, Disconnect, Ece,
    EventResponse, Function, GetEvent, InitQpAttr, JoinIpMcast, JoinMcast, Listen, MigrateId,
    Notify, Query, Reject, ResolveAddr, ResolveIp, ResolveRoute, SetOption, command, option,
};
use super::address::{self, Address};
use super::{Channel, directory, options};
use crate::errno::Errno;
use crate::explain::explained;
use crate::{process, user_memory};

/// Longest command.
pub(crate) const LONGEST: usize = 512;

/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`, the other of the two ways to join a group. Here they
/// are the same.
const SEND_ONLY: u16 = 1;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// There is no event yet.
    NoEvent,
}

/// The arguments of a command.
struct Arguments<'a> {
    bytes: &'a [u8],
    /// Bytes for the response.
    room: usize,
}

impl Arguments<'_> {
    /// Returns the arguments as a structure, of which programs of older versions may leave out the
    /// last `optional` bytes.
    fn get<T: FromBytes + FromZeros + IntoBytes>(&self, optional: usize) -> Result<T, Errno> {
        let mut structure = T::new_zeroed();
        let bytes = structure.as_mut_bytes();
        let length = self.bytes.len().min(bytes.len());
        if length + optional < bytes.len() {
            return Err(Errno::INVALID);
        }
        bytes[..length].copy_from_slice(&self.bytes[..length]);
        Ok(structure)
    }

    /// Writes a response: at least `least` bytes of it, and as many as the program has room for.
    fn put(&self, to: u64, response: &[u8], least: usize) -> Result<(), Errno> {
        if self.room < least {
            return Err(Errno::NO_SPACE);
        }
        let response = &response[..response.len().min(self.room)];
        // SAFETY: a program that writes a command passes the address of memory for the response,
        // which no Rust code refers to. The kernel checks the address.
        unsafe { user_memory::write(to, response) }
    }

    fn put_all<T: IntoBytes + Immutable>(&self, to: u64, response: &T) -> Result<(), Errno> {
        self.put(to, response.as_bytes(), size_of::<T>())
    }
}

/// Returns whether this machine has the address.
fn is_local(address: Address) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

impl Channel {
    /// Executes a command.
    pub(crate) fn execute(&self, bytes: &[u8]) -> Result<Outcome, Errno> {
        let (header, rest) = CommandHeader::read_from_prefix(bytes).map_err(|_| Errno::INVALID)?;
        explained(&Function(header.cmd), |_| false, || self.executed(header, rest))
    }

    fn executed(&self, header: CommandHeader, rest: &[u8]) -> Result<Outcome, Errno> {
        let bytes = rest.get(..usize::from(header.size_in)).ok_or(Errno::INVALID)?;
        let arguments = &Arguments { bytes, room: header.size_out.into() };
        match header.cmd {
            command::CREATE_ID => self.create(arguments),
            command::DESTROY_ID => self.destroy(arguments),
            command::BIND_IP => {
                let request: BindIp = arguments.get(4)?;
                self.bind(request.id, &request.addr)
            }
            command::BIND => {
                let request: Bind = arguments.get(0)?;
                self.bind(request.id, sized(&request.addr, request.addr_size)?)
            }
            command::RESOLVE_IP => {
                let request: ResolveIp = arguments.get(0)?;
                self.resolve(request.id, &request.src_addr, &request.dst_addr)
            }
            command::RESOLVE_ADDR => {
                let request: ResolveAddr = arguments.get(0)?;
                let source = match request.src_size {
                    0 => &[0; 2],
                    size => sized(&request.src_addr, size)?,
                };
                self.resolve(request.id, source, sized(&request.dst_addr, request.dst_size)?)
            }
            command::RESOLVE_ROUTE => {
                let request: ResolveRoute = arguments.get(0)?;
                self.with(|state, _| state.resolve_route(self.number, request.id))
            }
            command::QUERY_ROUTE => {
                let request: Query = arguments.get(4)?;
                let response = self.with(|state, _| state.query_route(self.number, request.id))?;
                // The index of the device is a later addition.
                arguments.put(request.response, response.as_bytes(), response.as_bytes().len() - 8)
            }
            command::QUERY => {
                let request: Query = arguments.get(0)?;
                let (id, option) = (request.id, request.option);
                let response = self.with(|state, _| state.query(self.number, id, option))?;
                arguments.put(request.response, &response, 8)
            }
            command::CONNECT => self.connect(arguments),
            command::LISTEN => self.listen(arguments),
            command::ACCEPT => {
                let request: Accept = arguments.get(size_of::<Ece>())?;
                self.with(|state, now| state.accept(self.number, &request, now))
            }
            command::REJECT => {
                let request: Reject = arguments.get(0)?;
                self.with(|state, _| state.reject(self.number, &request))
            }
            command::DISCONNECT => {
                let request: Disconnect = arguments.get(0)?;
                self.with(|state, now| state.disconnect(self.number, request.id, now))
            }
            command::INIT_QP_ATTR => {
                let request: InitQpAttr = arguments.get(0)?;
                let attributes = self.with(|state, _| state.queue_pair(self.number, &request))?;
                arguments.put_all(request.response, &attributes)
            }
            command::GET_EVENT => return self.event(arguments),
            command::SET_OPTION => self.set_option(&arguments.get(0)?),
            command::NOTIFY => {
                let request: Notify = arguments.get(0)?;
                self.with(|state, _| state.notify(self.number, request.id, request.event))
            }
            command::MIGRATE_ID => self.migrate(arguments),
            command::JOIN_IP_MCAST => {
                let request: JoinIpMcast = arguments.get(0)?;
                let names = (request.id, request.uid);
                self.join(arguments, request.response, names, &request.addr)
            }
            command::JOIN_MCAST => {
                let request: JoinMcast = arguments.get(0)?;
                if request.join_flags > SEND_ONLY {
                    return Err(Errno::INVALID);
                }
                let names = (request.id, request.uid);
                let address = sized(&request.addr, request.addr_size)?;
                self.join(arguments, request.response, names, address)
            }
            command::LEAVE_MCAST => {
                let request: DestroyId = arguments.get(4)?;
                let reported = self.with(|state, _| state.leave(self.number, request.id))?;
                arguments.put_all(request.response, &reported)
            }
            command::GET_OPTION => Err(Errno(libc::ENOSYS)),
            _ => Err(Errno::INVALID),
        }
        .map(|()| Outcome::Done)
    }

    fn create(&self, arguments: &Arguments<'_>) -> Result<(), Errno> {
        let request: CreateId = arguments.get(0)?;
        let kind = (request.ps, request.qp_type);
        let id = self.with(|state, _| state.create(self.number, request.uid, kind))?;
        arguments.put_all(request.response, &id).inspect_err(|_| {
            self.with(|state, now| state.remove(id, now));
        })
    }

    fn destroy(&self, arguments: &Arguments<'_>) -> Result<(), Errno> {
        let request: DestroyId = arguments.get(4)?;
        let reported = self.with(|state, now| {
            state.id(self.number, request.id)?;
            Ok::<_, Errno>(state.remove(request.id, now))
        })?;
        self.manager.forget_names();
        arguments.put_all(request.response, &reported)
    }

    fn bind(&self, id: u32, bytes: &[u8]) -> Result<(), Errno> {
        let address = address::read(bytes)?.ok_or(Errno(libc::EAFNOSUPPORT))?;
        self.manager.open_devices()?;
        let local = is_local(address);
        self.with(|state, now| {
            state.bind(self.number, id, address, local)?;
            state.expect_listener(id, now);
            Ok::<_, Errno>(())
        })?;
        self.manager.enter_name(id);
        Ok(())
    }

    fn resolve(&self, id: u32, source: &[u8], destination: &[u8]) -> Result<(), Errno> {
        let source = address::read(source)?;
        let destination = address::read(destination)?.ok_or(Errno::INVALID)?;
        self.manager.open_devices()?;
        let source = (source, source.is_none_or(is_local));
        self.with(|state, _| state.resolve_address(self.number, id, source, destination))
    }

    fn join(
        &self,
        arguments: &Arguments<'_>,
        response: u64,
        names: (u32, u64),
        address: &[u8],
    ) -> Result<(), Errno> {
        let group = address::read(address)?.ok_or(Errno::INVALID)?;
        let number = self.with(|state, _| state.join(self.number, names, group))?;
        arguments.put_all(response, &number).inspect_err(|_| {
            // The first error is the one to report.
            let _ = self.with(|state, _| state.leave(self.number, number));
        })
    }

    fn connect(&self, arguments: &Arguments<'_>) -> Result<(), Errno> {
        let request: Connect = arguments.get(size_of::<Ece>())?;
        let (service, destination) =
            self.with(|state, _| state.destination(self.number, request.id))?;
        // A GID names a device, an IP address also a machine.
        let peer = match destination.native {
            Some(_) => Some(destination.ip()),
            None => directory::find(service, destination.ip()),
        };
        self.with(|state, now| state.connect(self.number, &request, peer, now))
    }

    fn listen(&self, arguments: &Arguments<'_>) -> Result<(), Errno> {
        let request: Listen = arguments.get(0)?;
        self.manager.open_devices()?;
        self.with(|state, _| state.listen(self.number, request.id, request.backlog))?;
        self.manager.enter_name(request.id);
        Ok(())
    }

    fn event(&self, arguments: &Arguments<'_>) -> Result<Outcome, Errno> {
        let request: GetEvent = arguments.get(0)?;
        let least = size_of::<EventResponse>() - 4 - size_of::<Ece>();
        self.with(|state, _| {
            let Some(event) = state.first_event(self.number) else { return Ok(Outcome::NoEvent) };
            arguments.put(request.response, event.as_bytes(), least)?;
            state.event_read(self.number);
            Ok(Outcome::Done)
        })
    }

    fn set_option(&self, request: &SetOption) -> Result<(), Errno> {
        if request.level != option::LEVEL {
            return Err(Errno(libc::ENOSYS));
        }
        let mut value = [0; 4];
        let width = options::width(request.optname)?;
        if request.optlen as usize != width {
            return Err(Errno::INVALID);
        }
        // SAFETY: a program that writes this command passes the address of the option's value. The
        // kernel checks the address.
        unsafe { user_memory::read(request.optval, &mut value[..width]) }?;
        self.with(|state, _| state.id(self.number, request.id)?.set_option(request.optname, value))
    }

    fn migrate(&self, arguments: &Arguments<'_>) -> Result<(), Errno> {
        let request: MigrateId = arguments.get(0)?;
        let from = process::get().channel(request.fd as RawFd)?.number;
        let reported = self.with(|state, _| state.migrate(from, request.id, self.number))?;
        arguments.put_all(request.response, &reported)
    }
}

/// Returns the address of which a command has `size` bytes.
fn sized(bytes: &[u8], size: u16) -> Result<&[u8], Errno> {
    bytes.get(..size.into()).filter(|bytes| !bytes.is_empty()).ok_or(Errno::INVALID)
}
