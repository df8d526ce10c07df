//! Clients and servers as programs in C, which libucs calls from its thread.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block makes calls of C with handles of the test"
)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{self, Receiver, Sender};

use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::{HandshakeError, Verdict};
use barewire_tcp::listener::Limits;
use barewire_tcp::socket::Socket;

use super::endpoint::uct_ep_query;
use super::frame::{Frame, Kind, LONGEST, MOST_DATA};
use super::listener::{
    to_storage, uct_listener_create, uct_listener_destroy, uct_listener_query, uct_listener_reject,
};
use super::*;
use crate::abi::EpParams;
use crate::abi::client_server::{
    ClientConnectArgs, ConnRequestArgs, EpAttr, EpConnectParams, ListenerAttr, ListenerParams,
    RemoteData, ResolveArgs, ServerNotifyArgs, SockAddr,
};
use crate::dispatch::{
    uct_cm_client_ep_conn_notify, uct_ep_connect, uct_ep_create, uct_ep_destroy, uct_ep_disconnect,
};
use crate::endpoint::Ep;
use crate::status::{
    BUFFER_TOO_SMALL, BUSY, CONNECTION_RESET, INPROGRESS, INVALID_ADDR, NOT_CONNECTED, OK,
    REJECTED, UNREACHABLE,
};
use crate::tests::{Context, Rig};

const DEADLINE: Duration = Duration::from_mins(1);

/// What a callback was called with.
#[derive(Debug, PartialEq)]
enum Seen {
    Resolved { device: String, status: Status },
    Request { request: usize, device: String, address: Vec<u8>, data: Vec<u8>, peer: u16 },
    Response { data: Vec<u8>, status: Status },
    Notified(Status),
    Disconnected,
}

/// The user data of callbacks.
struct Program(Sender<Seen>);

impl Program {
    fn new() -> (Box<Self>, Receiver<Seen>) {
        let (sender, receiver) = mpsc::channel();
        (Box::new(Self(sender)), receiver)
    }

    fn data(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    unsafe fn see(data: *mut c_void, seen: Seen) {
        unsafe { &*data.cast::<Self>() }.0.send(seen).unwrap();
    }
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(DEADLINE).expect("a callback is called")
}

fn name_of(name: &[std::ffi::c_char; 32]) -> String {
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().unwrap().to_owned()
}

unsafe fn data_of(remote: *const RemoteData) -> (Vec<u8>, Vec<u8>) {
    unsafe {
        let remote = &*remote;
        if remote.field_mask == 0 {
            return (vec![], vec![]);
        }
        let bytes = |start: *const u8, length| std::slice::from_raw_parts(start, length).to_vec();
        (
            bytes(remote.dev_addr.cast(), remote.dev_addr_length),
            bytes(remote.conn_priv_data.cast(), remote.conn_priv_data_length),
        )
    }
}

unsafe extern "C" fn requested(
    _: *mut CmListener,
    data: *mut c_void,
    arguments: *const ConnRequestArgs,
) {
    unsafe {
        let arguments = &*arguments;
        let client = arguments.client_address.addr;
        let peer = listener::read_address(client, arguments.client_address.length).unwrap().port();
        let (request, device) = (arguments.conn_request.addr(), name_of(&arguments.dev_name));
        let (address, private) = data_of(arguments.remote_data);
        Program::see(data, Seen::Request { request, device, address, data: private, peer });
    }
}

unsafe extern "C" fn resolved(data: *mut c_void, arguments: *const ResolveArgs) -> Status {
    unsafe {
        let (device, status) = (name_of(&(*arguments).dev_name), (*arguments).status);
        Program::see(data, Seen::Resolved { device, status });
    }
    OK
}

unsafe extern "C" fn responded(_: *mut Ep, data: *mut c_void, arguments: *const ClientConnectArgs) {
    unsafe {
        let (_, private) = data_of((*arguments).remote_data);
        Program::see(data, Seen::Response { data: private, status: (*arguments).status });
    }
}

unsafe extern "C" fn notified(_: *mut Ep, data: *mut c_void, arguments: *const ServerNotifyArgs) {
    unsafe { Program::see(data, Seen::Notified((*arguments).status)) };
}

unsafe extern "C" fn disconnected(_: *mut Ep, data: *mut c_void) {
    unsafe { Program::see(data, Seen::Disconnected) };
}

/// A connection manager, with an interface of `tcp` on its worker.
struct Manager {
    cm: *mut Cm,
    rig: Rig,
    context: Context,
}

impl Manager {
    /// Opens one; `None` without libucs.
    fn new(context: fn() -> Context, key: &Key) -> Option<Self> {
        let rig = Rig::over(c"tcp", c"lo")?;
        let (context, mut cm) = (context(), null_mut());
        unsafe {
            (*rig.worker).context = context.0;
            assert_eq!(uct_cm_open(rig.component, rig.worker, null(), &raw mut cm), OK);
            let open = &*cm;
            assert!(open.start(&open.lock(), key.clone()).is_ok());
        }
        Some(Self { cm, rig, context })
    }

    /// Listens on a free port, and returns its address.
    fn listen(&self, program: &Program, backlog: i32) -> (*mut CmListener, SocketAddr) {
        let mut listener = null_mut();
        assert_eq!(self.try_listen(localhost(0), program, backlog, &mut listener), OK);
        let mut attr: ListenerAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.field_mask = ListenerAttr::SOCKADDR;
        unsafe {
            assert_eq!(uct_listener_query(listener, &raw mut attr), OK);
            let address = (&raw const attr.sockaddr).cast();
            let length = size_of::<libc::sockaddr_storage>() as u32;
            (listener, listener::read_address(address, length).unwrap())
        }
    }

    fn try_listen(
        &self,
        address: SocketAddr,
        program: &Program,
        backlog: i32,
        listener: &mut *mut CmListener,
    ) -> Status {
        let (storage, length) = to_storage(address);
        let params = ListenerParams {
            field_mask: ListenerParams::CONN_REQUEST_CB
                | ListenerParams::USER_DATA
                | ListenerParams::BACKLOG,
            backlog,
            conn_request_cb: Some(requested),
            user_data: program.data(),
        };
        unsafe {
            let address = (&raw const storage).cast();
            uct_listener_create(self.cm, address, length, &raw const params, listener)
        }
    }

    /// Parameters of an endpoint with every callback.
    fn params(&self, program: &Program) -> EpParams {
        let mut params: EpParams = unsafe { MaybeUninit::zeroed().assume_init() };
        params.field_mask = EpParams::CM
            | EpParams::USER_DATA
            | EpParams::SOCKADDR_CB_FLAGS
            | EpParams::DISCONNECT_CB;
        params.cm = self.cm;
        params.user_data = program.data();
        params.sockaddr_cb_flags = EpParams::CB_ASYNC;
        params.disconnect_cb = Some(disconnected);
        params
    }

    /// Begins to connect.
    fn dial(&self, peer: SocketAddr, program: &Program) -> *mut Ep {
        let (storage, length) = to_storage(peer);
        let address = SockAddr { addr: (&raw const storage).cast(), length };
        let mut params = self.params(program);
        params.field_mask |=
            EpParams::SOCKADDR | EpParams::CM_RESOLVE_CB | EpParams::CONNECT_CB_CLIENT;
        params.sockaddr = &raw const address;
        params.cm_resolve_cb = Some(resolved);
        params.sockaddr_cb_client = Some(responded);
        let mut ep = null_mut();
        assert_eq!(unsafe { uct_ep_create(&raw const params, &raw mut ep) }, OK);
        ep
    }

    /// Accepts a request with private data.
    fn accept(&self, request: usize, program: &Program, data: &[u8]) -> Result<*mut Ep, Status> {
        let mut params = self.params(program);
        params.field_mask |= EpParams::CONN_REQUEST
            | EpParams::NOTIFY_CB_SERVER
            | EpParams::PRIV_DATA
            | EpParams::PRIV_DATA_LENGTH;
        params.conn_request = std::ptr::with_exposed_provenance_mut(request);
        params.sockaddr_cb_server = Some(notified);
        (params.private_data, params.private_data_length) = (data.as_ptr(), data.len());
        let mut ep = null_mut();
        match unsafe { uct_ep_create(&raw const params, &raw mut ep) } {
            OK => Ok(ep),
            status => Err(status),
        }
    }

    /// Returns how many connections there are.
    fn connections(&self) -> usize {
        let open = unsafe { &*self.cm };
        open.with_core(|core| Ok(core.connections.borrow().len())).unwrap()
    }

    /// Closes it before its worker is destroyed, and that before its context is.
    fn close(self) {
        unsafe { uct_cm_close(self.cm) };
        drop(self.rig);
        drop(self.context);
    }
}

fn localhost(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn send(ep: *mut Ep, data: &[u8]) -> Status {
    let params = EpConnectParams {
        field_mask: EpConnectParams::PRIVATE_DATA | EpConnectParams::PRIVATE_DATA_LENGTH,
        private_data: data.as_ptr(),
        private_data_length: data.len(),
    };
    unsafe { uct_ep_connect(ep, &raw const params) }
}

fn request(seen: &Receiver<Seen>) -> (usize, Vec<u8>) {
    match next(seen) {
        Seen::Request { request, data, .. } => (request, data),
        other => panic!("{other:?}"),
    }
}

fn resolve(seen: &Receiver<Seen>) {
    assert_eq!(next(seen), Seen::Resolved { device: "lo".to_owned(), status: OK });
}

/// The port of one end of an endpoint.
fn port_of(ep: *mut Ep, field: u64) -> u16 {
    unsafe {
        let mut attr: EpAttr = MaybeUninit::zeroed().assume_init();
        attr.field_mask = field;
        assert_eq!(uct_ep_query(ep, &raw mut attr), OK);
        let found = if field == EpAttr::LOCAL_SOCKADDR {
            &raw const attr.local_address
        } else {
            &raw const attr.remote_address
        };
        let length = size_of::<libc::sockaddr_storage>() as u32;
        listener::read_address(found.cast(), length).unwrap().port()
    }
}

#[test]
fn clients_and_servers_exchange_data_and_disconnect() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let client = Manager::new(Context::threaded, &key).unwrap();
    let ((here, seen), (there, heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 1);
    for length in [0, 1, MOST_DATA - 1, MOST_DATA] {
        let (ping, pong) = (vec![length as u8; length], vec![!length as u8; length]);
        let ep = client.dial(address, &here);
        resolve(&seen);
        assert_eq!(send(ep, &vec![0; MOST_DATA + 1]), BUFFER_TOO_SMALL);
        assert_eq!(unsafe { uct_ep_disconnect(ep, 0) }, BUSY);
        assert_eq!(send(ep, &ping), OK);
        assert_eq!(send(ep, &ping), BUSY, "the data is sent once");
        let Seen::Request { request, device, address: from, data, peer } = next(&heard) else {
            panic!("no request");
        };
        assert_eq!((device.as_str(), data), ("lo", ping));
        let device = *unsafe { &*client.rig.iface }.interface.address().device();
        // Zeros follow, for transports with longer addresses.
        let (body, rest) = from.split_at(device.body().len());
        assert_eq!(body, device.body());
        assert!(rest.iter().all(|byte| *byte == 0));
        let end = server.accept(request, &there, &pong).unwrap();
        assert_eq!(next(&seen), Seen::Response { data: pong, status: OK });
        assert_eq!(port_of(ep, EpAttr::REMOTE_SOCKADDR), address.port());
        assert_eq!(port_of(ep, EpAttr::LOCAL_SOCKADDR), peer);
        assert_eq!(port_of(end, EpAttr::REMOTE_SOCKADDR), peer);
        unsafe {
            assert_eq!(uct_cm_client_ep_conn_notify(ep), OK);
            assert_eq!(next(&heard), Seen::Notified(OK));
            assert_eq!(uct_ep_disconnect(ep, 0), OK);
            assert_eq!(uct_ep_disconnect(ep, 0), INPROGRESS);
            assert_eq!(next(&heard), Seen::Disconnected);
            assert_eq!(uct_ep_disconnect(end, 0), OK);
            assert_eq!(uct_ep_disconnect(end, 0), NOT_CONNECTED);
            assert_eq!(next(&seen), Seen::Disconnected);
            uct_ep_destroy(ep);
            uct_ep_destroy(end);
        }
        assert_eq!((client.connections(), server.connections()), (0, 0));
    }
    unsafe { uct_listener_destroy(listener) };
    server.close();
    client.close();
}

#[test]
fn a_refused_client_learns_it() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let ((here, seen), (there, heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 1);
    let ep = server.dial(address, &here);
    resolve(&seen);
    assert_eq!(send(ep, b"please"), OK);
    let (offered, _) = request(&heard);
    let offered = std::ptr::with_exposed_provenance_mut(offered);
    assert_eq!(unsafe { uct_listener_reject(listener, offered) }, OK);
    assert_eq!(next(&seen), Seen::Response { data: vec![], status: REJECTED });
    assert_eq!(unsafe { uct_ep_disconnect(ep, 0) }, NOT_CONNECTED);
    unsafe {
        uct_ep_destroy(ep);
        uct_listener_destroy(listener);
    }
    server.close();
}

/// As libucp does, whose listeners belong to one worker and whose endpoints to others.
#[test]
fn another_worker_accepts_a_request() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let (other, client) =
        (Manager::new(Context::threaded, &key).unwrap(), Manager::new(Context::threaded, &key));
    let client = client.unwrap();
    let ((here, seen), (there, heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 1);
    let ep = client.dial(address, &here);
    resolve(&seen);
    assert_eq!(send(ep, b""), OK);
    let (offered, _) = request(&heard);
    unsafe { uct_listener_destroy(listener) };
    let end = other.accept(offered, &there, b"yes").unwrap();
    assert_eq!(next(&seen), Seen::Response { data: b"yes".to_vec(), status: OK });
    assert_eq!((server.connections(), other.connections()), (0, 1));
    assert_eq!(unsafe { uct_cm_client_ep_conn_notify(ep) }, OK);
    assert_eq!(next(&heard), Seen::Notified(OK));
    unsafe { uct_ep_destroy(ep) };
    assert_eq!(next(&heard), Seen::Disconnected);
    unsafe { uct_ep_destroy(end) };
    for manager in [server, other, client] {
        manager.close();
    }
}

#[test]
fn a_peer_that_leaves_is_noticed_in_every_phase() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let client = Manager::new(Context::threaded, &key).unwrap();
    let ((here, seen), (there, heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 8);
    let dial = || {
        let ep = client.dial(address, &here);
        resolve(&seen);
        ep
    };
    // Before the server accepts.
    let ep = dial();
    assert_eq!(send(ep, b"1"), OK);
    let (first, _) = request(&heard);
    unsafe { uct_ep_destroy(ep) };
    loop {
        let open = unsafe { &*server.cm };
        let is_over = open.with_core(|core| {
            Ok(core.connections.borrow().values().all(|one| one.phase == Phase::Failed))
        });
        if is_over.unwrap() {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(server.accept(first, &there, b""), Err(NOT_CONNECTED));
    // Before the client acknowledges.
    let ep = dial();
    assert_eq!(send(ep, b"2"), OK);
    let end = server.accept(request(&heard).0, &there, b"").unwrap();
    assert_eq!(next(&seen), Seen::Response { data: vec![], status: OK });
    unsafe { uct_ep_destroy(ep) };
    assert_eq!(next(&heard), Seen::Notified(CONNECTION_RESET));
    unsafe { uct_ep_destroy(end) };
    // The server leaves, once it has accepted.
    let ep = dial();
    assert_eq!(send(ep, b"3"), OK);
    let end = server.accept(request(&heard).0, &there, b"").unwrap();
    assert_eq!(next(&seen), Seen::Response { data: vec![], status: OK });
    unsafe { uct_ep_destroy(end) };
    assert_eq!(next(&seen), Seen::Disconnected);
    unsafe { uct_ep_destroy(ep) };
    // The server ends without a response.
    let ep = dial();
    assert_eq!(send(ep, b"4"), OK);
    drop(request(&heard));
    unsafe { uct_listener_destroy(listener) };
    server.close();
    assert_eq!(next(&seen), Seen::Response { data: vec![], status: CONNECTION_RESET });
    unsafe { uct_ep_destroy(ep) };
    client.close();
}

#[test]
fn a_client_without_a_server_or_with_another_key_fails() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let client = Manager::new(Context::threaded, &Key::generate().unwrap()).unwrap();
    let ((here, seen), (there, _heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 1);
    let ep = client.dial(address, &here);
    assert_eq!(next(&seen), Seen::Resolved { device: String::new(), status: UNREACHABLE });
    unsafe {
        uct_ep_destroy(ep);
        uct_listener_destroy(listener);
    }
    let ep = server.dial(address, &here);
    assert_eq!(next(&seen), Seen::Resolved { device: String::new(), status: NOT_CONNECTED });
    assert_eq!(send(ep, b""), NOT_CONNECTED);
    unsafe { uct_ep_destroy(ep) };
    server.close();
    client.close();
}

#[test]
fn addresses_and_parameters_are_checked() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let (there, _heard) = Program::new();
    let (listener, address) = server.listen(&there, 1);
    let mut other = null_mut();
    assert_eq!(server.try_listen(address, &there, 1, &mut other), BUSY);
    // Not an address of this host.
    let foreign = SocketAddr::from(([192, 0, 2, 77], 0));
    assert_eq!(server.try_listen(foreign, &there, 1, &mut other), INVALID_ADDR);
    assert_eq!(server.try_listen(localhost(0), &there, 0, &mut other), INVALID_PARAM);
    let (mut storage, length) = to_storage(address);
    unsafe {
        let start = (&raw const storage).cast();
        assert_eq!(listener::read_address(start, length), Ok(address));
        assert_eq!(listener::read_address(start, length - 1), Err(INVALID_ADDR));
        assert_eq!(listener::read_address(start, 1), Err(INVALID_PARAM));
        assert_eq!(listener::read_address(null(), length), Err(INVALID_PARAM));
        storage.ss_family = 99;
        assert_eq!(listener::read_address((&raw const storage).cast(), 128), Err(INVALID_ADDR));
    }
    let v6: SocketAddr = "[fe80::1%3]:77".parse().unwrap();
    let (storage, length) = to_storage(v6);
    assert_eq!(unsafe { listener::read_address((&raw const storage).cast(), length) }, Ok(v6));
    unsafe {
        // Neither a socket address nor a request.
        let params = server.params(&there);
        assert_eq!(uct_ep_create(&raw const params, &mut null_mut()), INVALID_PARAM);
        uct_listener_destroy(listener);
    }
    server.close();
}

/// Connects as a peer with the key, while the manager works at the time of `now`.
fn connect(server: &Manager, address: SocketAddr, key: &Key) -> Result<Socket, ConnectFailure> {
    let limits = Limits { protected: false, ..Limits::default() };
    let timeout = Duration::from_millis(300);
    let mut connector = Connector::start(address, None, key, CLAIM, timeout, limits).unwrap();
    loop {
        work(server, Instant::now());
        if let Some(socket) = connector.advance(Instant::now())? {
            return Ok(socket);
        }
    }
}

fn work(server: &Manager, now: Instant) {
    let cm = unsafe { &*server.cm };
    let core = cm.lock();
    core.get().unwrap().work(cm, now);
}

/// Peers with the key that do not keep to the protocol.
#[test]
fn hostile_clients_are_disconnected_and_limited() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::polled, &key) else { return };
    let (there, heard) = Program::new();
    let (listener, address) = server.listen(&there, 2);
    let messages = [
        vec![9, 0, 0, 0],
        vec![1, 0, 0xff, 0xff],
        vec![1; LONGEST + 1],
        Frame::empty(Kind::Accept).to_bytes(),
        Frame::empty(Kind::Acknowledge).to_bytes(),
        vec![1, 0, 3, 0, 1, 2, 3],
    ];
    for message in messages {
        let mut stream = Stream::new(connect(&server, address, &key).unwrap(), LONGEST);
        stream.post(&message).unwrap();
        let limit = Instant::now() + DEADLINE;
        while server.connections() > 0 {
            work(&server, Instant::now());
            assert!(Instant::now() < limit, "{message:?}");
        }
    }
    // As many may wait as the backlog says.
    let silent = [(); 2].map(|()| connect(&server, address, &key).unwrap());
    let Err(ConnectFailure::TimedOut { last, .. }) = connect(&server, address, &key) else {
        panic!("a third one is not refused");
    };
    let busy = HandshakeError::Verdict(Verdict::Busy).to_string();
    assert!(last.as_ref().is_some_and(|last| last.contains(&busy)), "{last:?}");
    // After a while, a silent one gives way.
    {
        let cm = unsafe { &*server.cm };
        let core = cm.lock();
        for one in core.get().unwrap().connections.borrow_mut().values_mut() {
            one.since = Instant::now().checked_sub(listener::SILENCE).unwrap();
        }
    }
    let other = connect(&server, address, &key).unwrap();
    assert_eq!(server.connections(), 2);
    drop(other);
    drop(silent);
    assert!(heard.try_recv().is_err(), "the program sees no request");
    unsafe { uct_listener_destroy(listener) };
    server.close();
}

/// Each call of the program sets the timer that the connection needs.
#[test]
fn a_client_connects_although_its_program_calls_all_the_time() {
    let key = Key::generate().unwrap();
    let Some(server) = Manager::new(Context::threaded, &key) else { return };
    let ((here, seen), (there, heard)) = (Program::new(), Program::new());
    let (listener, address) = server.listen(&there, 1);
    let client = Manager::new(Context::threaded, &key).unwrap();
    let first = client.dial(address, &here);
    resolve(&seen);
    assert_eq!(send(first, b"1"), OK);
    let (offered, _) = request(&heard);
    // The server is busy with the first.
    let second = client.dial(address, &here);
    let (begun, mut accepted) = (Instant::now(), None);
    let found = loop {
        assert_eq!(unsafe { uct_ep_disconnect(second, 0) }, BUSY);
        match seen.try_recv() {
            Ok(Seen::Response { .. }) | Err(_) => {}
            Ok(other) => break other,
        }
        if accepted.is_none() && begun.elapsed() > Duration::from_millis(200) {
            accepted = Some(server.accept(offered, &there, b"").unwrap());
        }
        assert!(begun.elapsed() < DEADLINE, "the second is not connected");
        std::thread::sleep(Duration::from_micros(100));
    };
    assert_eq!(found, Seen::Resolved { device: "lo".to_owned(), status: OK });
    unsafe {
        uct_listener_destroy(listener);
        for ep in [Some(first), Some(second), accepted].into_iter().flatten() {
            uct_ep_destroy(ep);
        }
    }
    client.close();
    server.close();
}
