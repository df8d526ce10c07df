//! The checks in the guest, and how its console reports the outcome.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Prefix of the lines of the console that are for this program.
const MARK: &str = "vm: ";

/// A shell script that must succeed.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) name: String,
    /// Seconds in the guest after which it has failed.
    seconds: u64,
    script: String,
}

/// Soft-RoCE on one end of a pair of network devices; the other end is for the software HCA, in the
/// network namespace `soft`.
const NETWORK: &str = "\
ip link set lo up
ip netns add soft
ip link add v0 type veth peer name v1 netns soft
ip addr add 10.98.0.1/24 dev v0
ip link set v0 up
ip -n soft link set lo up
ip -n soft addr add 10.98.0.2/24 dev v1
ip -n soft link set v1 up
rdma link add rxe0 type rxe netdev v0
for tenth in $(seq 100); do
    grep -q 0a62:0001 /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null && exit
    sleep 0.1
done
echo 'rxe0 has no GID for 10.98.0.1'
exit 1
";

/// The two sides of the interoperability test, each in its namespace.
const INTEROP: &str = "\
$INTEROP rxe0 --listen 10.98.0.1 --port $PORT & kernel=$!
ip netns exec soft $INTEROP software --address 10.98.0.2 --connect 10.98.0.1 --port $PORT --operations $OPERATIONS
wait $kernel
";

const LOSS: &str = "\
tc qdisc add dev v0 root netem loss 1%
tc -n soft qdisc add dev v1 root netem loss 1%
";

/// Asserts that there was loss, and removes it.
const NO_LOSS: &str = "\
tc -s qdisc show dev v0 | grep 'dropped [1-9]'
tc -n soft -s qdisc show dev v1 | grep 'dropped [1-9]'
tc qdisc del dev v0 root
tc -n soft qdisc del dev v1 root
";

/// The tests of `verbs/` that need a device, on rxe0.
const VERBS: &str = "\
export BAREWIRE_DEVICE=rxe0
$TESTS --ignored --test-threads=1 events:: memory:: objects:: posting::
";

/// The tests of the transport API's operations, over `rc_verbs`.
const TRANSPORT: &str = "\
export BAREWIRE_TEST_TRANSPORT=rc_verbs BAREWIRE_TEST_DEVICES=rxe0:1,rxe0:1
$TRANSPORT remote_errors:: rc_verbs:: --test-threads=1
for behaviours in messages:: rma:: atomics:: ordering:: lists:: closing::; do
    $CONFORMANCE $behaviours --test-threads=1
done
";

/// The tests of transports over datagrams.
const DATAGRAMS: &str = "\
export BAREWIRE_TEST_TRANSPORT=ud_verbs BAREWIRE_TEST_DEVICES=rxe0:1,rxe0:1
$TRANSPORT datagrams:: --test-threads=1
for behaviours in messages:: pending:: closing:: events::a events::who; do
    $CONFORMANCE $behaviours --test-threads=1
done
";

/// A second Soft-RoCE and a wire between the two: the network namespace `soft` forwards between two
/// pairs of network devices. Both devices are in the first namespace, since this kernel's Soft-RoCE
/// listens in no other. The rules send packets for the other device out, although its address
/// belongs to this machine.
const WIRE: &str = "\
ip link add w0 type veth peer name w1 netns soft
ip addr add 10.97.0.1/24 dev w0
ip link set w0 up
ip -n soft addr add 10.97.0.2/24 dev w1
ip -n soft link set w1 up
ip netns exec soft sysctl -q -w net.ipv4.ip_forward=1
for device in all v0 w0; do
    sysctl -q -w net.ipv4.conf.$device.accept_local=1 net.ipv4.conf.$device.rp_filter=0
done
ip rule add pref 100 iif v0 lookup local
ip rule add pref 101 iif w0 lookup local
ip rule add pref 200 from 10.98.0.1 to 10.97.0.1 lookup 200
ip rule add pref 201 from 10.97.0.1 to 10.98.0.1 lookup 201
ip rule add pref 300 lookup local
ip rule del pref 0
ip route add 10.97.0.1 via 10.98.0.2 dev v0 table 200
ip route add 10.98.0.1 via 10.97.0.2 dev w0 table 201
rdma link add rxe1 type rxe netdev w0
for tenth in $(seq 100); do
    grep -q 0a61:0001 /sys/class/infiniband/rxe1/ports/1/gids/* 2>/dev/null && exit
    sleep 0.1
done
echo 'rxe1 has no GID for 10.97.0.1'
exit 1
";

/// Two processes, each with its own device, on a wire with loss: `hello` compares the received data
/// bytewise, `fadd` by words.
const TWO_DEVICES: &str = "\
export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')
tc qdisc add dev v0 root netem loss 1%
tc qdisc add dev w0 root netem loss 1%
serve() {
    $BAREWIRE \"$@\" & server=$!
    for tenth in $(seq 100); do
        netstat -ltn | grep -q ':7200 ' && break
        sleep 0.1
    done
}
for transport in rc_verbs ud_verbs; do
    serve hello -t $transport -d rxe1:1 -p 7200 -s 1000 --bcopy
    $BAREWIRE hello -t $transport -d rxe0:1 -p 7200 -n 127.0.0.1 -s 1000 --bcopy
    wait $server
    tests='am_lat am_bw'
    if [ $transport = rc_verbs ]; then tests='am_lat put_bw get fadd'; fi
    for test in $tests; do
        serve perf --listen -x $transport -d rxe1:1 -p 7200
        $BAREWIRE perf 127.0.0.1 -x $transport -d rxe0:1 -p 7200 -t $test -n 300 -w 10 -s 8 | grep 'Final: *300 '
        wait $server
    done
done
tc -s qdisc show dev v0 | grep 'dropped [1-9]'
tc qdisc del dev v0 root
tc qdisc del dev w0 root
";

/// While messages stream, the port goes down or the peer is killed: one error reports it, and the
/// process ends. If the port comes back before the timeout of `ud_verbs`, there is no error. The
/// server's timeout is longer than the client's, so the side whose port is down reports it.
const GONE: &str = "\
export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')
export BAREWIRE_PEER_TIMEOUT=3s BAREWIRE_RETRY_COUNT=3
# A server that lost its client says so and waits for the next one.
warned() {
    for tenth in $(seq 300); do
        grep -q 'waiting for the next client' $1 && break
        sleep 0.1
    done
    cat $1
    grep -q 'waiting for the next client' $1
}
stream() {
    BAREWIRE_PEER_TIMEOUT=30s $BAREWIRE perf --listen -x $1 -d rxe1:1 -p 7300 2> /run/server & server=$!
    for tenth in $(seq 100); do
        netstat -ltn | grep -q ':7300 ' && break
        sleep 0.1
    done
    $BAREWIRE perf 127.0.0.1 -x $1 -d rxe0:1 -p 7300 -t am_bw -n 1000M > /run/client 2>&1 & client=$!
    sleep 3
}
for transport in rc_verbs ud_verbs; do
    stream $transport
    ip link set v0 down
    if wait $client; then exit 1; fi
    cat /run/client
    # Soft-RoCE gives the requests of a connection back, or keeps them for ever; then it is the command line that loses its patience.
    if [ $transport = ud_verbs ]; then grep 'the port of rxe0:1 is Down: bring its link up' /run/client; fi
    warned /run/server
    kill $server
    ip link set v0 up
    for tenth in $(seq 100); do
        grep -q 0a62:0001 /sys/class/infiniband/rxe0/ports/1/gids/* && break
        sleep 0.1
    done
    ip route replace 10.97.0.1 via 10.98.0.2 dev v0 table 200
    sleep 1
    stream $transport
    kill -9 $server
    if wait $client; then exit 1; fi
    cat /run/client
done
unset BAREWIRE_PEER_TIMEOUT
$BAREWIRE perf --listen -x ud_verbs -d rxe1:1 -p 7300 & server=$!
sleep 1
$BAREWIRE perf 127.0.0.1 -x ud_verbs -d rxe0:1 -p 7300 -t am_bw -n 20000 & client=$!
sleep 2
ip link set v0 down
sleep 1
ip link set v0 up
ip route replace 10.97.0.1 via 10.98.0.2 dev v0 table 200
wait $client
wait $server
";

/// The command line over `rc_verbs`: the devices, a message each way between two processes, and
/// every operation.
const COMMAND_LINE: &str = "\
export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')
$BAREWIRE info | grep 'device rxe0:1: RDMA device, GID'
$BAREWIRE hello -t rc_verbs -d rxe0:1 -p 7100 & server=$!
for tenth in $(seq 100); do
    netstat -ltn | grep -q ':7100 ' && break
    sleep 0.1
done
$BAREWIRE hello -t rc_verbs -d rxe0:1 -p 7100 -n 127.0.0.1
wait $server
for operation in am_lat put_lat am_bw put_bw get add_mr fadd cswap; do
    $BAREWIRE perf -x rc_verbs -d rxe0:1 -t $operation -n 100 -w 10 | grep 'Final: *100 '
done
";

/// What the kernel refuses to a restricted process: the device file, and locked memory.
const REFUSED: &str = "\
export BAREWIRE_DEVICE=rxe0
chmod 0 /dev/infiniband/uverbs0
setpriv --bounding-set -dac_override,-dac_read_search $TESTS --ignored --exact refused::a_device_without_permission --nocapture
chmod 600 /dev/infiniband/uverbs0
ulimit -l 64
setpriv --bounding-set -ipc_lock $TESTS --ignored --exact refused::memory_beyond_the_limit --nocapture
";

/// The command line in both namespaces, with the key in a file; `there` runs a command in the other
/// one.
const NAMESPACES: &str = "\
umask 077
head -c 32 /dev/urandom > /run/job.key
export BAREWIRE_KEY_FILE=/run/job.key
there() { ip netns exec soft \"$@\"; }
";

/// The transport `tcp` over a wire that loses, delays and reorders packets: `hello` compares the
/// received data bytewise, `fadd` by words.
const SOCKETS: &str = "\
tc qdisc add dev v0 root netem loss 2% delay 1ms reorder 25%
tc -n soft qdisc add dev v1 root netem loss 2% delay 1ms reorder 25%
for layout in '' --bcopy --zcopy; do
    size=8000
    if [ \"$layout\" = --zcopy ]; then size=1M; fi
    $BAREWIRE hello -t tcp --bind 10.98.0.1 -s $size $layout & server=$!
    sleep 1
    there $BAREWIRE hello -t tcp --server 10.98.0.1 -s $size $layout
    wait $server
done
for test in 'am_bw -s 8K' 'am_bw -s 1M' 'put_bw -s 100K' 'get -s 100K' 'am_lat -s 8' fadd; do
    $BAREWIRE perf --listen --bind 10.98.0.1 & server=$!
    sleep 1
    there $BAREWIRE perf 10.98.0.1 -x tcp -t $test -n 50 -w 5
    wait $server
done
";

/// The link is cut while messages stream: both ends report it, and the client ends.
const CUT: &str = "\
$BAREWIRE perf --listen --bind 10.98.0.1 2> /run/server & server=$!
sleep 1
there $BAREWIRE perf 10.98.0.1 -x tcp -t am_bw -s 8K -n 1000M & client=$!
sleep 3
ip link set v0 down
if wait $client; then exit 1; fi
for tenth in $(seq 300); do
    grep -q 'waiting for the next client' /run/server && break
    sleep 0.1
done
cat /run/server
grep -q 'waiting for the next client' /run/server
kill $server
ip link set v0 up
";

/// The programs that the checks run.
pub(super) struct Programs {
    /// The program of `tests/interop`.
    pub(super) interop: PathBuf,
    /// The tests of `verbs/`.
    pub(super) verbs: PathBuf,
    /// The command line, with the feature `verbs`.
    pub(super) barewire: PathBuf,
    /// The tests of single transports.
    pub(super) transport: PathBuf,
    /// The conformance suite.
    pub(super) conformance: PathBuf,
}

/// The checks of this repository.
pub(super) fn all(programs: &Programs, operations: u64) -> Vec<Check> {
    // The time of the slowest operation, with loss and a busy machine, and the time to start.
    let seconds = 100 + operations / 5;
    let interop = |port: u16| {
        format!(
            "INTEROP='{}' OPERATIONS={operations} PORT={port}\n{INTEROP}",
            programs.interop.display()
        )
    };
    let verbs = programs.verbs.display();
    let barewire = format!("BAREWIRE='{}'\n", programs.barewire.display());
    let check = |name: &str, seconds, script| Check { name: name.to_owned(), seconds, script };
    vec![
        check("rxe0 on a pair of network devices", 60, NETWORK.to_owned()),
        check("software HCA and rdma_rxe", seconds, interop(7001)),
        check(
            "software HCA and rdma_rxe with 1 % loss",
            seconds,
            format!("{LOSS}{}{NO_LOSS}", interop(7002)),
        ),
        check("objects of verbs on rdma_rxe", 200, format!("TESTS='{verbs}'\n{VERBS}")),
        check(
            "rc_verbs on rdma_rxe",
            300,
            format!(
                "TRANSPORT='{}' CONFORMANCE='{}'\n{TRANSPORT}",
                programs.transport.display(),
                programs.conformance.display()
            ),
        ),
        check(
            "ud_verbs on rdma_rxe",
            200,
            format!(
                "TRANSPORT='{}' CONFORMANCE='{}'\n{DATAGRAMS}",
                programs.transport.display(),
                programs.conformance.display()
            ),
        ),
        check("command line over rc_verbs", 120, format!("{barewire}{COMMAND_LINE}")),
        check("rxe1 behind a router", 60, WIRE.to_owned()),
        check("rc_verbs and ud_verbs with 1 % loss", 120, format!("{barewire}{TWO_DEVICES}")),
        check("a port that goes down, a peer that is killed", 120, format!("{barewire}{GONE}")),
        check(
            "tcp with loss, delay and reordering",
            240,
            format!("{barewire}{NAMESPACES}{SOCKETS}{NO_LOSS}"),
        ),
        check("tcp over a link that is cut", 60, format!("{barewire}{NAMESPACES}{CUT}")),
        check("refusals", 60, format!("TESTS='{verbs}'\n{REFUSED}")),
    ]
}

/// A single command of the caller's.
pub(super) fn one(command: &str) -> Vec<Check> {
    let named = |name: &str, script: &str| Check {
        name: name.to_owned(),
        seconds: 3600,
        script: script.to_owned(),
    };
    vec![named("rxe0 on a pair of network devices", NETWORK), named("command", command)]
}

/// Returns the shell script that runs the checks in the guest, in `folder`. It ends at the first
/// failure.
pub(super) fn script(checks: &[Check], folder: &Path) -> String {
    let mut text = format!("cd '{}'\necho '{MARK}booted'\n", folder.display());
    for Check { name, seconds, script } in checks {
        let _ = write!(
            text,
            "cat > /run/check <<'END-OF-CHECK'\n{script}END-OF-CHECK\n\
             if timeout {seconds} /bin/sh -eu /run/check; then\n    echo \"{MARK}passed {name} ($(cut -d. -f1 /proc/uptime) s)\"\n\
             else\n    echo \"{MARK}failed {name}: status $? after at most {seconds} s\"\n    exit\nfi\n"
        );
    }
    text.push_str("echo 'vm: end'\n");
    text
}

/// The console's output so far.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) passed: u64,
    complaint: Option<String>,
    booted: bool,
    ended: bool,
}

impl Verdict {
    /// Takes one line of the console.
    pub(super) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        // The firmware and the kernel write control characters before the first lines.
        let Some(at) = line.find(MARK) else {
            if line.contains("Kernel panic") {
                self.complain(line);
            }
            return;
        };
        match &line[at + MARK.len()..] {
            "booted" => self.booted = true,
            "end" => self.ended = true,
            text if text.starts_with("passed ") => self.passed += 1,
            text => self.complain(text),
        }
    }

    fn complain(&mut self, text: &str) {
        self.complaint.get_or_insert_with(|| text.to_owned());
    }

    /// Returns why the guest did not complete all of `checks`, if so.
    pub(super) fn complaint(&self, checks: usize) -> Option<String> {
        match &self.complaint {
            Some(complaint) => Some(complaint.clone()),
            None if !self.booted => Some("the guest did not come up to its first check".to_owned()),
            None if !self.ended => {
                Some(format!("the guest ended after {} of {checks} checks", self.passed))
            }
            None if self.passed != checks as u64 => {
                Some(format!("{} of {checks} checks passed", self.passed))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(console: &[&str]) -> Verdict {
        let mut verdict = Verdict::default();
        for line in console {
            verdict.read(line);
        }
        verdict
    }

    #[test]
    fn a_whole_run_is_good() {
        let verdict = verdict(&[
            "SeaBIOS\r\n",
            "\u{1b}[2Jvm: booted\r\n",
            "chatter vm\r\n",
            "vm: passed one (3 s)\r\n",
            "vm: end\r\n",
        ]);
        assert_eq!((verdict.passed, verdict.complaint(1)), (1, None));
        assert_eq!(verdict.complaint(2).as_deref(), Some("1 of 2 checks passed"));
    }

    #[test]
    fn whatever_is_missing_is_said() {
        let complaint = |console: &[&str]| verdict(console).complaint(1).unwrap();
        assert_eq!(complaint(&["SeaBIOS"]), "the guest did not come up to its first check");
        assert_eq!(
            complaint(&["vm: booted", "vm: passed one (3 s)"]),
            "the guest ended after 1 of 1 checks"
        );
        assert_eq!(complaint(&["vm: booted", "vm: failed one: status 1"]), "failed one: status 1");
        assert_eq!(complaint(&["vm: broken no root over 9p"]), "broken no root over 9p");
        let panic = "[    1.0] Kernel panic - not syncing: VFS";
        assert_eq!(complaint(&[panic]), panic);
    }

    #[test]
    fn the_script_runs_each_check_and_ends() {
        let text = script(&one("true\n"), Path::new("/work/tree"));
        assert!(text.starts_with("cd '/work/tree'\necho 'vm: booted'\n"), "{text}");
        assert!(text.contains("<<'END-OF-CHECK'\ntrue\nEND-OF-CHECK\n"), "{text}");
        assert!(text.ends_with("echo 'vm: end'\n"), "{text}");
    }
}
