//! Two processes of one kernel in different namespaces, as in containers. Creating namespaces takes
//! root; without it, the tests report that and pass.

use std::process::{Child, Command, Output, Stdio};

use barewire::{FlushMode, Posted, TransportId};
use barewire_wireup::address::WorkerAddress;
use barewire_wireup::link::{Options, State};
use barewire_wireup::node::ConnectError;

use crate::support::{Side, rules, send, until, until_connected};

const ADDRESS: &str = "BAREWIRE_TEST_CONTAINER";
const NAMES: &str = "BAREWIRE_TEST_CONTAINER_NAMES";
const MESSAGES: u64 = 20;

/// The folders that hold sockets and shared files are empty in the container.
const HIDE: &str = "mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm && unset XDG_RUNTIME_DIR \
                    && ip link set lo up && exec \"$@\"";

/// A network namespace with a pair of devices that lead there. Removed when dropped.
struct Network {
    name: String,
    /// The device on this side.
    device: String,
    /// The device inside.
    inside: String,
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
}

impl Network {
    fn new() -> Result<Self, String> {
        let process = std::process::id();
        let [name, device, inside] = ["bwn", "bwo", "bwi"].map(|word| format!("{word}{process}"));
        ip(&["netns", "add", &name])?;
        let this = Self { name, device, inside };
        let (name, device, inside) = (&this.name, &this.device, &this.inside);
        ip(&["link", "add", device, "type", "veth", "peer", "name", inside, "netns", name])?;
        // Of the range for benchmarks (RFC 2544), by the process id.
        let place = format!("198.18.{}", process % 256);
        ip(&["addr", "add", &format!("{place}.1/24"), "dev", device])?;
        ip(&["-n", name, "addr", "add", &format!("{place}.2/24"), "dev", inside])?;
        ip(&["link", "set", device, "up"])?;
        ip(&["-n", name, "link", "set", inside, "up"])?;
        Ok(this)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The pair of devices ends with it.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Whether namespaces can be made; prints why not.
fn permitted(words: &[&str]) -> bool {
    let tried =
        Command::new(words[0]).args(&words[1..]).args(["sh", "-c", HIDE, "sh", "true"]).output();
    let good = matches!(&tried, Ok(Output { status, .. }) if status.success());
    if !good {
        eprintln!("not run: namespaces cannot be made: {tried:?}");
    }
    good
}

const UNSHARE: [&str; 5] = ["unshare", "--mount", "--ipc", "--pid", "--fork"];

/// Starts this test binary in a container that `words` make.
fn child(words: &[&str], names: &[&str], address: &WorkerAddress) -> Child {
    Command::new(words[0])
        .args(&words[1..])
        .args(["sh", "-c", HIDE, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "namespaces::the_process_inside", "--nocapture"])
        .env(ADDRESS, address.to_string())
        .env(NAMES, names.join(" "))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Connects and sends, in the process that [`child`] starts; nothing otherwise.
#[test]
fn the_process_inside() {
    let (Ok(address), Ok(names)) = (std::env::var(ADDRESS), std::env::var(NAMES)) else { return };
    let names: Vec<&str> = names.split(' ').collect();
    let mut sides = [Side::new(&rules(&names))];
    let address: WorkerAddress = address.parse().unwrap();
    let link = match sides[0].node.connect(&address, Options::default()) {
        Ok(link) => link,
        Err(ConnectError::NoLane { plan, .. }) => {
            let reasons = plan.refusals.iter().map(|refusal| refusal.reason.to_string());
            return println!("\nrefused: {}", reasons.collect::<Vec<_>>().join("; "));
        }
        Err(error) => panic!("{error}"),
    };
    until(&mut sides, "an end of connecting", |_| {
        matches!(link.state(), State::Connected | State::Failed(_) | State::Closed(_))
    });
    if link.state() != State::Connected {
        return println!("\nrefused: {}", link.error().unwrap());
    }
    for number in 0..MESSAGES {
        send(&mut sides, &link, number);
    }
    until(&mut sides, "replies", |sides| sides[0].received.borrow().len() as u64 == MESSAGES);
    let lanes: Vec<_> = link.lanes().iter().map(|info| info.lane().transport.name()).collect();
    println!("\nlanes: {}", lanes.join(" "));
}

/// The line that the process inside printed, with this prefix.
fn line(child: Child, prefix: &str) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let found = text.lines().find_map(|line| line.strip_prefix(prefix));
    found.unwrap_or_else(|| panic!("no line '{prefix}': {text}")).to_owned()
}

#[test]
fn another_network_and_file_system_leave_tcp() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => return eprintln!("not run: {reason}"),
    };
    let words = [&["ip", "netns", "exec", &network.name][..], &UNSHARE].concat();
    if !permitted(&words) {
        return;
    }
    let [outside, inside] = [&network.device, &network.inside].map(|name| format!("tcp/{name}"));
    let mut sides = [Side::new(&rules(&["shm", "cma", &outside]))];
    let child = child(&words, &["shm", "cma", &inside], &sides[0].node.address());
    until(&mut sides, "the link", |sides| sides[0].incoming.borrow().len() == 1);
    let link = sides[0].incoming.borrow()[0].clone();
    until_connected(&mut sides, &[&link]);
    for number in 0..MESSAGES {
        send(&mut sides, &link, number);
    }
    until(&mut sides, "messages", |sides| sides[0].received.borrow().len() as u64 == MESSAGES);
    // Without progress, nothing else reaches the peer.
    until(&mut sides, "a flush", |_| link.flush(FlushMode::Local, None) == Ok(Posted::Done));
    assert!(link.lanes().iter().all(|info| info.lane().transport == TransportId::Tcp), "{link:?}");
    assert_eq!(line(child, "lanes: "), "tcp");
}

#[test]
fn without_a_common_network_the_link_is_refused_with_the_reason() {
    let words = [&UNSHARE[..], &["--net"]].concat();
    if !permitted(&words) {
        return;
    }
    let sides = [Side::new(&rules(&["shm", "cma"]))];
    let child = child(&words, &["shm", "cma"], &sides[0].node.address());
    let reason = line(child, "refused: ");
    // By trying, not by the names of hosts: both are on one node and have one boot id.
    assert!(
        reason.contains("shm") || reason.contains("socket") || reason.contains("reach"),
        "{reason}"
    );
}
