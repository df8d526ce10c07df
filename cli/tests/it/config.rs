//! Settings by environment variables.

use crate::support;

use std::process::Command;
use support::{PATIENCE, run, start_with};

#[test]
fn info_lists_settings_with_value_default_and_meaning() {
    let ended = run(&["info", "--config"]);
    ended.succeeded();
    let text = &ended.stdout;
    for part in [
        "BAREWIRE_SEND_RING=256",
        "blocks of 64 bytes",
        "BAREWIRE_PEER_TIMEOUT=30s",
        "BAREWIRE_KEY_FILE",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let environment = [("BAREWIRE_SEND_RING", "1K"), ("BAREWIRE_KEY", "abcd")];
    let ended = start_with(&["info", "--config"], &environment).end(PATIENCE);
    ended.succeeded();
    let text = &ended.stdout;
    assert!(
        text.contains("BAREWIRE_SEND_RING=1024")
            && text.contains("by the environment; default 256"),
        "{text}"
    );
    // The key is secret.
    assert!(!text.contains("abcd"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&run(&["info", "--config", "--json"]).stdout).unwrap();
    assert_eq!(json["settings"][0]["variable"], "BAREWIRE_SEND_RING");
}

/// The list can be read by a shell, and means the same then.
#[test]
fn info_lists_settings_for_a_shell() {
    let environment = [("BAREWIRE_SHM_DIR", "/tmp/it's a folder")];
    let listed = start_with(&["info", "--config"], &environment).end(PATIENCE);
    listed.succeeded();
    let script =
        format!("{}\nprintf '%s,%s' \"$BAREWIRE_SEND_RING\" \"$BAREWIRE_SHM_DIR\"", listed.stdout);
    let read = Command::new("sh").args(["-euc", &script]).env_clear().output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stderr), "");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "256,/tmp/it's a folder");
    // No markup of rustdoc.
    assert!(
        !listed.stdout.contains('`') && !listed.stdout.contains("crate::"),
        "{}",
        listed.stdout
    );
}

#[test]
fn a_value_that_cannot_be_is_refused_with_what_can() {
    for args in [&["info", "--config"][..], &["perf", "-t", "am_lat", "-n", "10", "-x", "tcp"]] {
        let ended = start_with(args, &[("BAREWIRE_CONNECT_TIMEOUT", "10")]).end(PATIENCE);
        ended.failed();
        let expected =
            "BAREWIRE_CONNECT_TIMEOUT='10' is not valid: the setting takes a time with its unit";
        assert!(ended.stderr.contains(expected), "{args:?}: {ended:#?}");
    }
    // Also over transports without such a ring.
    for transport in ["rc_mlx5", "shm"] {
        let args = ["perf", "-t", "am_lat", "-n", "10", "-x", transport];
        let ended = start_with(&args, &[("BAREWIRE_SEND_RING", "100")]).end(PATIENCE);
        ended.failed();
        let expected = "BAREWIRE_SEND_RING='100' is not valid: the setting takes a power of two";
        assert!(ended.stderr.contains(expected), "{transport}: {ended:#?}");
    }
}

#[test]
fn an_unknown_variable_is_warned_of() {
    let ended = start_with(&["info"], &[("BAREWIRE_SENDRING", "64"), ("BAREWIRE_TEST_X", "1")])
        .end(PATIENCE);
    assert!(ended.status.success(), "{ended:#?}");
    let warning = "barewire: warning: BAREWIRE_SENDRING is not a variable of barewire: did you mean BAREWIRE_SEND_RING?\n";
    assert_eq!(ended.stderr, warning);
}

/// The table of message sizes in the guide.
#[test]
fn the_guide_has_the_message_sizes_of_each_transport() {
    let guide = include_str!("../../../docs/guide/transports.md");
    let (_, table) = guide.split_once("| transport | `am_short` |").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 7, "{rows:?}");
    let json: serde_json::Value = serde_json::from_str(&run(&["info", "--json"]).stdout).unwrap();
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let devices = list(&json["components"]).into_iter().flat_map(|one| list(&one["devices"]));
    // Which every machine has.
    let devices = devices
        .filter(|device| ["memory", "lo", "soft0:1"].iter().any(|name| device["name"] == *name));
    let transports: Vec<_> = devices.flat_map(|device| list(&device["transports"])).collect();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let named =
            |transport: &&serde_json::Value| transport["name"] == *cells[0].trim_matches('`');
        let transport = transports.iter().find(named).unwrap_or_else(|| panic!("{row}"));
        let size = |value: &serde_json::Value| match value.as_u64() {
            None => "any".to_owned(),
            Some(0) => "-".to_owned(),
            Some(size) => size.to_string(),
        };
        let message = &transport["active_message"];
        let sizes = [
            size(&message["max_short_bytes"]),
            size(&message["max_bcopy_bytes"]),
            size(&transport["put"]["max_short_bytes"]),
        ];
        assert_eq!(cells[1..], sizes, "{row}");
    }
}

#[test]
fn an_empty_variable_is_as_one_that_is_not_set() {
    let empty = ["BAREWIRE_KEY_FILE", "BAREWIRE_KEY", "XDG_RUNTIME_DIR", "BAREWIRE_SEND_RING"];
    let perf = ["perf", "-t", "am_lat", "-n", "10", "-x", "tcp"];
    start_with(&perf, &empty.map(|name| (name, ""))).end(PATIENCE).succeeded();
}
