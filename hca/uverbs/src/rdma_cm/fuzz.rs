//! Fuzz targets of the connection manager: datagrams of peers, and commands of the program. They
//! are here, and not in `fuzz/`, because no other crate has this code. See CONTRIBUTING.md.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bolero::check;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::abi::{
    Accept, CommandHeader, ConnParam, Connect, EventType, InitQpAttr, Reject, command,
};
use super::address::{Address, Ends, Native, write as sockaddr};
use super::link::Link;
use super::message::{
    Bytes, ConnectionRequest, Content, Enhancements, Ids, Parameters, Transport, write,
};
use super::signal::Signal;
use super::state::{InfiniBand, PS_TCP, PS_UDP, Port, State};
use super::{Channel, LONGEST, Manager};
use crate::errno::Errno;

#[path = "../../../../fuzz/tests/targets/script.rs"]
mod script;

use script::{Script, bytes_to};

const RC: (u16, u8) = (PS_TCP, 2);
const UD: (u16, u8) = (PS_UDP, 4);
const PORT: u16 = 7174;
const BACKLOG: u32 = 4;
/// Longer than any connection lives without datagrams and commands.
const LONG: Duration = Duration::from_hours(1);

fn own() -> IpAddr {
    IpAddr::from([127, 9, 0, 1])
}

/// The addresses from which datagrams come.
fn peer(script: &mut Script<'_>) -> IpAddr {
    match script.byte() {
        0xff => "fd00::7".parse().expect("an address"),
        last => IpAddr::from([127, 9, 0, 2 + last % 2]),
    }
}

/// Returns an entry of a map by its place; any number if there is none.
fn some<K: Copy, V>(map: &BTreeMap<K, V>, script: &mut Script<'_>, other: fn(u32) -> K) -> K {
    let place = usize::from(script.byte());
    let key = place.checked_rem(map.len()).and_then(|place| map.keys().nth(place));
    key.copied().filter(|_| place != 0xff).unwrap_or_else(|| other(script.byte().into()))
}

fn parameters(qpn: u32, script: &mut Script<'_>) -> Parameters {
    let [depths, retries, flags] = script.array();
    Parameters {
        qpn,
        psn: 5,
        responder_resources: depths,
        initiator_depth: depths >> 4,
        flow_control: flags & 1 != 0,
        retries: retries & 7,
        rnr_retries: retries >> 4 & 7,
        srq: flags & 2 != 0,
        enhancements: Enhancements { vendor: 0x15b3, options: u32::from(flags) },
    }
}

/// A datagram that mostly belongs to a connection, with its source.
fn datagram(links: &BTreeMap<u32, Link>, script: &mut Script<'_>) -> (IpAddr, Bytes) {
    let (kind, mut source) = (script.byte(), peer(script));
    let remote = some(links, script, |number| number);
    let mut pair = Ids { local: script.byte().into(), remote };
    let mut qpn = u32::from(script.byte());
    if let Some(link) = links.get(&remote).filter(|_| kind & 0x10 == 0) {
        (source, pair.local, qpn) = (link.peer, link.remote_id, link.local.qpn);
    }
    let id = pair.local;
    let service = |space: u16| u64::from(space) << 16 | u64::from(PORT);
    let ends = Ends { source: SocketAddr::new(source, 99), destination: own() };
    let mut private = [7; 216];
    ends.write(&mut private);
    let content = match kind % 16 {
        0 | 1 => Content::Request(ConnectionRequest {
            id,
            service: service(RC.0),
            guid: [3; 8],
            transport: [Some(Transport::Rc), Some(Transport::Xrc), None]
                [usize::from(kind >> 6) % 3],
            parameters: parameters(qpn, script),
            mtu: 5,
            gids: [[1; 16], [2; 16]],
            lids: (kind & 8 != 0).then_some([1, 2]),
            traffic_class: 0,
            ack_timeout: 17,
            private: private[..92].try_into().expect("its length"),
        }),
        2 | 3 => {
            let parameters = parameters(qpn, script);
            Content::Reply { pair, guid: [3; 8], parameters, private: [4; 196] }
        }
        4 => Content::ReadyToUse(pair),
        5 => Content::Rejected { pair, message: 0, reason: script.number(), private: [0; 148] },
        6 => Content::Acknowledged { pair, message: 0, timeout: script.byte() & 0x1f },
        7 | 8 => Content::DisconnectRequest { pair, qpn },
        9 => Content::DisconnectReply(pair),
        10 | 11 => Content::ServiceRequest { id, service: service(UD.0), private },
        12 => {
            let (status, id) = (script.byte() % 4, remote);
            Content::ServiceReply { id, status, service: 0, qpn, qkey: 1, private: [0; 136] }
        }
        _ => {
            let mut bytes = [0; size_of::<Bytes>()];
            let given = script.bytes(bytes.len());
            bytes[..given.len()].copy_from_slice(given);
            return (source, bytes);
        }
    };
    let mut bytes = write(u64::from(script.byte()), &content);
    script.mutate(&mut bytes);
    (source, bytes)
}

/// A program with two listeners, whose time the test sets.
struct Program {
    state: State,
    channel: u64,
    now: Instant,
    /// Its actions so far.
    actions: usize,
}

impl Program {
    fn new() -> Self {
        let mut state = State::new();
        state.ports.push(Port {
            device: 0,
            number: 1,
            guid: [1; 8],
            address: own(),
            mtu: 5,
            infiniband: None,
        });
        let channel = state.open(Signal::new(0).expect("an eventfd").1);
        let mut program = Self { state, channel, now: Instant::now(), actions: 0 };
        for kind in [RC, UD] {
            program.listen(kind, PORT).expect("the port is free");
        }
        program
    }

    fn listen(&mut self, kind: (u16, u8), port: u16) -> Result<(), Errno> {
        let id = self.state.create(self.channel, 1, kind)?;
        let address = SocketAddr::from(([0; 4], port));
        self.state.bind(self.channel, id, address, true)?;
        self.state.listen(self.channel, id, BACKLOG)
    }

    fn connect(&mut self, kind: (u16, u8), to: IpAddr, qpn: u8) -> Result<(), Errno> {
        let id = self.state.create(self.channel, 2, kind)?;
        self.state.resolve_address(self.channel, id, (None, true), SocketAddr::new(to, PORT))?;
        self.state.resolve_route(self.channel, id)?;
        let mut connect = Connect::new_zeroed();
        (connect.id, connect.conn_param.valid) = (id, 1);
        connect.conn_param.qp_num = qpn.into();
        self.state.connect(self.channel, &connect, Some(to), self.now)
    }

    /// Does what the script says. Most of it is refused.
    fn act(&mut self, script: &mut Script<'_>) -> Result<(), Errno> {
        self.actions += 1;
        let (channel, now) = (self.channel, self.now);
        let what = script.byte();
        let id = some(&self.state.ids, script, |number| number);
        match what % 12 {
            0 | 1 => self.state.event_read(channel),
            2 | 3 => {
                // Reads an event, and accepts a request or confirms a reply.
                let event = self.state.first_event(channel).copied();
                self.state.event_read(channel);
                let event = event.ok_or(Errno::NO_ENTRY)?;
                let mut accept = Accept::new_zeroed();
                (accept.id, accept.uid) = (event.id, 3);
                accept.conn_param.qp_num = script.byte().into();
                let confirms = event.event == EventType::ConnectResponse as u32;
                accept.conn_param.valid = u8::from(!confirms);
                self.state.accept(channel, &accept, now)?;
            }
            4 => {
                let mut accept = Accept::new_zeroed();
                accept.id = id;
                accept.conn_param = script_parameters(script);
                self.state.accept(channel, &accept, now)?;
            }
            5 => {
                let mut reject = Reject::new_zeroed();
                (reject.id, reject.private_data_len) = (id, script.byte());
                self.state.reject(channel, &reject)?;
            }
            6 => self.state.disconnect(channel, id, now)?,
            7 => _ = self.state.remove(id, now),
            8 => {
                let (kind, to) = (if what & 0x80 == 0 { RC } else { UD }, peer(script));
                self.connect(kind, to, script.byte())?;
            }
            9 => self.listen(if what & 0x80 == 0 { RC } else { UD }, script.number())?,
            10 => {
                let request = InitQpAttr { response: 0, id, qp_state: (what >> 6).into() };
                self.state.queue_pair(channel, &request)?;
                self.state.query_route(channel, id)?;
                self.state.query(channel, id, u32::from(what >> 6))?;
            }
            _ => self.state.notify(channel, id, u32::from(what >> 4))?,
        }
        Ok(())
    }

    /// What a peer sends must not make the state grow without limit: only the program's own actions
    /// do.
    fn check(&self) {
        let most = 4 + (2 * BACKLOG as usize + 4) * (self.actions + 1);
        let held = [self.state.links.len(), self.state.ids.len()];
        assert!(held.iter().all(|&held| held <= most), "{held:?} after {}", self.actions);
        let events = self.state.channels.values().map(|events| events.waiting.len()).sum::<usize>();
        // A connection has at most a few events.
        assert!(events <= 8 * most, "{events} events after {}", self.actions);
    }
}

fn script_parameters(script: &mut Script<'_>) -> ConnParam {
    let mut parameters = ConnParam::new_zeroed();
    let bytes = parameters.as_mut_bytes();
    let length = usize::from(script.byte()).min(bytes.len());
    let given = script.bytes(length);
    bytes[..given.len()].copy_from_slice(given);
    parameters
}

/// Lets all time pass, and asserts that nothing is left.
fn comes_to_an_end(state: &mut State, mut now: Instant) {
    for _ in 0..40 {
        now += LONG;
        state.expire(now);
        state.outbox.clear();
    }
    assert!(state.links.is_empty() && state.ids.is_empty(), "{state:?}");
    assert_eq!(state.deadline(), None);
}

#[test]
fn any_datagrams() {
    check!().with_generator(bytes_to(2048)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut program = Program::new();
        while !script.is_over() {
            match script.byte() {
                0..0xa0 => {
                    let (source, bytes) = datagram(&program.state.links, &mut script);
                    program.state.receive(0, source, &bytes, program.now);
                    assert!(program.state.outbox.len() <= 2, "{:?}", program.state.outbox);
                }
                0xa0..0xf0 => _ = program.act(&mut script),
                _ => {
                    program.now += Duration::from_millis(script.number().into());
                    program.state.expire(program.now);
                    assert!(program.state.outbox.len() <= 2 * program.state.links.len() + 1);
                }
            }
            program.state.outbox.clear();
            program.check();
        }
        program.state.close(program.channel, program.now);
        comes_to_an_end(&mut program.state, program.now);
    });
}

/// Memory for the responses to commands.
#[repr(align(8))]
struct Room([u8; 1024]);

/// The place of the address in a command's arguments to which its response goes, or at which the
/// value of an option is.
fn address_place(number: u32) -> Option<usize> {
    match number {
        command::CREATE_ID => Some(8),
        command::DESTROY_ID
        | command::QUERY_ROUTE
        | command::QUERY
        | command::INIT_QP_ATTR
        | command::GET_EVENT
        | command::GET_OPTION
        | command::SET_OPTION
        | command::JOIN_IP_MCAST
        | command::LEAVE_MCAST
        | command::MIGRATE_ID
        | command::JOIN_MCAST => Some(0),
        _ => None,
    }
}

/// The place of the identifier.
fn id_place(number: u32) -> Option<usize> {
    match number {
        command::BIND
        | command::RESOLVE_ADDR
        | command::RESOLVE_ROUTE
        | command::LISTEN
        | command::REJECT
        | command::DISCONNECT
        | command::NOTIFY => Some(0),
        command::DESTROY_ID
        | command::QUERY_ROUTE
        | command::QUERY
        | command::INIT_QP_ATTR
        | command::SET_OPTION
        | command::MIGRATE_ID => Some(8),
        command::BIND_IP => Some(36),
        command::RESOLVE_IP => Some(56),
        command::CONNECT => Some(size_of::<ConnParam>()),
        command::ACCEPT => Some(8 + size_of::<ConnParam>()),
        _ => None,
    }
}

fn put(bytes: &mut [u8], place: usize, value: &[u8]) {
    if let Some(part) = bytes.get_mut(place..).and_then(|rest| rest.get_mut(..value.len())) {
        part.copy_from_slice(value);
    }
}

/// A command with arbitrary arguments, of which most name an identifier and a valid address.
fn command_of(manager: &Manager, room: &mut Room, script: &mut Script<'_>) -> Vec<u8> {
    let [number, how, length] = script.array();
    let number = u32::from(number % 26);
    // Most have the length of their structure.
    let length = match number {
        command::CREATE_ID | command::SET_OPTION => 24,
        command::BIND => 136,
        command::RESOLVE_ADDR => 272,
        command::BIND_IP => 40,
        command::RESOLVE_IP => 64,
        command::CONNECT => 288,
        command::ACCEPT => 296,
        command::REJECT => 264,
        command::DISCONNECT => 4,
        command::RESOLVE_ROUTE | command::LISTEN | command::NOTIFY | command::GET_EVENT => 8,
        _ => 16,
    }
    .min(if how & 3 == 3 { 2 * usize::from(length) } else { usize::MAX });
    let mut arguments = vec![0; length];
    let given = usize::from(script.byte()).min(length);
    let given = script.bytes(given);
    arguments[..given.len()].copy_from_slice(given);
    if how & 4 == 0 {
        let addresses: &[usize] = match number {
            command::BIND | command::BIND_IP => &[8],
            command::RESOLVE_ADDR => &[144],
            command::RESOLVE_IP => &[28],
            _ => &[],
        };
        let mut size = 0;
        for &place in addresses {
            let choice = script.byte();
            let ip = if choice & 1 == 0 { own() } else { [0; 4].into() };
            let ip = Address::from(SocketAddr::new(ip, script.number()));
            // Other commands have no room for AF_IB addresses.
            let is_native = choice & 2 != 0 && addresses != [28];
            let native = Native::of_service(u64::from(RC.0) << 16 | u64::from(ip.port()));
            let address = Address { native: is_native.then_some(native), ..ip };
            let bytes;
            (bytes, size) = sockaddr(Some(address));
            put(&mut arguments, place, &bytes[..usize::from(size)]);
        }
        match number {
            command::BIND => put(&mut arguments, 4, &size.to_ne_bytes()),
            command::RESOLVE_ADDR => {
                put(&mut arguments, 8, &(u32::from(size) << 16).to_ne_bytes());
            }
            command::CREATE_ID => put(&mut arguments, 16, &RC.0.to_ne_bytes()),
            command::CONNECT | command::ACCEPT => {
                let start = if number == command::ACCEPT { 8 } else { 0 };
                put(&mut arguments, start + size_of::<ConnParam>() - 1, &[how >> 7]);
                put(&mut arguments, start + 8 + 256, &[how >> 3 & 0xf]);
            }
            _ => {}
        }
    }
    if let Some(place) = id_place(number).filter(|_| how & 8 == 0) {
        let id = some(&super::lock(&manager.state).ids, script, |number| number);
        put(&mut arguments, place, &id.to_ne_bytes());
    }
    // Last: any other address might be memory of the test.
    if let Some(place) = address_place(number) {
        let start = room.0.as_mut_ptr().addr() as u64;
        let address = if how & 0x30 == 0x30 { 8 } else { start };
        put(&mut arguments, place, &address.to_ne_bytes());
    }
    let size_out = if how & 0x40 == 0 { 512 } else { u16::from(script.byte()) };
    let size_in = arguments.len() as u16 ^ if how == 0xff { script.number() } else { 0 };
    let header = CommandHeader { cmd: number, size_in, size_out };
    [header.as_bytes(), &arguments].concat()
}

/// Executes a command. One that looks for a listener gets the responses of the manager's thread.
fn execute(manager: &Manager, channel: &Channel, bytes: &[u8]) {
    let header = CommandHeader::read_from_prefix(bytes).expect("it is long enough").0;
    if header.cmd != command::CONNECT {
        let _ = channel.execute(bytes);
        return;
    }
    std::thread::scope(|scope| {
        let executed = scope.spawn(|| channel.execute(bytes));
        while !executed.is_finished() {
            manager.respond();
            std::thread::yield_now();
        }
        let _ = executed.join().expect("no panic");
    });
}

#[test]
fn any_commands() {
    check!().with_generator(bytes_to(2048)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let manager = Arc::new(Manager::new().expect("an eventfd"));
        manager.open_devices().expect("an address of 127.0.0.0/8 is free");
        // Of a device that there is not, so that no datagram reaches another program.
        super::lock(&manager.state).ports = vec![Port {
            device: usize::MAX,
            number: 1,
            guid: [1; 8],
            address: own(),
            mtu: 5,
            infiniband: Some(InfiniBand { lid: 1, global_route: false }),
        }];
        let mut files = [0, 0].map(|_| Some(manager.open(libc::O_CLOEXEC).expect("an eventfd")));
        let mut room = Room([0; 1024]);
        let mut commands = 0;
        while !script.is_over() {
            let which = script.byte();
            let file = &mut files[usize::from(which & 1)];
            match which >> 1 {
                0..0x60 => {
                    let command = command_of(&manager, &mut room, &mut script);
                    if let Some((_, channel)) = file.as_ref().filter(|_| command.len() <= LONGEST) {
                        execute(&manager, channel, &command);
                    }
                    commands += 1;
                }
                0x60..0x78 => {
                    let mut state = super::lock(&manager.state);
                    let (source, bytes) = datagram(&state.links, &mut script);
                    state.receive(0, source, &bytes, Instant::now());
                    state.outbox.clear();
                }
                0x78..0x7c => manager.with(|state, now| {
                    state.expire(now + Duration::from_millis(script.number().into()));
                }),
                // As MIGRATE_ID does, which names the other file by its descriptor.
                0x7c..0x7e => {
                    let numbers = files.each_ref().map(|file| {
                        file.as_ref().map_or(0, |(_, channel): &(_, Channel)| channel.number)
                    });
                    let (from, to) = (numbers[usize::from(which & 1)], numbers[0]);
                    let mut state = super::lock(&manager.state);
                    let id = some(&state.ids, &mut script, |number| number);
                    if to != 0 {
                        let _ = state.migrate(from, id, to);
                    }
                }
                _ => *file = None,
            }
            let state = super::lock(&manager.state);
            let most = (commands + 1) * 1025;
            assert!(state.links.len() <= most && state.ids.len() <= most, "{state:?}");
        }
        drop(files);
        comes_to_an_end(&mut super::lock(&manager.state), Instant::now());
        assert!(super::lock(&manager.state).channels.is_empty());
    });
}
