//! Command-line arguments.

mod perf;
mod required;

use required::Required;

pub(crate) use perf::{CELL, MOST_PIECES, PerfArgs, Sizes, Sweep, TestArgs};

use crate::peer::Work;
use barewire_tcp::HostAddress;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// The default port of servers, as in UCX's tools.
pub(crate) const PORT: u16 = 13337;

/// Move messages between processes over RDMA (mlx5), shared memory or TCP
#[derive(Debug, Parser)]
#[command(name = "barewire", version, arg_required_else_help = true)]
#[command(after_help = "\
Without a NIC everything runs on the software HCA that is built in.

Exit codes: 0 for success, 1 for a failure, 2 for an invalid command line, and 128 and the number \
of a signal that ended the command (130 for Ctrl-C). `run`, `hca run` and `uct run` end with the \
code of their program.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Write the packets of the software HCA, payload included, to a capture file for tshark and
    /// Wireshark that only its owner may read; %a in the name is replaced by the device's address,
    /// which is added if there are several devices, and %p by the process number, which is added
    /// while another process writes to the file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Software HCA")]
    pub(crate) pcap: Option<PathBuf>,
    /// The key that both ends share, for servers and clients on different hosts and for tcp: a file
    /// of 32 bytes, or of 64 hexadecimal digits, that only its owner may read; `hca` uses it as
    /// BAREWIRE_HCA_KEY, for programs in different containers or of different users
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connections")]
    pub(crate) key_file: Option<PathBuf>,
}

impl Cli {
    /// The name of the capture file, as devices expect it.
    pub(crate) fn capture(&self) -> Option<PathBuf> {
        let several = match &self.command {
            Command::Demo(_) | Command::Perf(_) => true,
            Command::Hca(HcaArgs { command: HcaCommand::Run(args) }) => args.devices > 1,
            Command::Info(_)
            | Command::Hello(_)
            | Command::Plan(_)
            | Command::Hca(_)
            | Command::Uct(_)
            | Command::Run(_)
            | Command::Key(_)
            | Command::Doctor(_)
            | Command::DoctorRow(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Second(_) => false,
        };
        let file = self.pcap.as_deref()?;
        if !several || file.as_os_str().to_string_lossy().contains("%a") {
            return Some(file.to_owned());
        }
        let mut name = file.file_stem().unwrap_or_default().to_owned();
        name.push("-%a");
        if let Some(extension) = file.extension() {
            name.push(".");
            name.push(extension);
        }
        Some(file.with_file_name(name))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send a file to a second process over every transport and check what arrives
    Demo(DemoArgs),
    /// List components, devices and transports with their capabilities and limits
    Info(InfoArgs),
    /// Send one message from a client to a server, as uct_hello_world does
    Hello(HelloArgs),
    /// Measure latency, bandwidth and message rate, as ucx_perftest does
    Perf(Box<PerfArgs>),
    /// Explain which transports two processes use to reach each other, and why not others
    Plan(PlanArgs),
    /// Test this host and its RDMA devices, for a bug report
    Doctor(DoctorArgs),
    /// Provide the software HCA to other programs as mlx5 devices
    Hca(HcaArgs),
    /// Put these transports under programs that use UCX
    Uct(UctArgs),
    /// Start several ranks of a program on this host, as mpirun does
    Run(RunArgs),
    /// Make a key that the processes of a job share
    Key(KeyArgs),
    /// Print the script by which a shell completes these commands
    Completions(CompletionsArgs),
    /// Write the pages of the manual
    Man(ManArgs),
    /// The second process of a pair, started by `demo` and `perf`
    #[command(hide = true)]
    Second(SecondArgs),
    /// One row of `doctor`, started by it
    #[command(hide = true)]
    DoctorRow(DoctorRowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire demo
  barewire demo --faults drop=0.01,seed=7 -d soft0 /etc/passwd")]
pub(crate) struct DemoArgs {
    /// The file to send [default: this program]
    pub(crate) file: Option<PathBuf>,
    #[arg(long, value_name = "SPEC", value_parser = faults, help = faults_help())]
    pub(crate) faults: Option<String>,
    /// Use this device only [default: the first device of every transport]
    #[arg(short = 'd', long)]
    pub(crate) device: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire info
  barewire info rc_mlx5
  barewire info -d soft0 --json
  barewire info --config > settings.sh     # to be edited, and read by a shell
  barewire info --to 192.0.2.1")]
pub(crate) struct InfoArgs {
    /// Only these transports, with all their limits
    #[arg(value_name = "TRANSPORT", conflicts_with_all = ["config", "explain", "to"])]
    pub(crate) names: Vec<String>,
    /// Print the limits of every transport
    #[arg(short = 'v', long, conflicts_with_all = ["json", "config", "explain", "to"])]
    pub(crate) verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Like TRANSPORT, as ucx_info has it (repeat for several)
    #[arg(short = 't', long = "transport", value_name = "NAME", conflicts_with_all = ["config", "explain", "to"])]
    pub(crate) transports: Vec<String>,
    /// Only this device, such as soft0:1 (repeat for several)
    #[arg(short = 'd', long = "device", value_name = "NAME", conflicts_with_all = ["config", "explain", "to"])]
    pub(crate) devices: Vec<String>,
    /// Print every setting and environment variable, with its value, default and meaning
    #[arg(long, conflicts_with = "to")]
    pub(crate) config: bool,
    /// Set up every device by every path, and print the reason for each that is rejected
    #[arg(long, conflicts_with_all = ["json", "config", "to"])]
    pub(crate) explain: bool,
    /// Show the network interface that tcp uses for this address, and the reason
    #[arg(long, value_name = "ADDRESS", conflicts_with = "json")]
    pub(crate) to: Option<HostAddress>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire hello -t shm &                                  # the server
  barewire hello -t shm -n localhost                       # its client
  barewire hello -t tcp -a 192.0.2.1 --key-file job.key    # a server for other hosts")]
pub(crate) struct HelloArgs {
    /// Transport
    #[arg(short = 't', long, default_value = "rc_mlx5")]
    pub(crate) transport: String,
    /// Device [default: the transport's first]
    #[arg(short = 'd', long)]
    pub(crate) device: Option<String>,
    /// Host of the server, or without a key this host; omit to be the server
    #[arg(short = 'n', long = "server", value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// Control port of the server
    #[arg(short = 'p', long, default_value_t = PORT)]
    pub(crate) port: u16,
    /// Address to listen on as the server, with a key [default: 127.0.0.1]
    #[arg(short = 'a', long = "bind", value_name = "ADDRESS", conflicts_with = "server")]
    pub(crate) bind: Option<HostAddress>,
    /// Size of the message in bytes (K, M and G are powers of 1024)
    #[arg(short = 's', long, default_value = "16", value_parser = size)]
    pub(crate) size: usize,
    /// Send by bcopy instead of short
    #[arg(short = 'b', long)]
    pub(crate) bcopy: bool,
    /// Send by zcopy instead of short
    #[arg(short = 'z', long, conflicts_with = "bcopy")]
    pub(crate) zcopy: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and \
    share a key in BAREWIRE_KEY: see the crate barewire-bootstrap. LOCAL_RANK and LOCAL_WORLD_SIZE \
    are the rank among those of this host, and their number.\n\n\
    The exit code is that of the first rank that failed, or 128 and the number of the signal that \
    ended it; such a rank counts before those that fail because of it.\n\n\
    Examples:\n  barewire run -n 4 --label -- sh -c 'echo I am $RANK of $WORLD_SIZE'"
)]
pub(crate) struct RunArgs {
    /// Number of ranks
    #[arg(short = 'n', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) count: u32,
    /// Print the rank before each line of output
    #[arg(short = 'l', long)]
    pub(crate) label: bool,
    /// Let the other ranks run when one fails
    #[arg(short = 'k', long)]
    pub(crate) keep_going: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire key job.key    # and copy it to the other hosts")]
pub(crate) struct KeyArgs {
    /// The file to write, which only its owner may read; a file that exists is not replaced
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without addresses, the first line is the address of a node on this machine. Two \
    such lines, of any machines, are planned without a connection.\n\n\
    Examples:\n  barewire plan\n  \
    barewire plan $(barewire plan | head -1) $(barewire plan | head -1)   # two processes here\n  \
    barewire plan $(ssh a barewire plan | head -1) $(ssh b barewire plan | head -1)"
)]
pub(crate) struct PlanArgs {
    /// The worker addresses of both sides, in hexadecimal digits [default: print this machine's]
    #[arg(value_name = "ADDRESS", num_args = 0..=2)]
    pub(crate) addresses: Vec<String>,
    /// Use this transport or device only, such as shm, tcp/eth0 or soft0:1 (repeat for several)
    #[arg(short = 'd', long = "device", value_name = "NAME", conflicts_with = "addresses")]
    pub(crate) devices: Vec<String>,
    /// Print the plan of two addresses as JSON
    #[arg(long, requires = "addresses")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a device of this machine, the software HCA is tested. The devices of shm, cma and tcp are \
memory and an address, such as 127.0.0.1.

Examples:
  barewire doctor --report report.json
  barewire key job.key                                       # for both hosts
  barewire doctor --listen -a 192.0.2.1 --key-file job.key   # on one of them
  barewire doctor --peer 192.0.2.1 --key-file job.key        # on the other")]
pub(crate) struct DoctorArgs {
    /// Test this device only, such as mlx5_0:1 or soft0:1 (repeat for several)
    #[arg(short = 'd', long = "device", value_name = "NAME")]
    pub(crate) devices: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the JSON to this file, to attach to a bug report
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Then wait for the doctor of another host, and end with it
    #[arg(long, conflicts_with = "peer")]
    pub(crate) listen: bool,
    /// Also test the paths to the host that runs `doctor --listen`
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
    /// Control port of the host that listens
    #[arg(short = 'p', long, default_value_t = PORT)]
    pub(crate) port: u16,
    /// Address to listen on, with a key [default: 127.0.0.1]
    #[arg(short = 'a', long = "bind", value_name = "ADDRESS", requires = "listen")]
    pub(crate) bind: Option<HostAddress>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions
  barewire completions bash > ~/.local/share/bash-completion/completions/barewire
  barewire completions fish > ~/.config/fish/completions/barewire.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire man ~/.local/share/man/man1    # then: man barewire-perf")]
pub(crate) struct ManArgs {
    /// The folder for the pages, which is made
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorRowArgs {
    /// Name of the row
    pub(crate) row: String,
    /// Name and port of the device
    pub(crate) device: String,
    /// Transport over it
    pub(crate) transport: Option<String>,
    /// Host that listens
    #[arg(long)]
    pub(crate) peer: Option<String>,
    /// Its control port
    #[arg(long, default_value_t = PORT)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct HcaArgs {
    #[command(subcommand)]
    pub(crate) command: HcaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HcaCommand {
    /// Run a program that uses libibverbs on devices mlx5_0, mlx5_1 ...; such programs on this
    /// machine reach each other
    Run(HcaRunArgs),
    /// Take the link of a port of a running program's device down or up: packets in either
    /// direction are lost while it is down, and the program gets IBV_EVENT_PORT_ERR and
    /// IBV_EVENT_PORT_ACTIVE
    Link(HcaLinkArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "While `barewire hca run --address 127.7.0.1 -- PROGRAM` runs, `barewire hca link \
    127.7.0.1 down` takes the link of its device down. The program has to have opened the \
    device.\n\n\
    Programs in the same network namespace are reached, of the same user or with the same key \
    (--key-file or BAREWIRE_HCA_KEY)."
)]
pub(crate) struct HcaLinkArgs {
    /// The address of the port, with which its GID ends
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: std::net::IpAddr,
    /// The state of its link
    #[arg(value_enum, value_name = "STATE")]
    pub(crate) state: LinkState,
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LinkState {
    /// Packets are lost
    Down,
    /// Packets pass
    Up,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire hca run -- ibv_devinfo
  barewire hca run -- ibv_rc_pingpong -e -g 0 &                   # the server, which waits for
  barewire hca run -- ibv_rc_pingpong -e -g 0 localhost           # its client
  barewire hca run --devices 2 -- ib_write_lat -d mlx5_1 -n 100 &
  barewire hca run -- ib_write_lat -d mlx5_0 -n 100 localhost

The devices share the CPUs with the programs. On few CPUs, programs that poll
their memory, such as ib_write_lat, are slow: take few iterations (-n).
RoCE needs a GID: the ping-pongs take its index by -g 0.
Programs of librdmacm (rping, perftest with -R) reach a server on this machine
by 127.0.0.1. A statically linked program finds no device. What exists:
https://github.com/barewire/barewire/blob/main/hca/uverbs/README.md

The exit code is the program's, or 128 plus the number of the signal that ended
it; 127 if it is not found, 126 if it cannot be started, 2 for a wrong option,
and 1 if the devices cannot be made. SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and
SIGALRM are passed to the program, and SIGKILL ends it as well, but not the
processes that it has started.")]
pub(crate) struct HcaRunArgs {
    /// Number of devices
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = devices)]
    pub(crate) devices: usize,
    /// Number of ports of each device
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) ports: u8,
    /// Addresses of the devices, in order, such as those of a container's network; the others have
    /// free ones of 127.0.0.0/8
    #[arg(long, value_name = "IP,IP", value_delimiter = ',')]
    pub(crate) address: Vec<std::net::IpAddr>,
    /// Present the ports as Ethernet, with RoCEv2 [default]
    #[arg(long, conflicts_with = "ib")]
    pub(crate) roce: bool,
    /// Present the ports as InfiniBand
    #[arg(long)]
    pub(crate) ib: bool,
    /// Refuse DEVX commands of programs, as the kernel does without the privilege
    #[arg(long)]
    pub(crate) no_devx: bool,
    /// Let ibv_poll_cq keep its CPU, as with an adapter, instead of yielding it to the devices'
    /// threads when it finds nothing; and let ibv_post_send run no device, so that callgrind counts
    /// libmlx5's instructions only
    #[arg(long)]
    pub(crate) no_yield: bool,
    /// Refuse to register memory beyond RLIMIT_MEMLOCK (ulimit -l), as the kernel does with ENOMEM
    /// for programs without CAP_IPC_LOCK
    #[arg(long)]
    pub(crate) memlock: bool,
    /// Print a line on standard error for each call of libibverbs or librdmacm that is refused: the
    /// argument, the reason and the error number; for each peer whose address leads to no device,
    /// as from another network namespace; at exit, with --faults, how many packets each device sent
    /// and how many met each fault; and why devices poll for doorbells, if they do
    #[arg(long)]
    pub(crate) explain: bool,
    /// What the devices require of their driver
    #[command(flatten)]
    pub(crate) required: Required,
    #[arg(long, value_name = "SPEC", value_parser = faults, help = faults_help())]
    pub(crate) faults: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct UctArgs {
    #[command(subcommand)]
    pub(crate) command: UctCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UctCommand {
    /// Run a program of UCX 1.12 or later with this library's transports in place of UCX's own:
    /// ucx_info, ucx_perftest, mpirun; without UCX_TLS in the environment, libucp uses self, shm,
    /// cma and tcp
    Run(UctRunArgs),
    /// Write a pkg-config file, by which programs are linked to this library instead of UCX's
    /// libuct
    PkgConfig(PkgConfigArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire uct pkg-config ~/barewire-uct
  cc program.c $(PKG_CONFIG_PATH=~/barewire-uct pkg-config --cflags --libs barewire-uct)")]
pub(crate) struct PkgConfigArgs {
    /// The folder for barewire-uct.pc and a link to the library, which is made
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The folder that has the library as libuct.so.0 already; no link is made
    #[arg(long, value_name = "FOLDER")]
    pub(crate) libdir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  barewire uct run -- ucx_info -d
  barewire uct run -- mpiexec.mpich -n 2 ./program
Open MPI's mpirun needs '--mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any
--mca opal_common_ucx_devices any': without all four, it uses its own transports and says nothing.
UCX_LOG_LEVEL=info prints the transports in use, and whose they are:
  ... | grep -E 'ep_cfg|cfg#|those of barewire'
The program takes the place of this one, so that signals reach it. The exit code
is 127 if it is not found, 126 if it cannot be started, and 1 if the library
cannot be loaded.")]
pub(crate) struct UctRunArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// The link layer of the ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Roce,
    Ib,
}

impl HcaRunArgs {
    pub(crate) fn link(&self) -> Link {
        if self.ib { Link::Ib } else { Link::Roce }
    }
}

/// The most devices that a program can use.
const MAX_DEVICES: usize = 16;

fn devices(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_DEVICES).contains(&count) => Ok(count),
        _ => Err(format!("expected a number from 1 to {MAX_DEVICES}")),
    }
}

#[derive(Debug, Args)]
pub(crate) struct SecondArgs {
    /// Process that started this one
    pub(crate) parent: u32,
    /// Purpose of the process
    pub(crate) work: Work,
}

/// CPU numbers, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<usize>);

/// The highest CPU number that a list may name: `cpu_set_t` has this many bits.
const MAX_CPUS: usize = 1024;

fn cpus(text: &str) -> Result<CpuList, String> {
    let number = |word: &str| match word.trim().parse::<usize>() {
        Ok(cpu) if cpu < MAX_CPUS => Ok(cpu),
        _ => Err(format!("'{word}' is no CPU number")),
    };
    let mut list = Vec::new();
    for part in text.split(',') {
        if let Some((first, last)) = part.split_once('-') {
            let range = number(first)?..=number(last)?;
            if range.is_empty() {
                return Err(format!("'{part}' is an empty range"));
            }
            list.extend(range);
        } else {
            list.push(number(part)?);
        }
    }
    Ok(CpuList(list))
}

/// A number with an optional factor of powers of `step`: `8`, `64K`, `1M`.
fn scaled(text: &str, step: u64) -> Result<u64, String> {
    let text = text.trim();
    let (digits, power) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1),
        Some((at, 'm' | 'M')) => (&text[..at], 2),
        Some((at, 'g' | 'G')) => (&text[..at], 3),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number, e.g. 8, 64K or 1M".to_owned())?;
    number.checked_mul(step.pow(power)).ok_or_else(|| "the number is too large".to_owned())
}

fn faults_help() -> String {
    format!(
        "Faults of the packets that the software devices send, e.g. drop=0.01,corrupt=0.01,seed=7: \
         {}. A packet that is sent takes the link down with the probability flap, for flap_us: \
         packets in either direction are then lost",
        barewire_hca::Faults::NAMES
    )
}

fn faults(text: &str) -> Result<String, String> {
    let parsed: Result<barewire_hca::Faults, _> = text.parse();
    parsed.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = scaled(text, 1024)?;
    usize::try_from(bytes).map_err(|_| "the number is too large".to_owned())
}

fn count(text: &str) -> Result<u64, String> {
    scaled(text, 1000)
}

/// The first line of clap's message about an invalid command line, and the command whose help
/// explains it: that of `words`, the command line.
pub(crate) fn usage_line<'a>(
    error: &clap::Error,
    words: impl IntoIterator<Item = &'a str>,
) -> String {
    if error.kind() == ErrorKind::MissingSubcommand {
        // clap's own list would include the hidden command.
        let cli = Cli::command();
        let names = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let names: Vec<&str> = names.map(clap::Command::get_name).collect();
        return format!("a command is missing: {} (see 'barewire --help')", names.join(", "));
    }
    let text = error.render().to_string();
    let mut parts: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage: ")) {
        // clap advises to pass any word that begins with a dash as a value, which is rarely meant.
        let is_advice = line.starts_with("tip: to pass");
        if !line.is_empty() && !is_advice && !line.starts_with("For more information") {
            parts.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let command = command_of(words);
    format!("{} (see '{command} --help')", parts.join("; ").replace(":; ", ": "))
}

/// The command that a command line names, with the commands that it belongs to: `barewire hca run`.
fn command_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut at = Cli::command();
    let mut name = "barewire".to_owned();
    for word in words {
        if let Some(below) = at.find_subcommand(word).filter(|below| !below.is_hide_set()) {
            name = format!("{name} {word}");
            at = below.clone();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds() {
        Cli::command().debug_assert();
    }

    /// Help is wrapped at 100 columns, so that a longer line breaks in two.
    #[test]
    fn lines_of_help_that_break_by_themselves_fit() {
        fn check(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // A paragraph that is one line is wrapped as a whole.
            for paragraph in after.split("\n\n").filter(|paragraph| paragraph.contains('\n')) {
                for line in paragraph.lines() {
                    assert!(line.len() <= 100, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn numbers() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64k"), Ok(65536));
        assert_eq!(count("100K"), Ok(100_000));
        for bad in ["", "K", "-1", "1.5", "8KB", "99999999999G", "é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("0,2-4"), Ok(CpuList(vec![0, 2, 3, 4])));
        for bad in ["", ",", "1-", "-1", "3-2", "a", "0,1024", "0-99999999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }

    /// The error of a command line.
    fn refused(words: &[&str]) -> String {
        let all = [&["barewire"], words].concat();
        let error = Cli::try_parse_from(all).unwrap_err();
        usage_line(&error, words.iter().copied())
    }

    #[test]
    fn an_error_names_the_command_whose_help_explains_it() {
        for (words, command) in [
            (&["run", "-n", "x", "true"][..], "barewire run"),
            (&["run", "true"], "barewire run"),
            (&["hca", "run", "--devices", "99", "true"], "barewire hca run"),
            (&["dance"], "barewire"),
            (&["perf", "-s", "x"], "barewire perf"),
        ] {
            let line = refused(words);
            assert!(line.ends_with(&format!(" (see '{command} --help')")), "{line}");
        }
        assert!(refused(&["prf"]).contains("'perf'"), "{}", refused(&["prf"]));
    }

    #[test]
    fn a_program_needs_no_dashes_before_it() {
        for words in [
            &["barewire", "hca", "run", "--devices", "2", "ib_write_lat", "-d", "mlx5_1"][..],
            &["barewire", "hca", "run", "--devices", "2", "--", "ib_write_lat", "-d", "mlx5_1"],
        ] {
            let cli = Cli::try_parse_from(words).unwrap();
            let Command::Hca(HcaArgs { command: HcaCommand::Run(run) }) = cli.command else {
                panic!("{words:?}")
            };
            assert_eq!((run.devices, run.program.len()), (2, 3));
        }
    }

    #[test]
    fn a_bad_command_line_is_one_line() {
        let line = refused(&["perf", "-t", "am_lta"]);
        assert!(line.starts_with("invalid value 'am_lta'"), "{line}");
        assert!(!line.contains('\n'), "{line}");
        let line = refused(&["--pcap", "x"]);
        assert!(line.starts_with("a command is missing: demo, info, hello, perf, plan,"), "{line}");
        assert!(!line.contains("second"), "{line}");
        assert_eq!(
            refused(&["perf", "--zzz"]),
            "unexpected argument '--zzz' found (see 'barewire perf --help')"
        );
        let line = refused(&["perf", "-n", "-1"]);
        assert!(line.contains("'-1'") && !line.contains("-- -1"), "{line}");
        let line = refused(&["hello", "-b", "-z"]);
        assert!(line.contains("cannot be used with"), "{line}");
    }
}
