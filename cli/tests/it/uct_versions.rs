//! Runs every UCX in the target folder over these transports: Python packages, installed by
//! `python3 -m pip install --no-deps --target target/ucx-1.18.1 libucx-cu12==1.18.1`. Without any,
//! the tests are skipped.

use std::fs;
use std::path::{Path, PathBuf};

use crate::hca::{alone_by, library};
use crate::uct::{self, UCT};

/// The folders of the packages, in order.
fn packages() -> Vec<PathBuf> {
    let profile = Path::new(env!("CARGO_BIN_EXE_barewire")).parent().unwrap();
    let entries = fs::read_dir(profile.parent().unwrap()).unwrap().flatten();
    let is_package = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("ucx-")) && path.join("libucx/lib").exists()
    };
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(is_package).collect();
    found.sort();
    if found.is_empty() {
        println!("skipped: no UCX in the target folder");
    } else {
        library();
    }
    found
}

#[test]
fn info_shows_the_transports_of_every_version() {
    for package in packages() {
        let folder = |name| package.join("libucx").join(name).to_str().unwrap().to_owned();
        let libraries = format!("LD_LIBRARY_PATH={}", folder("lib"));
        // Packages lack the right to execute their programs.
        let (loader, program) = ("/lib64/ld-linux-x86-64.so.2", folder("bin/ucx_info"));
        if !Path::new(loader).exists() {
            return println!("skipped: no {loader}");
        }
        let shown = alone_by(UCT, &[], &["env", &libraries, loader, &program, "-d"]);
        for words in ["Transport: shm", "Transport: tcp", "Transport: rc_mlx5", "put_zcopy: "] {
            assert!(shown.contains(words), "{}: {words}: {shown}", package.display());
        }
    }
}

#[test]
fn contents_are_right_with_every_version() {
    for package in packages() {
        let name = package.file_name().unwrap().to_str().unwrap();
        let folder = |name| package.join("libucx").join(name).to_str().unwrap().to_owned();
        let (headers, libraries) = (folder("include"), folder("lib"));
        let version = uct::Version { name, headers: &headers, libraries: Some(&libraries) };
        for transports in ["shm,cma,self", "tcp", "rc_mlx5", "dc_mlx5", "ud_mlx5", "all"] {
            uct::contents(version, transports, uct::OVER_DEVICES, (UCT, &[]));
        }
    }
}
