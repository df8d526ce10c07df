//! How many tests ran, from the last lines of the test runners.

/// A test runner with a known summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// `cargo nextest run`: one `Summary` line.
    Nextest,
    /// `cargo test`: one `test result:` line for each test binary.
    Libtest,
}

/// Tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Adds the numbers of a line of the runner's output, if it is a summary.
    pub(crate) fn read(&mut self, runner: Runner, line: &str) {
        let line = without_colour(line);
        let line = line.trim();
        let summary = match runner {
            Runner::Nextest => line.strip_prefix("Summary ["),
            Runner::Libtest => line.strip_prefix("test result: "),
        };
        let Some(summary) = summary else { return };
        // nextest: `3 tests run: 1 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
        // libtest: `ok. 3 passed; 0 failed; 1 ignored; ...`
        let words: Vec<&str> =
            summary.split([' ', ',', ';', '(', ')']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => self.passed += number,
                // `timed out`, or `exec failed` for a binary that could not be started.
                "failed" | "timed" | "exec" => self.failed += number,
                _ => {}
            }
        }
    }
}

/// Returns the text without terminal escape sequences (`ESC [ ... letter`).
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if c == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(runner: Runner, lines: &[&str]) -> (u64, u64) {
        let mut tally = Tally::default();
        for line in lines {
            tally.read(runner, line);
        }
        (tally.passed, tally.failed)
    }

    #[test]
    fn reads_nextest() {
        let read = |line| tally(Runner::Nextest, &[line]);
        assert_eq!(read("     Summary [   0.005s] 3 tests run: 3 passed, 0 skipped\n"), (3, 0));
        assert_eq!(
            read("     Summary [  60.1s] 1 test run: 1 passed (1 slow, 1 leaky), 4 skipped"),
            (1, 0)
        );
        assert_eq!(
            read(
                "     Summary [   1.2s] 4/9 tests run: 1 passed, 1 failed, 1 timed out, 1 exec failed, 0 skipped"
            ),
            (1, 3)
        );
        assert_eq!(
            read(
                "\u{1b}[32;1m     Summary\u{1b}[0m [   0.005s] \u{1b}[1m3\u{1b}[0m tests run: \u{1b}[1m3\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped"
            ),
            (3, 0)
        );
    }

    #[test]
    fn reads_libtest_of_several_binaries() {
        let lines = [
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ];
        assert_eq!(tally(Runner::Libtest, &lines), (3, 2));
    }

    #[test]
    fn a_test_that_prints_a_summary_is_not_the_runner() {
        assert_eq!(tally(Runner::Nextest, &["test result: ok. 5 passed; 0 failed"]), (0, 0));
        assert_eq!(tally(Runner::Libtest, &["nothing: 5 passed; 0 failed"]), (0, 0));
    }
}
