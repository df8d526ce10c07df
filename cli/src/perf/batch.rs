//! Batch files: each line is a test; several files produce every combination of their lines.

use crate::args::{TestArgs, usage_line};
use crate::error::{Error, local};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Limit on the number of combinations.
const MOST_TESTS: usize = 100_000;
/// Limit on the bytes of a file.
const MOST_BYTES: u64 = 1 << 20;

/// The tests with their names, one line from each file; without files the test of `outer`.
pub(super) fn tests(
    files: &[PathBuf],
    outer: &TestArgs,
) -> Result<Vec<(Vec<String>, TestArgs)>, Error> {
    let mut tests = vec![(Vec::new(), outer.clone())];
    for file in files {
        let what = || format!("cannot read the batch file '{}'", file.display());
        let mut text = String::new();
        fs::File::open(file)
            .and_then(|opened| opened.take(MOST_BYTES + 1).read_to_string(&mut text))
            .map_err(|error| local(what(), &error))?;
        if text.len() as u64 > MOST_BYTES {
            let reason = format!("{}: it has more than {MOST_BYTES} bytes", what());
            return Err(Error::Usage(reason));
        }
        let mut next = Vec::new();
        for (names, outer) in &tests {
            for (name, test) in lines(&text, file, outer)? {
                let mut names = names.clone();
                names.push(name);
                next.push((names, test));
            }
            if next.len() > MOST_TESTS {
                return Err(Error::Usage(format!(
                    "the batch files make more than {MOST_TESTS} tests"
                )));
            }
        }
        tests = next;
    }
    if tests.is_empty() {
        return Err(Error::Usage("there is no test in the batch files".into()));
    }
    Ok(tests)
}

fn lines(text: &str, file: &Path, outer: &TestArgs) -> Result<Vec<(String, TestArgs)>, Error> {
    let mut tests = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(name) = words.first().filter(|name| !name.starts_with('#')) else { continue };
        let test = outer.refined(&words).map_err(|error| {
            let line = number + 1;
            Error::Usage(format!(
                "batch file '{}' line {line}: {}",
                file.display(),
                usage_line(&error, ["perf"])
            ))
        })?;
        tests.push(((*name).to_owned(), test));
        if tests.len() > MOST_TESTS {
            break;
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Test;

    #[test]
    fn files_are_lines_and_comments() {
        let outer = TestArgs { iterations: Some(9), ..TestArgs::default() };
        let text = "# first\n\n  \none -t put_lat\r\ntwo\t-n 3\n";
        let tests = lines(text, Path::new("f"), &outer).unwrap();
        let names: Vec<&str> = tests.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!((tests[0].1.test, tests[0].1.iterations), (Some(Test::PutLat), Some(9)));
        assert_eq!((tests[1].1.test, tests[1].1.iterations), (None, Some(3)));
        let error = lines("a\nb -t none\n", Path::new("f"), &outer).unwrap_err().to_string();
        assert!(error.contains("'f' line 2") && error.contains("none"), "{error}");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let endless = [PathBuf::from("/dev/zero")];
        let error = tests(&endless, &TestArgs::default()).unwrap_err().to_string();
        assert!(error.contains("'/dev/zero'") && error.contains("1048576 bytes"), "{error}");
        let many = "a\n".repeat(MOST_TESTS + 10);
        let read = lines(&many, Path::new("f"), &TestArgs::default()).unwrap();
        assert_eq!(read.len(), MOST_TESTS + 1, "the caller refuses them");
    }

    #[test]
    fn no_files_are_one_test() {
        assert_eq!(tests(&[], &TestArgs::default()).unwrap().len(), 1);
    }
}
