//! `cargo xtask commands`: the DEVX commands of this driver beside those of UCX, field by field.
//!
//! Both connect queue pairs on the software HCA, which records their commands. The table has a line
//! per field in which they differ, each with its reason. Numbers that every run chooses anew are
//! left out, as are lists of memory pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use crate::fields::{self, Field};
use crate::process::{self, Failure, Invocation, Output, repository, run, target};

const TABLE: &str = "layouts/commands.txt";
const SOURCE: &str = "layouts/src/command/mod.rs";
const HEAD: &str = "\
# The commands of rc_mlx5 (rc: put_lat, am_lat) and dc_mlx5 (dc: the same) beside those of UCX's
# transports of these names (Debian's ucx_perftest), on the software HCA: transport, command, field,
# values here, values of UCX. A set of values is joined by '|'; '-' means that no such command was
# sent. The reason of the difference follows '#'.
# Written by 'cargo xtask commands'; reasons are kept.
";

/// Numbers and addresses that differ from run to run.
const CHOSEN_ANEW: [&str; 27] = [
    "c_eqn",
    "cqn_rcv",
    "cqn_snd",
    "dbr_addr",
    "dbr_umem_id",
    "dc_access_key",
    "len",
    "mkey",
    "mkey_7_0",
    "next_rcv_psn",
    "next_send_psn",
    "pd",
    "qpn",
    "remote_qpn",
    "rgid_rip",
    "rmac",
    "rmpn",
    "srqn_rmpn_xrqn",
    "srqn_xrqn",
    "start_addr",
    "uar",
    "uar_page",
    "udp_sport",
    "user_index",
    "wq_umem_id",
    "wq_umem_offset",
    "cqn",
];
/// The structures of fields that hold one, where the names differ.
const STRUCTURES: [(&str, &str); 7] = [
    ("cq_context", "cqc"),
    ("ctx", "rmpc"),
    ("dct_context_entry", "dctc"),
    ("memory_key_mkey_entry", "mkc"),
    ("primary_address_path", "ads"),
    ("secondary_address_path", "ads"),
    ("srq_context_entry", "srqc"),
];
/// Bits of a structure that has no length of its own: lists of pages follow.
const LONGEST: usize = 0x880;

const BUILD: Duration = Duration::from_mins(30);
const MEASURE: Duration = Duration::from_mins(2);

/// The values of each field, by command and field.
type Decoded = BTreeMap<(String, String), BTreeSet<String>>;

/// The transports: their names in the table and in programs.
const TRANSPORTS: [(&str, &str); 2] = [("rc", "rc_mlx5"), ("dc", "dc_mlx5")];
/// What is measured with each.
const TESTS: [&str; 2] = ["put_lat", "am_lat"];
/// The words of a line that its reason is kept for: transport, command, field.
const KEY: usize = 3;

/// Records the commands of both and writes the table.
pub(crate) fn write() -> Result<(), Failure> {
    let build = ["build", "-p", "barewire-cli", "-p", "barewire-hca-uverbs", "--all-features"];
    run(&Invocation::cargo(&build), BUILD, Output::Inherit)?;
    let layouts = Layouts::read()?;
    let path = repository().join(TABLE);
    let reasons = fields::reasons(&fs::read_to_string(&path).unwrap_or_default(), KEY);
    let (mut text, mut lacking) = (HEAD.to_owned(), 0);
    for (name, transport) in TRANSPORTS {
        let (mut ours, mut theirs) = (Decoded::new(), Decoded::new());
        for test in TESTS {
            let measured = ["-d", "mlx5_0:1", "-x", transport, "-t", test];
            let own = [&["target/debug/barewire", "perf"], &measured[..]].concat();
            record(&layouts, &own, &mut ours)?;
            record(&layouts, &[&["ucx_perftest", "-l"], &measured[..]].concat(), &mut theirs)?;
        }
        for line in differences(&ours, &theirs) {
            let line = format!("{name} {line}");
            text.push_str(&line);
            match reasons.get(&fields::key(&line, KEY)) {
                Some(reason) => text.extend(["  # ", reason]),
                None => lacking += 1,
            }
            text.push('\n');
        }
    }
    process::write(TABLE, &text)?;
    match lacking {
        0 => Ok(()),
        _ => Err(Failure::Found(format!("{lacking} lines need a reason: append '  # reason'"))),
    }
}

/// Runs a program on the software HCA and adds its commands to `decoded`.
fn record(layouts: &Layouts, program: &[&str], decoded: &mut Decoded) -> Result<(), Failure> {
    let file = target().join(format!("commands-{}", std::process::id()));
    // A leftover of another process.
    let _ = fs::remove_file(&file);
    let path =
        file.to_str().ok_or_else(|| Failure::Found("the target folder is not UTF-8".to_owned()))?;
    let invocation = Invocation::new("target/debug/barewire", &["hca", "run", "--"])
        .with(program)
        .with(&["-n", "100"])
        .environment("BAREWIRE_HCA_COMMANDS", path);
    let ended = run(&invocation, MEASURE, Output::Discard);
    let recorded = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    ended?;
    if recorded.is_empty() {
        return Err(Failure::Found(format!("{invocation}: it sent no commands")));
    }
    decode(layouts, &recorded, decoded)
}

/// The lines of the table without reasons. Commands that only one sends have one line.
fn differences(ours: &Decoded, theirs: &Decoded) -> Vec<String> {
    let commands = |all: &Decoded| -> BTreeSet<String> {
        all.keys().map(|(command, _)| command.clone()).collect()
    };
    let (own, other) = (commands(ours), commands(theirs));
    let mut lines = Vec::new();
    for command in own.union(&other) {
        if !own.contains(command) || !other.contains(command) {
            let sent = |has| if has { "sent" } else { "-" };
            let [own, other] = [own.contains(command), other.contains(command)].map(sent);
            lines.push(format!("{command} * {own} {other}"));
            continue;
        }
        let keys: BTreeSet<_> =
            ours.keys().chain(theirs.keys()).filter(|key| key.0 == *command).collect();
        for key in keys {
            let [own, other] = [ours.get(key), theirs.get(key)].map(values);
            if own != other {
                lines.push(format!("{} {} {own} {other}", key.0, key.1));
            }
        }
    }
    lines
}

/// A set of values as a word.
fn values(set: Option<&BTreeSet<String>>) -> String {
    let words = set.into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    if words.is_empty() { "0x0".to_owned() } else { words.join("|") }
}

/// The fields of every structure, and the names of commands.
struct Layouts {
    structures: BTreeMap<String, Vec<Field>>,
    commands: BTreeMap<usize, String>,
}

impl Layouts {
    fn read() -> Result<Self, Failure> {
        let mut structures: BTreeMap<String, Vec<Field>> = BTreeMap::new();
        for field in fields::fields()? {
            let structure = field.name.split('.').next().unwrap_or_default().to_owned();
            structures.entry(structure).or_default().push(field);
        }
        let text = fields::read(&repository().join(SOURCE))?;
        // Lines such as `CreateQp = 0x500, "CREATE_QP";`.
        let commands = text.lines().filter_map(|line| {
            let (head, name) = line.trim().strip_suffix("\";")?.split_once(", \"")?;
            Some((fields::number(head.split_once(" = ")?.1)?, name.to_owned()))
        });
        let named = |(_, name): &(usize, String)| name.chars().all(|c| !c.is_lowercase());
        Ok(Self { structures, commands: commands.filter(named).collect() })
    }

    /// The structure of a command's input.
    fn input(name: &str) -> String {
        match name {
            // One layout for five commands.
            "INIT2RTR_QP" | "RTR2RTS_QP" | "RTS2RTS_QP" | "INIT2INIT_QP" => {
                "rst2init_qp_in".to_owned()
            }
            "2ERR_QP" => "qp_2err_in".to_owned(),
            "2RST_QP" => "qp_2rst_in".to_owned(),
            _ => format!("{}_in", name.to_lowercase()),
        }
    }

    /// Calls `see` with the name, the place and the width of each field of `structure` at `base`.
    fn each(
        &self,
        structure: &str,
        prefix: &str,
        base: usize,
        see: &mut dyn FnMut(&str, [usize; 2]),
    ) {
        for field in self.structures.get(structure).into_iter().flatten() {
            let own = field.name.split('.').nth(1).unwrap_or_default();
            let name = format!("{prefix}{own}");
            if let Some(width) = field.width {
                see(&name, [base + field.bit, width]);
                continue;
            }
            let known = STRUCTURES.iter().find(|(field, _)| *field == own);
            let inner = known.map_or(own, |(_, structure)| structure);
            self.each(inner, &format!("{name}."), base + field.bit, see);
        }
    }
}

/// Decodes lines of `input answer` into `decoded`. Bits that no field has are `dword OFFSET`.
fn decode(layouts: &Layouts, recorded: &str, decoded: &mut Decoded) -> Result<(), Failure> {
    for line in recorded.lines() {
        let wrong = || Failure::Found(format!("the record has a line '{line}'"));
        let mut input = bytes(line.split(' ').next().unwrap_or_default()).ok_or_else(wrong)?;
        let opcode = bits(&input, 0, 16).ok_or_else(wrong)? as usize;
        let unknown = || Failure::Found(format!("{SOURCE} lacks opcode {opcode:#x}"));
        let command = layouts.commands.get(&opcode).ok_or_else(unknown)?;
        // The opcode, and the user number that the kernel writes.
        input[..4].fill(0);
        let mut seen = Vec::new();
        let mut add = |name: &str, value: String| {
            decoded.entry((command.clone(), name.to_owned())).or_default().insert(value);
        };
        layouts.each(&Layouts::input(command), "", 0, &mut |name, [bit, width]| {
            seen.push([bit, width]);
            let own = name.rsplit('.').next().unwrap_or_default();
            if let Some(value) = bits(&input, bit, width)
                && !CHOSEN_ANEW.contains(&own)
            {
                add(name, format!("{value:#x}"));
            }
        });
        for [bit, width] in seen {
            (bit..bit + width).for_each(|bit| {
                if let Some(byte) = input.get_mut(bit / 8) {
                    *byte &= !(0x80 >> (bit % 8));
                }
            });
        }
        add("*", "sent".to_owned());
        for (at, dword) in input.chunks(4).enumerate().take(LONGEST / 32) {
            if dword.iter().any(|byte| *byte != 0) {
                let value = dword.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
                add(&format!("dword_{:#x}", 32 * at), format!("{value:#010x}"));
            }
        }
    }
    Ok(())
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len() / 2).map(|at| hex.get(2 * at..2 * at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// The big-endian number of `width` bits, at most 128, at `bit`.
fn bits(bytes: &[u8], bit: usize, width: usize) -> Option<u128> {
    (bit..bit + width).try_fold(0, |value, bit| {
        let byte = bytes.get(bit / 8)?;
        Some(value << 1 | u128::from(byte >> (7 - bit % 8) & 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recorded RST2INIT_QP: opcode, queue pair, rights and a port.
    #[test]
    fn a_command_is_decoded() {
        let layouts = Layouts::read().unwrap();
        let mut input = vec![0_u8; 0x110];
        input[..2].copy_from_slice(&[0x05, 0x02]);
        input[11] = 7;
        let mut set = |name: &str, value: u8| {
            layouts.each("rst2init_qp_in", "", 0, &mut |field, [bit, width]| {
                if field == name {
                    let last = bit + width - 1;
                    input[last / 8] |= value << (7 - last % 8);
                }
            });
        };
        set("qpc.rre", 1);
        set("qpc.primary_address_path.vhca_port_num", 2);
        let words = input.chunks(4).map(|word| bits(word, 0, 32).unwrap());
        let hex = words.map(|word| format!("{word:08x}")).collect::<Vec<_>>().concat();
        let mut decoded = Decoded::new();
        decode(&layouts, &format!("{hex} 00\n"), &mut decoded).unwrap();
        let value = |name: &str| values(decoded.get(&("RST2INIT_QP".to_owned(), name.to_owned())));
        assert_eq!(value("qpc.rre"), "0x1");
        assert_eq!(value("qpc.rwe"), "0x0");
        assert_eq!(value("qpc.primary_address_path.vhca_port_num"), "0x2");
        assert!(!decoded.keys().any(|(_, field)| field == "qpn" || field.starts_with("dword")));
    }

    /// Every difference of the table is one of fields that exist, and has a reason.
    #[test]
    fn every_difference_has_a_reason() {
        let layouts = Layouts::read().unwrap();
        let table = fields::read(&repository().join(TABLE)).unwrap();
        let lines: Vec<_> = table.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() > 10, "{lines:#?}");
        for line in lines {
            let (facts, reason) = line.split_once("  # ").unwrap_or((line, ""));
            let words: Vec<_> = facts.split(' ').collect();
            let [transport, command, field, _, _] = words[..] else {
                panic!("not five words: '{line}'")
            };
            assert!(TRANSPORTS.iter().any(|(name, _)| *name == transport), "{line}");
            assert!(reason.len() > 9, "no reason: '{line}'");
            assert!(layouts.commands.values().any(|name| name == command), "{line}");
            let mut known = field == "*" || field.starts_with("dword_");
            layouts.each(&Layouts::input(command), "", 0, &mut |name, _| known |= name == field);
            assert!(known, "an unknown field: '{line}'");
        }
    }
}
