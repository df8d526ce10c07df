//! `barewire run`: the ranks of a parallel program on this host.

use crate::support;

use std::time::{Duration, Instant};

use barewire_bootstrap::{LISTENER_VARIABLE, Runtime, all_gather, detect};

const ROLE: &str = "BAREWIRE_TEST_RUN";

#[test]
fn ranks_find_each_other() {
    if std::env::var_os(ROLE).is_some() {
        let mut job = detect().unwrap();
        assert_eq!(job.runtime(), Runtime::Tcp);
        let (rank, timeout) = (job.rank(), Duration::from_mins(1));
        let all = all_gather(&mut *job, "rank", &rank.to_le_bytes(), timeout).unwrap();
        assert_eq!(all, [0_u32, 1, 2, 3].map(u32::to_le_bytes));
        return;
    }
    let test = std::env::current_exe().unwrap();
    let words = [
        "run",
        "-n",
        "4",
        "--",
        test.to_str().unwrap(),
        "--exact",
        "launch::ranks_find_each_other",
    ];
    // Rank 0 cannot listen at this port. Variables of a job that starts the launcher do not matter.
    let taken = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = (taken.local_addr().unwrap().port().to_string(), taken);
    let outer =
        [("BAREWIRE_BOOTSTRAP_PORT", taken.0.as_str()), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    for outer in [&[][..], &outer] {
        let variables = [&[(ROLE, "rank")], outer].concat();
        let ended = support::start_with(&words, &variables).end(support::PATIENCE);
        ended.succeeded();
        assert_eq!(ended.stdout.matches("1 passed").count(), 4, "{ended:#?}");
    }
    let script = "test -z \"$BAREWIRE_BOOTSTRAP_PORT$TORCHELASTIC_USE_AGENT_STORE\"";
    let words = ["run", "-n", "2", "sh", "-c", script];
    support::start_with(&words, &outer).end(support::PATIENCE).succeeded();
}

#[test]
fn each_rank_has_its_variables_and_its_label() {
    let script =
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${#BAREWIRE_KEY}";
    let ended = support::run(&["run", "-n", "3", "--label", "--", "sh", "-c", script]);
    ended.succeeded();
    for rank in 0..3 {
        let line = format!("[{rank}] {rank}/3 {rank}/3 127.0.0.1 64\n");
        assert!(ended.stdout.contains(&line), "{line} {ended:#?}");
    }
}

/// Another process cannot take the port before rank 0 listens.
#[test]
fn rank_0_inherits_the_socket_at_the_port() {
    const SCRIPT: &str =
        "readlink /proc/self/fd/$BAREWIRE_BOOTSTRAP_FD; echo port $MASTER_PORT; exec sleep 60";
    let mut launcher = support::start(&["run", "--label", "-n", "2", "sh", "-c", SCRIPT]);
    let socket = launcher.line("[0] ").unwrap();
    assert!(socket.contains("socket:"), "{socket}");
    let line = launcher.line("port ").unwrap();
    let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let address = (std::net::Ipv4Addr::LOCALHOST, port);
    let taken = std::net::TcpListener::bind(address).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    std::net::TcpStream::connect(address).expect("the socket listens");
    // Other ranks do not inherit it: it closes when rank 0 ends.
    let script = "test $RANK = 0 || exec sleep 60; echo port $MASTER_PORT";
    let mut launcher = support::start(&["run", "-n", "2", "sh", "-c", script]);
    let line = launcher.line("port ").unwrap();
    let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let start = Instant::now();
    while std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).is_ok() {
        assert!(start.elapsed() < support::PATIENCE, "another process listens");
        std::thread::sleep(Duration::from_millis(1));
    }
    let script = "test $RANK = 0 || test -z \"$BAREWIRE_BOOTSTRAP_FD\"";
    let ended =
        support::start_with(&["run", "-n", "2", "sh", "-c", script], &[(LISTENER_VARIABLE, "0")]);
    ended.end(support::PATIENCE).succeeded();
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let start = Instant::now();
    let ended =
        support::run(&["run", "-n", "3", "sh", "-c", "test $RANK != 1 || exit 7; exec sleep 60"]);
    assert_eq!(ended.status.code(), Some(7), "{ended:#?}");
    assert!(ended.stderr.contains("rank 1 exited with code 7; ending the others"), "{ended:#?}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

/// Rank 0 fails because rank 1 is killed, and is checked first.
#[test]
fn the_code_is_that_of_a_killed_rank_and_not_of_those_that_fail_because_of_it() {
    let folder = std::env::temp_dir().join(format!("barewire-killed-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let script = "cd $0; test $RANK = 0 || { echo $$ > new; mv new pid; exec sleep 60; }; \
                  until test -e pid; do sleep 0.01; done; kill -9 $(cat pid); exit 3";
    let words = ["run", "-n", "2", "sh", "-c", script, folder.to_str().unwrap()];
    let ended = support::run(&words);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:#?}");
    let line = "rank 1 was ended by signal 9; ending the others";
    assert!(ended.stderr.contains(line), "{ended:#?}");
}

/// Rank 0 aborts because rank 1 has exited.
#[test]
fn a_rank_that_aborts_because_of_another_is_not_blamed() {
    let folder = std::env::temp_dir().join(format!("barewire-aborted-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let script = "cd $0; ulimit -c 0; test $RANK = 0 || { echo $$ > new; mv new pid; exit 3; }; \
                  until test -e pid; do sleep 0.01; done; \
                  while kill -0 $(cat pid); do sleep 0.01; done; kill -ABRT $$";
    let words = ["run", "-n", "2", "sh", "-c", script, folder.to_str().unwrap()];
    let ended = support::run(&words);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    let line = "rank 1 exited with code 3; ending the others";
    assert!(ended.stderr.contains(line), "{ended:#?}");
}

#[test]
fn the_others_can_keep_going() {
    let script = "test $RANK != 1 || kill -9 $$; sleep 0.5; echo rank $RANK is done";
    let ended = support::run(&["run", "-n", "3", "--keep-going", "sh", "-c", script]);
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:#?}");
    assert!(
        ended.stdout.contains("rank 0 is done") && ended.stdout.contains("rank 2 is done"),
        "{ended:#?}"
    );
    assert!(ended.stderr.contains("rank 1 was ended by signal 9"), "{ended:#?}");
}

#[test]
fn the_ranks_end_with_the_launcher() {
    let mut launcher =
        support::start(&["run", "--label", "-n", "2", "sh", "-c", "echo started; exec sleep 60"]);
    for line in ["[0] started", "[1] started"] {
        assert!(launcher.line(line).is_some(), "{}", launcher.errors());
    }
    let ranks = support::children(launcher.pid());
    assert_eq!(ranks.len(), 2);
    support::signal(launcher.pid(), 9);
    for rank in ranks {
        assert!(
            support::gone_within(rank, Duration::from_secs(20)),
            "process {rank} is left behind"
        );
    }
}

#[test]
fn wrong_words_are_one_line() {
    for (words, expected) in [
        (&["run", "-n", "0", "true"][..], "0 is not in 1..=1024"),
        (&["run", "-n", "2"], "<PROGRAM>"),
        (&["run", "true"], "--count"),
        (&["run", "-n", "2", "no-such-program"], "cannot start no-such-program"),
    ] {
        let ended = support::run(words);
        assert!(ended.stderr.contains(expected) && !ended.status.success(), "{ended:#?}");
    }
}
