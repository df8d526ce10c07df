//! The packages for crates.io contain what their readers need, and nothing else.

use std::process::Command;

use serde_json::Value;

/// Runs cargo at the root of the workspace, and returns what it prints.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--offline")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_package_is_complete() {
    let metadata = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    // An empty list of registries: never published.
    let published: Vec<&Value> =
        packages.iter().filter(|package| package["publish"].is_null()).collect();
    assert!(published.len() >= 13, "{}", published.len());
    for package in published {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            assert!(!package[field].as_array().unwrap().is_empty(), "{name} has no {field}");
        }
        let list = cargo(&["package", "--list", "--allow-dirty", "-p", name]);
        let files: Vec<&str> = list.lines().collect();
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml"] {
            assert!(files.contains(&file), "{name} lacks {file}");
        }
        let is_foreign = |file: &&&str| {
            let generated = **file == ".cargo_vcs_info.json";
            !generated
                && [".", "tests/", "benches/", "target/"]
                    .iter()
                    .any(|start| file.starts_with(start))
        };
        assert_eq!(files.iter().find(is_foreign), None, "{name}");
    }
}
