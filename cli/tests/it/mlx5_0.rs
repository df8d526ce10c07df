//! The command line on `mlx5_0`: the software HCA behind Debian's libibverbs and libmlx5, set up by
//! DEVX and by verbs objects.

use crate::hca;
use crate::support;

use hca::installed;
use support::{Ended, PATIENCE, TestFile, start_with};

/// Runs `barewire hca run OPTIONS -- barewire ARGUMENTS`, with the backend `way`.
fn run(options: &[&str], arguments: &[&str], way: Option<&str>) -> Ended {
    let barewire = [env!("CARGO_BIN_EXE_barewire")];
    let arguments = [&["hca", "run"], options, &["--"], &barewire, arguments].concat();
    let environment: Vec<_> = way.map(|way| ("BAREWIRE_MLX5_SETUP", way)).into_iter().collect();
    start_with(&arguments, &environment).end(PATIENCE)
}

#[test]
fn info_says_how_the_device_is_set_up_and_why() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let shown = |options: &[&str], way| {
        let ended = run(options, &["info", "-v"], way);
        ended.succeeded();
        ended.stdout
    };
    let text = shown(&[], None);
    for words in [
        "device mlx5_0:1",
        "set up by devx: the kernel supports DEVX, and a test passed",
        "RoCEv2 with an IPv4 address",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = shown(&[], Some("init_obj"));
    assert!(text.contains("set up by init_obj: as requested"), "{text}");
    let text = shown(&["--no-devx"], None);
    assert!(text.contains("set up by init_obj: devx failed: "), "{text}");
    let text = shown(&["--no-devx-qps"], None);
    assert!(
        text.contains("set up by init_obj: devx failed: testing reliable connections"),
        "{text}"
    );
    assert!(text.contains("the device refused: CREATE_QP failed: limit exceeded"), "{text}");
    let text = shown(&[], Some("verbs"));
    assert!(text.contains("absent mlx5_0:1: BAREWIRE_MLX5_SETUP=verbs leaves it to"), "{text}");
    let text = shown(&["--no-devx"], Some("devx"));
    assert!(text.contains("absent mlx5_0:1: mlx5_0 cannot be driven directly: devx: "), "{text}");
    let text = shown(&[], Some("firmware"));
    assert!(text.contains("BAREWIRE_MLX5_SETUP: unknown backend 'firmware'"), "{text}");
    let text = shown(&["--ib"], None);
    assert!(text.contains("device mlx5_0:1") && text.contains("GID 0 (InfiniBand"), "{text}");
}

#[test]
fn the_demo_holds_its_checksums() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let file = TestFile::new("demo-mlx5_0", 1 << 20);
    demonstrate("devx", &[], &file);
    demonstrate("init_obj", &["--ib"], &file);
}

/// Each option makes something fail that a driver must do on some ports and hosts. With the test
/// above, each backend runs on each link layer.
#[test]
fn the_demo_holds_its_checksums_on_demanding_ports_and_hosts() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let file = TestFile::new("demo-demanding", 1 << 20);
    let roce = ["--mtu", "1500", "--udp-ports", "1000-1999", "--real-time-clock", "--iommu"];
    let infiniband = ["--ib", "--grh-required", "--mtu", "2200", "--real-time-clock", "--iommu"];
    demonstrate("init_obj", &roce, &file);
    demonstrate("devx", &infiniband, &file);
}

/// Runs the demo on a device with `options`, set up by `way`.
fn demonstrate(way: &str, options: &[&str], file: &TestFile) {
    let ended = run(options, &["demo", "-d", "mlx5_0:1", file.path()], Some(way));
    ended.succeeded();
    let shown = &ended.stdout;
    let held = |line: &&str| line.trim_end().ends_with("yes");
    let rows =
        |transport| shown.lines().filter(|line| line.starts_with(transport)).filter(held).count();
    assert_eq!((rows("rc_mlx5"), rows("ud_")), (4, 4), "{way} {options:?}: {shown}");
}

#[test]
fn a_device_that_is_not_there_is_one_line() {
    let ended = run(&[], &["demo", "-d", "mlx5_7:1"], None);
    let line = ended.failed();
    assert!(line.contains("device 'mlx5_7:1'") && line.contains("mlx5_0:1"), "{line}");
}
