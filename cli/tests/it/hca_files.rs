//! The files of devices, as programs find and read them: `barewire hca run -- PROGRAM`.

use std::path::Path;

use crate::hca::{self, alone, installed};

/// Compiles and runs a program of `hca/`. Returns its output, or `None` if something is missing.
fn run(source: &str, header: &str, libraries: &[&str], options: &[&str]) -> Option<String> {
    let libraries = [&["-O1", "-Wno-format-truncation"], libraries].concat();
    let program = hca::compiled(source, (header, "libibverbs-dev"), &libraries)?;
    Some(alone(options, &[program.path()]))
}

#[test]
fn every_function_that_takes_a_path_finds_the_devices() {
    let Some(printed) = run("paths", "stdio.h", &[], &[]) else { return };
    assert!(printed.contains("every function finds the devices"), "{printed}");
}

#[test]
fn files_of_sysfs_have_the_values_of_the_device() {
    for options in [&[][..], &["--ib"]] {
        let Some(printed) = run("values", "infiniband/verbs.h", &["-libverbs"], options) else {
            return;
        };
        assert!(printed.contains("the values are those of the device"), "{printed}");
    }
}

/// As a child of itself, under `barewire hca run`: the functions that Rust's library calls.
#[test]
fn rust_programs_find_the_devices() {
    const ROLE: &str = "BAREWIRE_TEST_FILES";
    if std::env::var_os(ROLE).is_some() {
        let file = Path::new("/sys/class/infiniband/mlx5_0/node_type");
        assert!(Path::new("/dev/infiniband/uverbs0").exists() && file.exists());
        assert!(file.metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(file).unwrap(), "1: CA\n");
        assert_eq!(std::fs::read_dir("/sys/class/infiniband").unwrap().count(), 1);
        let files = std::fs::read_dir("/dev/infiniband").unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["rdma_cm", "uverbs0"]);
        return println!("the devices are found");
    }
    crate::hca::library();
    let own = std::env::current_exe().unwrap();
    let role = format!("{ROLE}=1");
    let test = "hca_files::rust_programs_find_the_devices";
    let words = ["env", &role, own.to_str().unwrap(), "--exact", test, "--nocapture"];
    let printed = alone(&[], &words);
    assert!(printed.contains("the devices are found"), "{printed}");
}

#[test]
fn ibstat_and_ibstatus_show_the_devices() {
    if !installed("ibstat", "infiniband-diags") || !installed("ibstatus", "infiniband-diags") {
        return;
    }
    for (options, layer) in [(&[][..], "Ethernet"), (&["--ib"], "InfiniBand")] {
        let shown = alone(options, &["ibstat"]);
        for words in ["CA 'mlx5_0'", "CA type: MT4129", "State: Active", "Rate: 400", layer] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(!shown.contains("Node GUID: 0x0000000000000000"), "{shown}");
        let shown = alone(options, &["ibstatus"]);
        for words in ["Infiniband device 'mlx5_0' port 1 status", "4: ACTIVE", "400 Gb/sec", layer]
        {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }
}
