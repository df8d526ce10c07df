//! The figures of README and of its picture are those of `benches/RESULTS.md`.

use std::fmt::Write;
use std::ops::Range;

use super::markdown::Document;
use super::{Faults, contents, replace};
use crate::process::Failure;

const RESULTS: &str = "benches/RESULTS.md";
const PICTURE: &str = "docs/instructions.svg";

/// A cell of the tables of results, in the row of the held shape.
#[derive(Clone, Copy, Debug)]
struct Cell {
    operation: &'static str,
    column: &'static str,
}

const fn cell(operation: &'static str, column: &'static str) -> Cell {
    Cell { operation, column }
}

const WRITE: Cell = cell("RDMA write, 8 B inline", "instructions");
const WRITE_LIBMLX5: Cell = cell("RDMA write, 8 B inline", "libmlx5");
const PUT: Cell = cell("dynamic API: put_short, 8 B", "instructions");
const PUT_UCX: Cell = cell("dynamic API: put_short, 8 B", "UCX rc_mlx5");
const POLL: Cell = cell("one send CQE polled and reaped", "instructions");
const POLL_LIBMLX5: Cell = cell("one send CQE polled and reaped", "libmlx5");

/// Phrases of README, each of which occurs once, and the figure in place of each `{}`.
const PHRASES: [(&str, &[Cell]); 4] = [
    (
        "RDMA write of 8 bytes: barewire {}, libmlx5 {}; of a put through the transport API: \
         barewire {}, UCX {}]",
        &[WRITE, WRITE_LIBMLX5, PUT, PUT_UCX],
    ),
    ("| {} (driver), {} (transport) |", &[WRITE, PUT]),
    ("| {} (UCT) |", &[PUT_UCX]),
    ("| libmlx5 | {} |", &[WRITE_LIBMLX5]),
];

/// The bars of the picture: a title, and two bars with their names.
const BARS: [(&str, [(&str, Cell); 2]); 3] = [
    ("RDMA write of 8 bytes", [("barewire driver", WRITE), ("libmlx5", WRITE_LIBMLX5)]),
    ("put of 8 bytes, transport API", [("barewire rc_mlx5", PUT), ("UCX rc_mlx5", PUT_UCX)]),
    ("completion polled and reaped", [("barewire driver", POLL), ("libmlx5", POLL_LIBMLX5)]),
];

/// Compares the figures with the results.
pub(super) fn check(documents: &[Document], faults: &mut Faults) -> Result<(), Failure> {
    let results = contents(RESULTS)?;
    if let Some(readme) = readme(documents) {
        compare(readme, &results, faults)?;
    }
    if contents(PICTURE)? != picture(&results)? {
        faults.add(PICTURE, 1, "differs from the results; cargo xtask documents --write writes it");
    }
    Ok(())
}

/// Writes the figures of the results.
pub(super) fn write(documents: &mut [Document]) -> Result<(), Failure> {
    let results = contents(RESULTS)?;
    if let Some(readme) = documents.iter_mut().find(|document| document.path == "README.md") {
        let text = with_figures(readme, &results)?;
        replace(&readme.path, &text)?;
        *readme = Document::parse("README.md", &text);
    }
    replace(PICTURE, &picture(&results)?)
}

fn readme(documents: &[Document]) -> Option<&Document> {
    documents.iter().find(|document| document.path == "README.md")
}

fn compare(readme: &Document, results: &str, faults: &mut Faults) -> Result<(), Failure> {
    for (phrase, cells) in PHRASES {
        let Some(places) = find(&readme.text, phrase) else {
            faults.add(&readme.path, 1, format!("the phrase '{phrase}' does not occur once"));
            continue;
        };
        for (place, cell) in places.into_iter().zip(cells) {
            let (written, counted) = (&readme.text[place.clone()], figure(results, *cell)?);
            if written != counted.to_string() {
                let line = readme.text[..place.start].matches('\n').count() + 1;
                let what = format!(
                    "{written} instructions, {counted} by {RESULTS}; cargo xtask documents --write \
                     writes it"
                );
                faults.add(&readme.path, line, what);
            }
        }
    }
    Ok(())
}

fn with_figures(readme: &Document, results: &str) -> Result<String, Failure> {
    let mut text = readme.text.clone();
    for (phrase, cells) in PHRASES {
        let places = find(&text, phrase).unwrap_or_default();
        // The last first, so that the others stay where they are.
        for (place, cell) in places.into_iter().zip(cells).rev() {
            text.replace_range(place, &figure(results, *cell)?.to_string());
        }
    }
    Ok(text)
}

/// Returns the places of the numbers of a phrase, if it occurs once.
fn find(text: &str, phrase: &str) -> Option<Vec<Range<usize>>> {
    let pieces: Vec<&str> = phrase.split("{}").collect();
    let from = |start: usize| {
        let mut places = Vec::new();
        let mut at = start;
        for (index, piece) in pieces.iter().enumerate() {
            at += text[at..].starts_with(piece).then_some(piece.len())?;
            if index + 1 < pieces.len() {
                let digits = text[at..].bytes().take_while(u8::is_ascii_digit).count();
                places.push(at..at + (digits > 0).then_some(digits)?);
                at += digits;
            }
        }
        Some(places)
    };
    let mut found = text.match_indices(pieces[0]).filter_map(|(start, _)| from(start));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Returns a figure of the results, rounded.
fn figure(results: &str, cell: Cell) -> Result<u32, Failure> {
    let mut column = None;
    for line in results.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.get(1) == Some(&"operation") {
            column = cells.iter().position(|name| *name == cell.column);
        } else if cells.get(1..3) == Some(&[cell.operation, "held"]) {
            let value = column.and_then(|column| cells.get(column)?.parse::<f64>().ok());
            if let Some(value) = value {
                return Ok(value.round() as u32);
            }
        }
    }
    Err(Failure::Found(format!("{RESULTS} has no {} of '{}'", cell.column, cell.operation)))
}

fn picture(results: &str) -> Result<String, Failure> {
    /// Pixels per instruction.
    const SCALE: f64 = 1.35;
    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="720" height="286" viewBox="0 0 720 286" font-family="sans-serif" font-size="13" role="img">
<title>Instructions per operation: barewire beside libmlx5 and UCX</title>
<rect width="720" height="286" fill="white"/>
"#,
    );
    for (top, (title, bars)) in (34..).step_by(84).zip(BARS) {
        let _ = writeln!(svg, r#"<text x="10" y="{top}" font-weight="bold">{title}</text>"#);
        for (line, (name, cell), colour) in
            [(top + 24, bars[0], "#0072b2"), (top + 48, bars[1], "#999999")]
        {
            let count = figure(results, cell)?;
            let width = (f64::from(count) * SCALE).round();
            let _ = writeln!(
                svg,
                r#"<text x="150" y="{line}" text-anchor="end">{name}</text><rect x="160" y="{}" width="{width}" height="18" fill="{colour}"/><text x="{}" y="{line}">{count}</text>"#,
                line - 14,
                width + 168.0,
            );
        }
    }
    svg += r##"<text x="10" y="276" fill="#555555">instructions per operation, counted by callgrind: benches/RESULTS.md</text>
</svg>
"##;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = "\
| operation | shape | instructions | libmlx5 | ratio |
|---|---|---:|---:|---:|
| RDMA write, 8 B inline | inlined | 37.4 | 336 | 0.11 |
| RDMA write, 8 B inline | held | 52.4 | 336 | 0.16 |
| one send CQE polled and reaped | held | 31.0 | 191 | 0.16 |

| operation | shape | instructions | UCX rc_mlx5 |
|---|---|---:|---:|
| dynamic API: put_short, 8 B | held | 64.6 | 169 |
";

    const README: &str = "\
![RDMA write of 8 bytes: barewire 58, libmlx5 336; of a put through the transport API: barewire 65, UCX 169](a.svg)

| barewire | own driver | 52 (driver), 65 (transport) | Rust |
| UCX | own driver | 170 (UCT) | C |
| x | libmlx5 | 336 | C |
";

    #[test]
    fn figures_that_are_not_those_of_the_results_are_faults_and_are_written() {
        let readme = Document::parse("README.md", README);
        let mut faults = Faults::default();
        compare(&readme, RESULTS, &mut faults).unwrap();
        let advice = "cargo xtask documents --write writes it";
        let expected = [
            format!("README.md:1: 58 instructions, 52 by benches/RESULTS.md; {advice}"),
            format!("README.md:4: 170 instructions, 169 by benches/RESULTS.md; {advice}"),
        ];
        assert_eq!(faults.texts(), expected);
        let text = with_figures(&readme, RESULTS).unwrap();
        assert_eq!(text, README.replace("58", "52").replace("170", "169"));
    }

    #[test]
    fn a_phrase_that_changed_is_a_fault() {
        for text in [README.replace("(UCT)", "(UCX)"), format!("{README}{README}")] {
            let mut faults = Faults::default();
            compare(&Document::parse("README.md", &text), RESULTS, &mut faults).unwrap();
            assert!(faults.texts().iter().any(|text| text.contains("does not occur once")));
        }
    }

    #[test]
    fn a_result_that_is_missing_is_an_error() {
        let error = figure(RESULTS, cell("RDMA write, 8 B inline", "copyrpc")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "benches/RESULTS.md has no copyrpc of 'RDMA write, 8 B inline'"
        );
    }

    #[test]
    fn the_picture_has_a_bar_as_long_as_each_figure() {
        let svg = picture(RESULTS).unwrap();
        for (width, count) in [(70, 52), (454, 336), (88, 65), (228, 169), (42, 31), (258, 191)] {
            assert!(svg.contains(&format!("width=\"{width}\" height=\"18\"")), "{width}\n{svg}");
            assert!(svg.contains(&format!(">{count}</text>")), "{count}\n{svg}");
        }
    }
}
