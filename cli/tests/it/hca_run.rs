//! Runs Debian's programs over the software HCA: `barewire hca run -- PROGRAM`.
//!
//! Programs that are not installed are skipped: `cargo xtask test` installs all of them, or lists
//! the missing ones.

use crate::hca;
use crate::support;

use hca::{Pair, alone, installed};

#[test]
fn devinfo_shows_the_devices() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let shown = alone(&["--devices", "2"], &["ibv_devinfo", "-v"]);
    for words in [
        "mlx5_0",
        "mlx5_1",
        "PORT_ACTIVE",
        "Ethernet",
        "::ffff:127.",
        "RoCE v2",
        "vendor_part_id:\t\t\t4129",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for words in
        ["XRC", "MEM_WINDOW_TYPE_2B", "ODP_SUPPORT_IMPLICIT", "ATOMIC_HCA", "active_mtu:\t\t4096"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // Addresses of this process alone.
    let [low, high, ..] = std::process::id().to_le_bytes();
    let addresses = [1, 2].map(|subnet| format!("127.{subnet}.{high}.{}", low.clamp(1, 254)));
    let options = ["--devices", "3", "--address", &addresses.join(",")];
    let shown = alone(&options, &["ibv_devinfo", "-v"]);
    for address in &addresses {
        assert!(shown.contains(&format!("::ffff:{address}")), "{address}: {shown}");
    }
    assert_eq!(shown.matches("::ffff:127.").count(), 3, "{shown}");
    let ended = support::run(&["hca", "run", "--address", &addresses.join(","), "--", "true"]);
    assert!(ended.stderr.contains("2 addresses for 1 devices"), "{ended:?}");
    let shown = alone(&["--mtu", "1500"], &["ibv_devinfo", "-v"]);
    assert!(shown.contains("active_mtu:\t\t1024"), "{shown}");
    let shown = alone(&["--ports", "2"], &["ibv_devinfo", "-v"]);
    assert_eq!(shown.matches("PORT_ACTIVE (4)").count(), 2, "{shown}");
    assert_eq!(shown.matches("::ffff:127.").count(), 2, "{shown}");
    let shown = alone(&["--ib"], &["ibv_devinfo", "-v"]);
    assert!(shown.contains("InfiniBand") && shown.contains("PORT_ACTIVE"), "{shown}");
    let lid = shown.lines().find_map(|line| line.trim().strip_prefix("port_lid:"));
    assert!(lid.is_some_and(|lid| lid.trim() != "0"), "{shown}");
}

#[test]
fn a_run_leaves_nothing_behind() {
    let folder = std::env::temp_dir().join(format!("barewire-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    hca::library();
    let environment = [("TMPDIR", folder.to_str().unwrap())];
    let script = "test -d \"$SYSFS_PATH/class/infiniband/mlx5_0\" && exit 7";
    let ended = support::start_with(&["hca", "run", "--", "sh", "-c", script], &environment)
        .end(support::PATIENCE);
    assert_eq!(ended.status.code(), Some(7), "{ended:#?}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let ended = support::start_with(&["hca", "run", "--", "sh", "-c", "kill -9 $$"], &environment)
        .end(support::PATIENCE);
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:#?}");
    std::fs::remove_dir(&folder).expect("it is empty");
}

#[test]
fn a_program_that_is_not_there_is_one_line() {
    hca::library();
    let ended = support::run(&["hca", "run", "--", "no-such-program"]);
    let line =
        "barewire: error: cannot start no-such-program: No such file or directory (os error 2)\n";
    assert_eq!((ended.stderr.as_str(), ended.status.code()), (line, Some(127)), "{ended:#?}");
    let ended = support::run(&["hca", "run", "--devices", "17", "--", "true"]);
    assert_eq!(ended.status.code(), Some(2), "{ended:#?}");
}

const PINGPONGS: [&str; 5] = [
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
];

#[test]
fn pingpongs_deliver_the_right_data() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    for program in PINGPONGS {
        for events in [&[][..], &["-e"]] {
            let validate = if program == "ibv_rc_pingpong" { &["-c"][..] } else { &[] };
            let arguments = [&[program, "-g", "0", "-n", "50"], events, validate].concat();
            Pair::of(&arguments).run();
        }
    }
}

/// The options of each, but for device memory (`-j`), which the device lacks.
#[test]
fn pingpongs_run_with_every_option() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    pairs(&[
        "ibv_rc_pingpong -g 0 -n 50 -c -N -t -s 5000 -m 4096 -r 20 -l 3",
        "ibv_rc_pingpong -g 0 -n 50 -c -o -P",
        "ibv_rc_pingpong -g 0 -n 50 -c -O -e",
        "ibv_uc_pingpong -g 0 -n 50 -c -s 5000 -m 256 -r 20 -l 3",
        "ibv_ud_pingpong -g 0 -n 50 -c -s 512 -r 20 -l 3 -e",
        "ibv_srq_pingpong -g 0 -n 20 -c -o -q 4 -s 5000 -m 512 -r 64 -l 3",
        "ibv_xsrq_pingpong -g 0 -n 20 -o -s 5000 -m 512 -l 3",
    ]);
}

#[test]
fn pingpongs_over_infiniband_go_by_lid() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
        Pair::of(&[program, "-n", "50", "-e"]).with(&["--ib"]).run();
    }
}

#[test]
fn pingpongs_run_over_a_second_port() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    Pair::of(&["ibv_rc_pingpong", "-g", "0", "-i", "2", "-n", "50", "-c"])
        .with(&["--ports", "2"])
        .run();
    Pair::of(&["ibv_ud_pingpong", "-i", "2", "-n", "50", "-e"])
        .with(&["--ports", "2", "--ib"])
        .run();
}

/// The buffers lie in memory on the device (`ibv_alloc_dm`).
#[test]
fn a_pingpong_uses_memory_on_the_device() {
    if installed("ibv_rc_pingpong", "ibverbs-utils") {
        Pair::of(&["ibv_rc_pingpong", "-g", "0", "-j", "-n", "50", "-c"]).run();
    }
}

/// A program that has finished ends, and its last acknowledgement may be lost: perftest waits for
/// the other side, ping-pongs do not.
#[test]
fn programs_survive_a_bad_wire() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") || !installed("ib_send_bw", "perftest") {
        return;
    }
    let late = ["--faults", "duplicate=0.05,delay=0.1,delay_us=200,seed=5"];
    Pair::of(&["ibv_rc_pingpong", "-g", "0", "-n", "200", "-c"]).with(&late).run();
    let lossy = ["--faults", "drop=0.02,duplicate=0.02,reorder=0.02,seed=5"];
    Pair::of(&["ib_send_bw", "-n", "200", "-s", "4096"]).with(&lossy).run();
}

/// Runs a pair for every line.
fn pairs(lines: &[&str]) {
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        Pair::of(&words).run();
    }
}

#[test]
fn perftest_measures_one_sided_operations() {
    if !installed("ib_write_lat", "perftest") {
        return;
    }
    pairs(&[
        "ib_write_lat -n 10 -s 2",
        "ib_write_lat -n 10 -s 4096 -I 0",
        "ib_write_lat -n 10 -s 65536",
        "ib_read_lat -n 10 -s 2",
        "ib_read_lat -n 10 -s 65536",
        "ib_atomic_lat -n 10",
        "ib_atomic_lat -n 10 -A CMP_AND_SWAP",
    ]);
}

#[test]
fn perftest_measures_messages() {
    if !installed("ib_send_lat", "perftest") {
        return;
    }
    pairs(&[
        "ib_send_lat -n 10 -s 2 -c RC",
        "ib_send_lat -n 10 -s 1024 -I 0 -c RC",
        "ib_send_lat -n 10 -s 65536 -c RC",
        "ib_send_lat -n 10 -s 64 -c UC",
        "ib_send_lat -n 10 -s 2 -c UD",
        "ib_send_lat -n 10 -s 2048 -c UD",
        "ib_send_lat -n 10 -s 64 -c XRC",
    ]);
}

#[test]
fn perftest_sends_to_multicast_groups() {
    if !installed("ib_send_lat", "perftest") {
        return;
    }
    let [a, b, c] = std::array::from_fn(|_| fastrand::u8(..));
    let group = format!("0:0:0:0:0:0:0:0:0:0:255:255:239:{a}:{b}:{c}");
    for program in ["ib_send_lat", "ib_send_bw"] {
        Pair::of(&[program, "-c", "UD", "-n", "20", "-s", "64", "-g", "-M", &group]).run();
    }
}

#[test]
fn perftest_streams_every_size() {
    if !installed("ib_write_bw", "perftest") {
        return;
    }
    pairs(&[
        "ib_write_bw -a -n 5",
        "ib_write_bw -n 20 -s 64 -I 64 -q 2",
        "ib_write_bw -n 20 -s 4096 -q 4",
        "ib_send_bw -n 20 -s 2",
        "ib_send_bw -n 20 -s 65536 -e",
        "ib_send_bw -n 20 -s 4096 -c UD",
        "ib_send_bw -n 20 -s 2048 -q 3 -r 64",
    ]);
}

#[test]
fn perftest_measures_dynamic_connections() {
    if !installed("ib_send_lat", "perftest") {
        return;
    }
    pairs(&[
        "ib_send_lat -n 10 -s 64 -c DC",
        "ib_write_lat -n 10 -s 64 -c DC",
        "ib_read_lat -n 10 -s 64 -c DC",
        "ib_atomic_lat -n 10 -c DC",
        "ib_send_bw -n 20 -s 64 -c DC -q 4",
        "ib_write_bw -n 20 -s 4096 -c DC -q 4",
        "ib_read_bw -n 20 -s 4096 -c DC -q 4",
        "ib_atomic_bw -n 20 -c DC -q 4",
    ]);
}

/// The streams of a DC initiator, in use one by one, some, and all.
#[test]
fn perftest_uses_streams_of_dynamic_connections() {
    if !installed("ib_send_bw", "perftest") {
        return;
    }
    pairs(&[
        "ib_send_bw -n 20 -s 64 -c DC --log_dci_streams 2 --log_active_dci_streams 0",
        "ib_send_bw -n 20 -s 4096 -c DC --log_dci_streams 4 --log_active_dci_streams 2",
        "ib_write_bw -n 20 -s 4096 -c DC --log_dci_streams 3 -q 4",
        "ib_read_bw -n 20 -s 64 -c DC --log_dci_streams 8 --log_active_dci_streams 8",
    ]);
}

#[test]
fn perftest_measures_datagrams_and_extended_connections() {
    if !installed("ib_send_lat", "perftest") {
        return;
    }
    pairs(&[
        "ib_send_bw -n 20 -s 1024 -c UD -q 4",
        "ib_send_bw -n 20 -s 64 -c XRC -q 4",
        "ib_write_lat -n 10 -s 64 -c XRC",
        "ib_write_bw -n 20 -s 4096 -c XRC",
        "ib_read_bw -n 20 -s 4096 -c XRC",
        "ib_send_bw -n 20 -s 64 --use-srq -q 3",
    ]);
}

/// The buffers are paged in on demand.
#[test]
fn perftest_measures_memory_on_demand() {
    if !installed("ib_send_bw", "perftest") {
        return;
    }
    pairs(&[
        "ib_send_bw -n 20 -s 65536 --odp",
        "ib_write_bw -n 20 -s 65536 --odp",
        "ib_read_bw -n 20 -s 65536 --odp",
        "ib_send_lat -n 10 -s 64 --odp",
        "ib_send_bw -n 20 -s 1024 -c UD --odp",
    ]);
}

/// The device reports page faults, and the face plays the kernel.
#[test]
fn programs_run_while_the_kernel_serves_page_faults() {
    if !installed("ib_send_bw", "perftest") {
        return;
    }
    for command in [
        "ibv_rc_pingpong -g 0 -n 50 -c -o",
        "ibv_rc_pingpong -g 0 -n 50 -c -O -P",
        "ibv_srq_pingpong -g 0 -n 20 -c -o -q 4 -s 5000 -m 512 -r 64 -l 3",
        "ib_send_bw -n 20 -s 65536 --odp",
        "ib_write_bw -n 20 -s 65536 --odp",
        "ib_read_bw -n 20 -s 65536 --odp",
    ] {
        let arguments: Vec<_> = command.split(' ').collect();
        Pair::of(&arguments).with(&["--page-faults"]).run();
    }
}

#[test]
fn ucx_finds_every_transport() {
    if !installed("ucx_info", "ucx-utils") {
        return;
    }
    let shown = alone(&[], &["ucx_info", "-d"]);
    for transport in ["rc_verbs", "rc_mlx5", "ud_verbs", "ud_mlx5", "dc_mlx5"] {
        assert!(shown.contains(&format!("Transport: {transport}")), "{transport}: {shown}");
    }
}

/// Runs tests of `ucx_perftest`, each with its data layout, over a transport.
fn ucx(transport: &str, tests: &[(&str, &str)]) {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    for (test, layout) in tests {
        let size = ["-n", "50", "-w", "5", "-d", "mlx5_0:1"];
        let what = ["ucx_perftest", "-t", test, "-D", layout, "-x", transport];
        Pair::of(&[&what, &size[..]].concat()).run();
    }
}

/// The tests for a transport with connections.
const CONNECTED: [(&str, &str); 5] = [
    ("am_lat", "short"),
    ("put_lat", "short"),
    ("get", "bcopy"),
    ("fadd", "short"),
    ("am_bw", "bcopy"),
];
/// Datagrams only carry messages.
const DATAGRAMS: [(&str, &str); 2] = [("am_lat", "short"), ("am_bw", "bcopy")];

#[test]
fn ucx_runs_over_rc_mlx5() {
    ucx("rc_mlx5", &CONNECTED);
    ucx("rc_mlx5", &[("cswap", "short"), ("am_bw", "zcopy")]);
}

#[test]
fn ucx_runs_over_rc_verbs() {
    ucx("rc_verbs", &CONNECTED);
}

#[test]
fn ucx_runs_over_dc_mlx5() {
    ucx("dc_mlx5", &CONNECTED);
}

/// The policies by which UCX assigns initiators to endpoints, with one and with several.
#[test]
fn ucx_runs_over_dc_mlx5_with_every_policy() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let words = "ucx_perftest -t am_bw -D bcopy -x dc_mlx5 -d mlx5_0:1 -n 200 -w 5";
    let words: Vec<&str> = words.split_whitespace().collect();
    for policy in ["dcs", "dcs_quota", "rand"] {
        for count in ["1", "8"] {
            Pair::of(&words)
                .set("UCX_DC_MLX5_TX_POLICY", policy)
                .set("UCX_DC_MLX5_NUM_DCI", count)
                .run();
        }
    }
}

/// Rings wrap many times, with WQEs of other sizes in each lap.
#[test]
fn ucx_operations_of_mixed_sizes_change_the_right_memory() {
    const OPERATIONS: &str = "3000";
    let Some(program) = compiled("mixed", "uct/api/uct.h", "-luct") else { return };
    for (transport, policy) in [
        ("rc_mlx5", "dcs"),
        ("ud_mlx5", "dcs"),
        ("dc_mlx5", "dcs"),
        ("dc_mlx5", "dcs_quota"),
        ("dc_mlx5", "rand"),
    ] {
        let words = ["hca", "run", "--", program.path(), transport, "mlx5_0:1", OPERATIONS];
        let ended = support::start_with(&words, &[("UCX_DC_MLX5_TX_POLICY", policy)])
            .end(support::PATIENCE);
        ended.succeeded();
        assert!(ended.stdout.contains("memory is right"), "{transport} {policy}: {ended:#?}");
    }
}

#[test]
fn ucx_runs_over_datagrams() {
    ucx("ud_mlx5", &DATAGRAMS);
    ucx("ud_verbs", &DATAGRAMS);
}

#[test]
fn ucx_protocols_run_over_rc() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    for line in [
        "ucx_perftest -t tag_lat -n 50 -w 5",
        "ucx_perftest -t tag_bw -s 65536 -n 20 -w 5",
        "ucx_perftest -t tag_bw -s 4000000 -n 2 -w 1",
        "ucx_perftest -t ucp_fadd -n 50 -w 5",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        Pair::of(&words).set("UCX_TLS", "rc_x").run();
    }
}

/// Compiles a program of `hca/` for UCX; `None` if the header is missing.
fn compiled(name: &str, header: &str, library: &str) -> Option<support::TestFile> {
    hca::compiled(name, (header, "libucx-dev"), &["-Wextra", library, "-lucs"])
}

/// UCX with tag matching in the device. Over InfiniBand it creates the queue by DEVX, and its
/// version 1.13 cannot do so over Ethernet, where it takes the one of libibverbs.
const MATCHES_TAGS: [&str; 2] = ["--ib", "--no-devx"];
const TAGS: [(&str, &str); 4] = [
    ("UCX_TLS", "rc_x"),
    ("UCX_RC_MLX5_TM_ENABLE", "y"),
    ("UCX_TM_THRESH", "64"),
    ("UCX_TM_FORCE_THRESH", "512"),
];

/// The contents of every message, and the packets by which devices end a rendezvous: without the
/// offload, UCX sends none.
#[test]
fn ucx_messages_match_tags_in_the_device() {
    let Some(program) = compiled("tags", "ucp/api/ucp.h", "-lucp") else { return };
    for option in MATCHES_TAGS {
        let capture = support::TestFile::new("tags.pcap", 0);
        let words = ["hca", "run", option, "--pcap", capture.path(), "--", program.path(), "60"];
        let ended = support::start_with(&words, &TAGS).end(support::PATIENCE);
        ended.succeeded();
        assert!(ended.stdout.contains("messages are right"), "{option}: {ended:#?}");
        let ends = ends_of_rendezvous(&std::fs::read(capture.path()).unwrap());
        assert!(ends > 20, "{option}: {ends} ends of a rendezvous");
    }
}

/// UCX with the messages that match no tag in strides, one for each packet: refused by UCX if the
/// device had none. Their buffers have the size of a packet, so that many messages span some.
#[test]
fn ucx_receives_unexpected_messages_in_strides() {
    let Some(program) = compiled("tags", "ucp/api/ucp.h", "-lucp") else { return };
    let runs: [(&str, &[&str]); 3] = [("8", &[]), ("16", &[]), ("16", &["--mtu", "1500"])];
    for (strides, options) in runs {
        let words = [&["hca", "run", "--ib"][..], options, &["--", program.path(), "60"]].concat();
        let own = [
            ("UCX_RC_MLX5_TM_MP_SRQ_ENABLE", "y"),
            ("UCX_RC_MLX5_TM_MP_NUM_STRIDES", strides),
            // Eager messages of many packets.
            ("UCX_RNDV_THRESH", "40000"),
        ];
        let ended = support::start_with(&words, &[&TAGS[..], &own].concat()).end(support::PATIENCE);
        ended.succeeded();
        assert!(ended.stdout.contains("messages are right"), "{strides} {options:?}: {ended:#?}");
    }
}

/// Counts the messages of 16 bytes that say that the data of a rendezvous was read.
fn ends_of_rendezvous(capture: &[u8]) -> usize {
    const RECORD: usize = 16;
    const FILE: usize = 24;
    /// Headers of Ethernet, IPv4 and UDP; then the base transport header, and the invariant CRC.
    const UDP: usize = 14 + 20 + 8;
    const TRANSPORT: usize = 12;
    const SEND_ONLY: u8 = 0x04;
    const FINISHED: u8 = 2;
    let (mut at, mut ends) = (FILE, 0);
    while let Some(length) = capture.get(at + 8..at + 12) {
        let length = u32::from_ne_bytes(length.try_into().unwrap()) as usize;
        let frame = &capture[at + RECORD..][..length];
        let payload = UDP + TRANSPORT;
        let finished =
            length == payload + 16 + 4 && frame[UDP] == SEND_ONLY && frame[payload] == FINISHED;
        ends += usize::from(finished);
        at += RECORD + length;
    }
    ends
}

#[test]
fn ucx_protocols_match_tags_in_the_device() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    for option in MATCHES_TAGS {
        for line in [
            "ucx_perftest -t tag_lat -s 8 -n 50 -w 5",
            "ucx_perftest -t tag_lat -s 4096 -n 50 -w 5",
            "ucx_perftest -t tag_bw -s 20000 -n 50 -w 5",
            "ucx_perftest -t tag_lat -s 1000000 -n 10 -w 1",
            "ucx_perftest -t tag_bw -s 1000000 -n 10 -w 1",
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let options = [option];
            let mut pair = Pair::of(&words).with(&options);
            for (variable, value) in TAGS {
                pair = pair.set(variable, value);
            }
            pair.run();
        }
    }
}

/// `ucx_perftest` does not look at results. Devices return those of 4 bytes big-endian.
#[test]
fn ucp_fetches_and_adds_numbers_of_4_and_8_bytes() {
    let Some(program) = compiled("fetch_add", "ucp/api/ucp.h", "-lucp") else {
        return;
    };
    let path = program.path();
    let ended = ["rc_x", "dc_x"].map(|transport| {
        let environment = [("UCX_TLS", transport), ("UCX_NET_DEVICES", "mlx5_0:1")];
        support::start_with(&["hca", "run", "--", path], &environment).end(support::PATIENCE)
    });
    for ended in ended {
        ended.succeeded();
        for line in ["4 bytes: result 0x1020304,", "8 bytes: result 0x102030405060708,"] {
            assert!(ended.stdout.contains(line), "{line}: {ended:#?}");
        }
    }
}

#[test]
fn pyverbs_runs_but_for_what_is_listed() {
    const SUITE: &str = "/usr/share/doc/rdma-core/tests";
    const SCAPY: &str = "/usr/lib/python3/dist-packages/scapy";
    if ![PYVERBS, SCAPY, SUITE].iter().all(|folder| std::path::Path::new(folder).is_dir()) {
        hca::skipped("pyverbs and its tests", "python3-pyverbs python3-scapy rdma-core");
        return;
    }
    // By it, the tests of rdma_cm find the addresses of the device's network interface.
    if !installed("ip", "iproute2") {
        return;
    }
    hca::library();
    let folder = hca::unpack(SUITE);
    let runner = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/hca/suite.py");
    let printed = {
        // Hundreds of tests.
        let ended = support::start(&["hca", "run", "--", PYTHON, "-B", runner, folder.path()])
            .end(4 * support::PATIENCE);
        assert!(ended.status.success(), "{ended:#?}");
        ended.stdout
    };
    let verdict = hca::judge(&printed, include_str!("hca/pyverbs.txt"));
    assert!(verdict.is_empty(), "{}", verdict.join("\n"));
}

/// Requests are always in flight, so those that are left get no response.
#[test]
fn a_program_whose_peer_is_killed_is_told() {
    if !installed("ib_write_bw", "perftest") {
        return;
    }
    let endless = ["stdbuf", "-oL", "ib_write_bw", "-s", "4096", "-n", "100000000"];
    let (mut server, mut client) = Pair::of(&endless).start();
    let killed = server.second().expect("it runs");
    assert!(client.line("#bytes").is_some(), "{:#?}", client.end(support::PATIENCE));
    support::signal(killed, libc::SIGKILL);
    assert_eq!(server.end(support::PATIENCE).status.code(), Some(128 + libc::SIGKILL));
    let left = client.end(support::PATIENCE);
    // IBV_WC_RETRY_EXC_ERR, or an error of the control connection before the first request.
    let told =
        ["Failed status 12", "Failed to exchange data"].map(|words| left.stderr.contains(words));
    assert!(!left.status.success() && told.contains(&true), "{left:#?}");
}

/// The program gets SIGKILL, not SIGTERM: a server that is killed so closes no connection.
#[test]
fn a_program_is_killed_with_its_run() {
    hca::library();
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.1; done";
    let mut run = support::start(&["hca", "run", "--", "sh", "-c", script]);
    let program: u32 = run.line("").unwrap().trim().parse().unwrap();
    support::signal(run.pid(), libc::SIGKILL);
    assert!(support::gone_within(program, support::PATIENCE));
    let ended = run.end(support::PATIENCE);
    assert!(!ended.stdout.contains("asked"), "{ended:#?}");
}

#[test]
fn signals_to_the_run_are_the_program_s() {
    hca::library();
    for (name, signal) in [("TERM", libc::SIGTERM), ("USR1", libc::SIGUSR1)] {
        let script = format!("trap 'exit 5' {name}; echo ready; while :; do sleep 0.1; done");
        let mut run = support::start(&["hca", "run", "--", "sh", "-c", &script]);
        run.line("ready").unwrap();
        support::signal(run.pid(), signal);
        let ended = run.end(support::PATIENCE);
        assert_eq!(ended.status.code(), Some(5), "{name}: {ended:#?}");
    }
}

/// As under nohup.
#[test]
fn a_program_ignores_the_signals_that_the_run_ignores() {
    hca::library();
    let script = "trap '' HUP; exec \"$0\" hca run -- grep SigIgn: /proc/self/status";
    let shell = ["-c", script, env!("CARGO_BIN_EXE_barewire")];
    let output = std::process::Command::new("sh").args(shell).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let ignored = shown.trim().rsplit('\t').next().unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored >> (libc::SIGHUP - 1) & 1, 1, "{output:?}");
    assert_eq!(ignored >> (libc::SIGTERM - 1) & 1, 0, "{output:?}");
}

#[test]
fn a_child_that_uses_its_parents_device_gets_an_error() {
    if let Some(shown) = pyverbs(&[], "fork.py", &[]) {
        assert_eq!(shown, "parent's device: errno 5\nits own: ok\nparent: ok\n");
    }
}

#[test]
fn asynchronous_events_are_told_and_counted() {
    for (kind, faults) in [
        ("limit", ""),
        ("last_wqe", ""),
        ("access", ""),
        ("port", "flap=0.2,flap_us=20000"),
        ("link", ""),
        ("fatal", "fatal_after=3"),
    ] {
        let options = if faults.is_empty() { vec![] } else { vec!["--faults", faults] };
        if let Some(shown) = pyverbs(&options, "events.py", &[kind]) {
            assert_eq!(shown, "ok\n", "{kind}");
        }
    }
}

#[test]
fn a_program_is_told_that_its_completion_queue_is_full() {
    if let Some(script) = script("events.py") {
        let shown = hca::found(&[PYTHON, "-B", &script, "overrun"], "completion queue 0x2 is full");
        assert_eq!(shown, "ok\n");
    }
}

#[test]
fn programs_send_commands_of_their_own() {
    if let Some(shown) = pyverbs(&[], "devx.py", &[]) {
        assert_eq!(shown, "ok\n");
    }
}

#[test]
fn the_limit_of_a_receive_memory_pool_has_no_event_on_a_strict_kernel() {
    if let Some(shown) = pyverbs(&["--kernel-strict"], "devx.py", &["strict"]) {
        assert_eq!(shown, "ok\n");
    }
}

#[test]
fn a_program_without_the_right_to_devx_has_verbs() {
    if !installed("ucx_info", "ucx-utils") {
        return;
    }
    let shown = alone(&["--no-devx"], &["ucx_info", "-d"]);
    assert!(shown.contains("Transport: rc_mlx5"), "{shown}");
    if !std::path::Path::new(PYVERBS).is_dir() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/hca/devx.py");
    let ended = support::run(&["hca", "run", "--no-devx", "--", PYTHON, "-B", script]);
    assert!(ended.stderr.contains("no DEVX: Operation not permitted"), "{ended:#?}");
}

const PYTHON: &str = "/usr/bin/python3";
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs";

/// A script of this folder, if pyverbs is installed.
fn script(name: &str) -> Option<String> {
    if !std::path::Path::new(PYVERBS).is_dir() {
        hca::skipped("pyverbs", "python3-pyverbs");
        return None;
    }
    hca::library();
    Some(format!("{}/tests/it/hca/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// The output of a script.
fn pyverbs(options: &[&str], name: &str, arguments: &[&str]) -> Option<String> {
    let script = script(name)?;
    Some(alone(options, &[&[PYTHON, "-B", &script], arguments].concat()))
}
