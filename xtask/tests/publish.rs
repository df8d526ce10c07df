//! The packages for crates.io contain what their readers need, and nothing else.

use std::fs;
use std::path::Path;
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

/// The files that a source file includes by a path in quotes, relative to its package, except those
/// of doc tests.
fn included(source: &str, text: &str) -> Vec<String> {
    let folder = Path::new(source).parent().unwrap();
    let mut previous = "";
    let lines = text.lines().filter(|line| {
        let is_tested_only = previous.contains("cfg(doctest)") || previous.contains("cfg(test)");
        previous = line;
        !is_tested_only
    });
    let paths = lines.flat_map(|line| line.split("include_").skip(1)).filter_map(|rest| {
        let path = rest.split_once("!(\"")?.1.split('"').next()?;
        let mut whole: Vec<&str> = folder.iter().map(|part| part.to_str().unwrap()).collect();
        for part in path.split('/') {
            if part != ".." {
                whole.push(part);
            } else if whole.pop().is_none() {
                whole.push("(outside)");
            }
        }
        Some(whole.join("/"))
    });
    paths.collect()
}

#[test]
fn included_files_are_found() {
    let text = "#[doc = include_str!(\"../docs/a.md\")]\n\
                #[cfg(doctest)]\n#[doc = include_str!(\"../../README.md\")]\n\
                x(include_bytes!(\"b/c\"))\nx(include_str!(\"../../d\"))";
    assert_eq!(included("src/lib.rs", text), ["docs/a.md", "src/b/c", "(outside)/d"]);
}

#[test]
fn every_package_is_complete() {
    let metadata = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    // An empty list of registries: never published.
    let published: Vec<&Value> =
        packages.iter().filter(|package| package["publish"].is_null()).collect();
    assert!(published.len() >= 15, "{}", published.len());
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
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        for source in
            files.iter().filter(|file| Path::new(file).extension().is_some_and(|end| end == "rs"))
        {
            let text = fs::read_to_string(manifest.with_file_name(source)).unwrap();
            for file in included(source, &text) {
                assert!(files.contains(&file.as_str()), "{name}: {source} includes {file}");
            }
        }
    }
}

/// The features of rustix that a package asks for.
fn features_of_rustix(package: &Value) -> Vec<&str> {
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    dependencies
        .filter(|dependency| dependency["name"] == "rustix")
        .flat_map(|dependency| dependency["features"].as_array().unwrap())
        .map(|feature| feature.as_str().unwrap())
        .collect()
}

/// With fewer features than the workspace, rustix and xtask would be compiled twice in each CI run.
#[test]
fn xtask_has_every_feature_of_rustix_that_the_workspace_has() {
    let metadata = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["name"] == "xtask").unwrap();
    let own = features_of_rustix(own);
    for package in packages {
        for feature in features_of_rustix(package) {
            assert!(own.contains(&feature), "{} has {feature}", package["name"]);
        }
    }
}
