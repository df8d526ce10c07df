//! Unix sockets that connect processes of the same user on this machine without a key.
//!
//! The kernel reports the user at the other end (SO_PEERCRED, unix(7)), and each side refuses any
//! other user before it sends a byte. The name of a socket contains the port number. It is in
//! `$XDG_RUNTIME_DIR/barewire`, which only its owner can enter, or in the abstract namespace if
//! there is no such directory.

use crate::error::{Error, local};
use crate::link::LONGEST;
use barewire_shm::Credentials;
use barewire_tcp::frames::Stream;
use barewire_tcp::socket::wait;
use barewire_tcp::time::after;
use rustix::event::PollFlags;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most connections waiting to be accepted.
const BACKLOG: i32 = 16;
/// How long a client waits for room in the backlog of the server.
const ROOM: Duration = Duration::from_secs(5);
/// The first port number that is not assigned to services (RFC 6335), for a server without a given
/// port.
const DYNAMIC: u16 = 49_152;

/// A listening socket. A name in the file system is removed on drop; the next server at the port
/// takes over a name that a killed process left behind.
#[derive(Debug)]
pub(crate) struct LocalListener {
    socket: Socket,
    path: Option<PathBuf>,
    port: u16,
    user: User,
}

impl LocalListener {
    /// Listens at this port, or at any free one if it is 0.
    pub(crate) fn bind(port: u16) -> Result<Self, Error> {
        let user = User::own()?;
        let folder = Folder::of(user);
        let mut last = ErrorKind::AddrInUse.into();
        let free = (DYNAMIC..=u16::MAX).skip(std::process::id() as usize % 8192);
        let ports = if port == 0 { free.collect() } else { vec![port] };
        for port in ports {
            match listen(folder.as_ref(), user, port) {
                Ok((socket, path)) => return Ok(Self { socket, path, port, user }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => last = error,
                Err(error) => {
                    return Err(local(format!("cannot listen on localhost:{port}"), &error));
                }
            }
        }
        Err(local(format!("cannot listen on localhost:{port}"), &last))
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits up to `timeout` for a process of this user.
    pub(crate) fn accept(&self, timeout: Duration) -> Result<Option<Stream>, Error> {
        let failed = |error: io::Error| local("cannot accept a client", &error);
        let deadline = after(Instant::now(), timeout);
        loop {
            wait(&self.socket, PollFlags::IN, deadline).map_err(failed)?;
            let socket = match self.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() < deadline {
                        continue;
                    }
                    return Ok(None);
                }
                Err(error) if is_of_the_client(&error) => continue,
                Err(error) => return Err(failed(error)),
            };
            if peer_user(&socket).map_err(failed)? == self.user {
                return Stream::unix(socket.into(), LONGEST).map(Some).map_err(failed);
            }
        }
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Connects to the server of this user at `port`.
pub(crate) fn connect(port: u16) -> Result<Stream, Error> {
    let user = User::own()?;
    let folder = Folder::of(user);
    let paths = folder.iter().map(|folder| SockAddr::unix(folder.socket(port)));
    let mut refusal = io::Error::from(ErrorKind::ConnectionRefused);
    for address in paths.chain([SockAddr::unix(abstract_name(user, port))]) {
        match address.and_then(|address| reach(&address)) {
            Ok(socket) => {
                let failed = |error: io::Error| local("cannot connect to the server", &error);
                let found = peer_user(&socket).map_err(failed)?;
                if found != user {
                    return Err(Error::Local(format!(
                        "the server at localhost:{port} belongs to user {}, and this process runs as user \
                         {}: {HOW_TO_MAKE_A_KEY}",
                        found.0, user.0
                    )));
                }
                return Stream::unix(socket.into(), LONGEST).map_err(failed);
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => refusal = error,
        }
    }
    let cause = match refusal.kind() {
        ErrorKind::ConnectionRefused => {
            "connection refused: no process of this user listens there".into()
        }
        _ => refusal.to_string(),
    };
    Err(Error::Local(format!(
        "cannot connect to the server: localhost:{port}: {cause}; a server with a key is reached with the same key"
    )))
}

/// What to do if the kernel cannot authenticate the peer.
pub(crate) const HOW_TO_MAKE_A_KEY: &str = "processes of different users or hosts need a key: make one with \
     'barewire key job.key' and give both --key-file job.key";

fn reach(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // This also limits how long connect(2) waits for room: unix(7) sockets share the send timeout.
    socket.set_write_timeout(Some(ROOM))?;
    socket.connect(address)?;
    Ok(socket)
}

fn listen(folder: Option<&Folder>, user: User, port: u16) -> io::Result<(Socket, Option<PathBuf>)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let Some(folder) = folder else {
        socket.bind(&SockAddr::unix(abstract_name(user, port))?)?;
        socket.listen(BACKLOG)?;
        return Ok((socket, None));
    };
    // While the lock is held, no other process takes over a name.
    rustix::fs::flock(&folder.handle, FlockOperation::LockExclusive)?;
    let path = folder.socket(port);
    let listening = take_name(&socket, &path).and_then(|()| socket.listen(BACKLOG));
    rustix::fs::flock(&folder.handle, FlockOperation::Unlock)?;
    listening.map(|()| (socket, Some(path)))
}

/// Binds to `path`, after removing a socket at which no process listens.
fn take_name(socket: &Socket, path: &Path) -> io::Result<()> {
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A server with a full backlog is running.
    probe.set_nonblocking(true)?;
    match probe.connect(&address) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            socket.bind(&address)
        }
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

fn abstract_name(user: User, port: u16) -> String {
    format!("\0barewire-control-{}-{port}", user.0)
}

/// The directory of this user's sockets.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    handle: OwnedFd,
}

impl Folder {
    /// Returns `None` if there is no runtime directory, or others have access to it.
    fn of(user: User) -> Option<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty())?;
        let path = PathBuf::from(runtime).join("barewire");
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let handle = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        let found = rustix::fs::statat(&handle, "", AtFlags::EMPTY_PATH).ok()?;
        let is_private = found.st_uid == user.0 && found.st_mode & 0o777 & !0o700 == 0;
        // The longest name of a socket must fit as well.
        let this = Self { path, handle };
        (is_private && SockAddr::unix(this.socket(u16::MAX)).is_ok()).then_some(this)
    }

    fn socket(&self, port: u16) -> PathBuf {
        self.path.join(format!("control-{port}.sock"))
    }
}

/// The effective user of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct User(u32);

impl User {
    /// The user of this process. Fails if the kernel uses the same id for users without a mapping.
    fn own() -> Result<Self, Error> {
        let user = rustix::process::geteuid().as_raw();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let is_overflow = read("/proc/sys/kernel/overflowuid").trim() == user.to_string();
        // user_namespaces(7): a namespace that maps all users has none without a mapping.
        let has_all = read("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
        if is_overflow && !has_all {
            return Err(Error::Usage(format!(
                "user {user} also stands for users of other namespaces here: {HOW_TO_MAKE_A_KEY}"
            )));
        }
        Ok(Self(user))
    }
}

/// The user at the other end of a Unix socket, as reported by the kernel.
fn peer_user(socket: &Socket) -> io::Result<User> {
    Credentials::of_peer(socket).map(|found| User(found.user))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("barewire-local-{}-{name}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let handle = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty()).unwrap();
        Folder { path, handle }
    }

    #[test]
    fn a_stale_name_is_taken_over_and_a_live_one_is_not() {
        let (folder, user) = (folder("stale"), User::own().unwrap());
        let (socket, path) = listen(Some(&folder), user, 7).unwrap();
        let path = path.unwrap();
        let taken = listen(Some(&folder), user, 7).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        // The state after SIGKILL: closed, with its name still present.
        drop(socket);
        assert!(path.exists());
        let (again, path) = listen(Some(&folder), user, 7).unwrap();
        reach(&SockAddr::unix(path.unwrap()).unwrap()).unwrap();
        drop(again);
        std::fs::remove_dir_all(&folder.path).unwrap();
    }

    #[test]
    fn the_name_goes_with_the_listener() {
        let (folder, user) = (folder("drop"), User::own().unwrap());
        let (socket, path) = listen(Some(&folder), user, 8).unwrap();
        drop(LocalListener { socket, path, port: 8, user });
        std::fs::remove_dir(&folder.path).expect("it is empty");
    }

    #[test]
    fn the_peer_is_of_this_user() {
        let user = User::own().unwrap();
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        assert_eq!((peer_user(&one).unwrap(), peer_user(&other).unwrap()), (user, user));
    }
}
