//! Hosts as namespaces of this machine: each has its own network, processes, mounts, name, boot id
//! and `/tmp`. A bridge in another namespace connects them. The namespaces have no names, and the kernel
//! removes them when the test ends or is killed.
//!
//! Making namespaces takes root and the programs `ip`, `unshare` and `nsenter`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// For each program that runs on the hosts.
const DEADLINE: Duration = Duration::from_mins(2);
/// For each line that is awaited.
const LINE: Duration = Duration::from_mins(1);
/// In the namespace of each host, so that no other test has it.
const PORT: &str = "29777";

/// What the hosts and their network are like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// How many there are, at most 200. Host i has the address 10.9.0.(i + 1) on `eth0`.
    pub(crate) hosts: usize,
    /// They are containers of one host: they have one boot id.
    pub(crate) containers: bool,
    /// `eth0` has only the address `fd00:9::(i + 1)`.
    pub(crate) ipv6: bool,
    /// `eth0` has only the address `fe80::9:(i + 1)`. With [`Self::second`], `eth1` has only the
    /// address that the next host has on `eth0`.
    pub(crate) link_local: bool,
    /// The loopback is down.
    pub(crate) no_loopback: bool,
    /// Every host has an interface `dup0` with the address 192.168.77.1, which leads nowhere.
    pub(crate) duplicate: bool,
    /// Every host has an interface `a0` with the address 10.8.0.(i + 1), whose packets are lost;
    /// with [`Self::link_local`] only `fe80::8:(i + 1)`.
    pub(crate) lost: bool,
    /// Every host has an interface `b0` with the address 10.7.0.(i + 1), whose link is down.
    pub(crate) down: bool,
    /// Bytes of the longest packet.
    pub(crate) mtu: Option<u32>,
    /// Words for `tc qdisc add dev eth0 root`, such as `netem loss 1%`.
    pub(crate) qdisc: Option<&'static str>,
    /// Every host has an interface `eth1` as well, with the address 10.10.0.(i + 1), on a network of
    /// its own.
    pub(crate) second: bool,
    /// The monotonic clock of host i is i million seconds ahead.
    pub(crate) clocks: bool,
}

impl Setup {
    /// Two hosts and the network between them.
    pub(crate) const TWO: Self = Self {
        hosts: 2,
        containers: false,
        ipv6: false,
        link_local: false,
        no_loopback: false,
        duplicate: false,
        lost: false,
        down: false,
        mtu: None,
        qdisc: None,
        second: false,
        clocks: false,
    };
}

/// The first process of a set of namespaces. They end with it.
#[derive(Debug)]
struct Host {
    /// It ends when its standard input is closed.
    unshare: Child,
    /// The first process inside.
    first: String,
    /// The namespaces, as nsenter(1) calls them.
    namespaces: Vec<&'static str>,
}

/// A process on a host, which ends with this value.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All that it has printed.
    log: Arc<Mutex<String>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let log = Arc::new(Mutex::new(String::new()));
        let begun = Instant::now();
        let follow = |output: Box<dyn Read + Send>| {
            let (sender, log) = (sender.clone(), Arc::clone(&log));
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let time = begun.elapsed().as_secs_f64();
                    writeln!(log.lock().unwrap(), "{time:8.3} {line}").unwrap();
                    let _ = sender.send(line);
                }
            })
        };
        follow(Box::new(child.stdout.take().unwrap()));
        follow(Box::new(child.stderr.take().unwrap()));
        Self { input: child.stdin.take(), child, lines, log }
    }

    /// Waits for a line.
    pub(crate) fn await_line(&self, wanted: &str) {
        while !self.line(wanted).is_empty() {}
    }

    /// Waits for a line that begins with `start`, and returns the rest of it.
    pub(crate) fn line(&self, start: &str) -> String {
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(LINE.saturating_sub(begun.elapsed())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return rest.to_owned();
                    }
                }
                Err(error) => panic!("no '{start}': {error}\n{}", self.log()),
            }
        }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Closes the standard input, and waits for the end, which has to be a success.
    pub(crate) fn stop(mut self) {
        self.input = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}", self.log());
    }
}

/// The hosts and their network.
#[derive(Debug)]
pub(crate) struct Bench {
    hosts: Vec<Host>,
    /// Has the bridge.
    switch: Host,
    setup: Setup,
}

const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--uts", "--ipc"];

/// Runs in the namespaces: `$1` is the name of the host, `$2` says whether `/tmp` is replaced, and
/// `$3` says whether the host's boot id differs from the machine's.
const SCRIPT: &str = r#"
set -e
hostname "$1"
mount -t tmpfs none /run
mkdir -m 700 /run/user
mount -t tmpfs none /dev/shm
mount -t sysfs none /sys
if [ "$2" = tmp ]; then mount -t tmpfs none /tmp; fi
if [ "$3" = boot ]; then
    cat /proc/sys/kernel/random/uuid > /run/boot-id
    mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
fi
echo ready
read -r _ || true
"#;

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {errors}")) }
}

impl Host {
    /// With `ahead`, the host has its own monotonic clock, which is ahead by this many seconds.
    fn new(name: &str, words: [&str; 2], ahead: Option<u64>) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        let mut namespaces = NAMESPACES.to_vec();
        command.args(&namespaces).args(["--fork", "--kill-child", "--mount-proc"]);
        if let Some(seconds) = ahead.map(|seconds| seconds.to_string()) {
            namespaces.push("--time");
            command.args(["--time", "--monotonic", &seconds, "--boottime", &seconds]);
        }
        command.args(["sh", "-c", SCRIPT, "sh", name]).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let unshare = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut this = Self { unshare, first: String::new(), namespaces };
        let mut line = String::new();
        if let Some(output) = this.unshare.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.trim() != "ready" {
            this.unshare.stdin = None;
            let mut errors = String::new();
            if let Some(output) = this.unshare.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut BufReader::new(output), &mut errors);
            }
            return Err(format!("unshare: {}", errors.trim()));
        }
        let process = this.unshare.id();
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let children = children.map_err(|error| format!("the processes of unshare: {error}"))?;
        children.trim().clone_into(&mut this.first);
        Ok(this)
    }

    /// A command in the namespaces.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first]).args(&self.namespaces).arg("--");
        command.arg(program);
        command
    }

    /// Changes the network, in which processes have the numbers of this machine.
    fn ip(&self, words: &str) {
        self.try_ip(words).unwrap();
    }

    /// As [`Self::ip`], for what a kernel may lack.
    fn try_ip(&self, words: &str) -> Result<(), String> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first, "--net", "--", "ip"]).args(words.split(' '));
        run(&mut command)
    }
}

impl Host {
    /// Ends all processes inside.
    fn end(&mut self) {
        // It kills the first process inside, and with it all others.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

impl Bench {
    /// Makes the hosts; the error is why this machine does not allow it.
    pub(crate) fn new(setup: Setup) -> Result<Self, String> {
        let switch = Host::new("switch", ["keep", "same"], None)?;
        switch.try_ip("link add probe0 type veth peer name probe1")?;
        for bridge in ["br0", "br1", "br2"] {
            switch.try_ip(&format!("link add {bridge} type bridge"))?;
            switch.ip(&format!("link set {bridge} up"));
        }
        let mut this = Self { hosts: Vec::new(), switch, setup };
        for index in 1..=setup.hosts {
            let host = this.new_host(index)?;
            this.hosts.push(host);
        }
        this.await_links();
        Ok(this)
    }

    /// Host `index`, counted from 1, connected to the network.
    fn new_host(&self, index: usize) -> Result<Host, String> {
        let (setup, switch) = (self.setup, &self.switch);
        let test = std::env::current_exe().map_err(|error| error.to_string())?;
        let temporary = if test.starts_with("/tmp") { "keep" } else { "tmp" };
        let boot = if setup.containers { "same" } else { "boot" };
        let ahead = setup.clocks.then_some(index as u64 * 1_000_000);
        let host = Host::new(&format!("host{index}"), [temporary, boot], ahead)?;
        if !setup.no_loopback {
            host.ip("link set lo up");
        }
        let link = |name: &str| {
            let (port, first) = (Self::port(index - 1, name), &host.first);
            switch.ip(&format!("link add {port} type veth peer name {name} netns {first}"));
            switch.ip(&format!("link set {port} up"));
            // The same after a restart: other hosts remember it.
            host.ip(&format!("link set {name} address 02:00:00:00:00:{index:02x}"));
            port
        };
        // Brings a further interface up, with the address of IPv6 if hosts have link-local ones
        // only.
        let up = |name: &str, link_local: &str, ipv4: &str| {
            if setup.link_local {
                host.ip(&format!("link set {name} addrgenmode none"));
            }
            host.ip(&format!("link set {name} up"));
            host.ip(&if setup.link_local {
                format!("addr add {link_local}/64 dev {name} nodad")
            } else {
                format!("addr add {ipv4}/24 dev {name}")
            });
        };
        let port = link("eth0");
        switch.ip(&format!("link set {port} master br0"));
        if let Some(mtu) = setup.mtu {
            host.ip(&format!("link set eth0 mtu {mtu}"));
        }
        if setup.link_local {
            host.try_ip("link set eth0 addrgenmode none")?;
        }
        host.ip("link set eth0 up");
        let address = Self::address_of(setup, index - 1);
        if setup.link_local {
            host.try_ip(&format!("addr add fe80::9:{index}/64 dev eth0 nodad"))?;
        } else if setup.ipv6 {
            host.try_ip(&format!("addr add {address}/64 dev eth0 nodad"))?;
        } else {
            host.ip(&format!("addr add {address}/24 dev eth0"));
        }
        if setup.second {
            let port = link("eth1");
            switch.ip(&format!("link set {port} master br1"));
            let next = index % setup.hosts + 1;
            up("eth1", &format!("fe80::9:{next}"), &format!("10.10.0.{index}"));
        }
        if setup.lost {
            // The other end has no address, and is not in the bridge.
            link("a0");
            up("a0", &format!("fe80::8:{index}"), &format!("10.8.0.{index}"));
        }
        if setup.down {
            link("b0");
            host.ip(&format!("addr add 10.7.0.{index}/24 dev b0"));
        }
        if setup.duplicate {
            link("dup0");
            host.ip("link set dup0 up");
            host.ip("addr add 192.168.77.1/24 dev dup0");
        }
        if let Some(words) = setup.qdisc {
            let mut command = host.command("tc");
            command.args("qdisc add dev eth0 root".split(' ')).args(words.split(' '));
            run(&mut command)?;
        }
        Ok(host)
    }

    /// Waits until the kernel says that the links of the hosts are up.
    fn await_links(&self) {
        let start = Instant::now();
        for host in &self.hosts {
            let is_up = || {
                let output = host.command("ip").args(["link", "show", "eth0"]).output().unwrap();
                String::from_utf8_lossy(&output.stdout).contains("state UP")
            };
            while !is_up() {
                assert!(start.elapsed() < DEADLINE, "eth0 does not come up: {host:?}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn address_of(setup: Setup, host: usize) -> String {
        let number = host + 1;
        match setup {
            Setup { link_local: true, .. } => format!("fe80::9:{number}%eth0"),
            Setup { ipv6: true, .. } => format!("fd00:9::{number}"),
            _ => format!("10.9.0.{number}"),
        }
    }

    /// The address of a host on `eth0`.
    pub(crate) fn address(&self, host: usize) -> String {
        Self::address_of(self.setup, host)
    }

    /// A command on a host, without the settings of this test's environment.
    pub(crate) fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = self.hosts[host].command("timeout");
        command.args(["--signal=KILL", &DEADLINE.as_secs().to_string()]).arg(program);
        for name in ["BAREWIRE_KEY_FILE", "BAREWIRE_SHM_DIR"] {
            command.env_remove(name);
        }
        command.env("XDG_RUNTIME_DIR", "/run/user").env("BAREWIRE_KEY", "5a".repeat(32));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The other end of a host's interface.
    fn port(host: usize, interface: &str) -> String {
        format!("{interface}-{}", host + 1)
    }

    /// Plugs the cable of a host's interface in, or pulls it.
    pub(crate) fn plug(&self, host: usize, interface: &str, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        self.switch.ip(&format!("link set {} {state}", Self::port(host, interface)));
    }

    /// Splits the cable of a host's `eth0`: the ends become these interfaces of the switch, whose
    /// network namespace is returned.
    pub(crate) fn split(&self, host: usize, ends: [&str; 2]) -> Result<String, String> {
        for (end, bridge) in ends.into_iter().zip(["br2", "br0"]) {
            self.switch.try_ip(&format!("tuntap add dev {end} mode tap"))?;
            self.switch.ip(&format!("link set {end} master {bridge} up"));
        }
        self.switch.ip(&format!("link set {} master br2", Self::port(host, "eth0")));
        Ok(format!("/proc/{}/ns/net", self.switch.first))
    }

    /// Changes the network of a host.
    pub(crate) fn ip(&self, host: usize, words: &str) {
        self.hosts[host].ip(words);
    }

    /// Ends a host: no packet of it comes any more, not even of its kernel.
    pub(crate) fn lose(&mut self, host: usize) {
        self.plug(host, "eth0", false);
        self.hosts[host].end();
    }

    /// Ends a host, and starts another with its addresses.
    pub(crate) fn restart(&mut self, host: usize) {
        for interface in ["eth0", "eth1", "a0", "b0", "dup0"] {
            // The kernel may have removed it already, with a host that was lost.
            let _ = self.switch.try_ip(&format!("link del {}", Self::port(host, interface)));
        }
        self.hosts[host].end();
        self.hosts[host] = self.new_host(host + 1).unwrap();
        self.await_links();
    }

    /// The command lines of the processes of a host, without its first one.
    pub(crate) fn processes(&self, host: usize) -> Vec<String> {
        let first = &self.hosts[host].first;
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let own = namespace(first);
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().into_string().ok());
        let inside = numbers.filter(|process| process != first && namespace(process) == own);
        let line = |process| fs::read_to_string(format!("/proc/{process}/cmdline")).ok();
        let lines = inside.filter_map(line).filter(|line| !line.is_empty());
        lines.map(|line| line.replace('\0', " ")).collect()
    }

    /// The files of a host's folder, as its processes see them.
    pub(crate) fn files(&self, host: usize, folder: &str) -> Vec<String> {
        let root = format!("/proc/{}/root{folder}", self.hosts[host].first);
        let entries = fs::read_dir(root).unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Runs a program under Open MPI's mpirun, with two ranks on each host. The program is started on
    /// the hosts by an agent in place of ssh. `starter` starts mpirun, if it is not empty, and
    /// `options` are some of mpirun's.
    pub(crate) fn mpirun(&self, starter: &[&str], options: &[&str], program: &[&str]) -> Printed {
        let places = self
            .hosts
            .iter()
            .enumerate()
            .map(|(host, inside)| format!("{}) to={};;\n", self.address(host), inside.first));
        let script = format!(
            "#!/bin/sh\nname=$1\nshift\ncase $name in\n{}esac\n\
             exec nsenter --target $to --net --mount --pid --uts --ipc -- sh -c \"$*\"\n",
            places.collect::<String>()
        );
        let agent = std::env::temp_dir().join(format!("barewire-agent-{}", self.hosts[0].first));
        fs::write(&agent, script).unwrap();
        let names: Vec<_> =
            (0..self.hosts.len()).map(|host| format!("{}:2", self.address(host))).collect();
        // In the network of the first host, and with the processes of this machine.
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.hosts[0].first, "--net", "--", "timeout"]);
        command.args(["--signal=KILL", &DEADLINE.as_secs().to_string()]);
        command.args(starter).arg("mpirun").args(options);
        command.args(["--allow-run-as-root", "--host", &names.join(",")]);
        command.args(["--mca", "plm_rsh_agent", &format!("sh {}", agent.display())]);
        command.args(["--mca", "oob_tcp_if_include", "eth0", "-x", "BAREWIRE_KEY"]);
        command.args(["-x", "XDG_RUNTIME_DIR", "-n", &(2 * self.hosts.len()).to_string()]);
        command.args(program).env("XDG_RUNTIME_DIR", "/run/user");
        command.env("BAREWIRE_KEY", "5a".repeat(32)).stdin(Stdio::null());
        let printed = end(command);
        let _ = fs::remove_file(agent);
        printed
    }

    /// The TCP sockets of a host, as the kernel lists them.
    pub(crate) fn connections(&self, host: usize) -> String {
        let lists =
            ["tcp", "tcp6"].map(|name| format!("/proc/{}/net/{name}", self.hosts[host].first));
        lists.iter().map(|list| fs::read_to_string(list).unwrap()).collect()
    }

    /// A program as the rank of a host.
    pub(crate) fn rank(&self, rank: usize, program: &Path, words: &[&str]) -> Command {
        let mut command = self.command(rank, program);
        command.args(words).env("RANK", rank.to_string());
        command.env("WORLD_SIZE", self.hosts.len().to_string());
        command.env("MASTER_ADDR", self.address(0)).env("MASTER_PORT", PORT);
        command
    }

    /// Runs a program as one rank on each host, and returns what each printed. All have to succeed.
    pub(crate) fn ranks(&self, program: &Path, words: &[&str]) -> Vec<Printed> {
        let ranks: Vec<_> = (0..self.hosts.len())
            .map(|rank| {
                let command = self.rank(rank, program, words);
                thread::spawn(move || end(command))
            })
            .collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(ended.iter().all(|printed| printed.success), "{:?}: {ended:#?}", self.setup);
        ended
    }
}

/// What a program printed.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command of [`Bench::command`] to its end, which its deadline limits.
pub(crate) fn end(mut command: Command) -> Printed {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let [stdout, stderr] =
        [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Printed { success: status.success(), stdout, stderr }
}

/// Makes the hosts, or prints why they cannot be made.
pub(crate) fn bench(setup: Setup) -> Option<Bench> {
    match Bench::new(setup) {
        Ok(bench) => Some(bench),
        Err(reason) => {
            eprintln!("not run: hosts cannot be made of namespaces: {reason}");
            None
        }
    }
}
