//! `cargo xtask book`: a preprocessor of mdbook for the guide, which is written for rustdoc.
//!
//! rustdoc resolves links to items and takes a code block without a language for Rust; mdbook does
//! neither. mdbook passes the book as JSON on the standard input: `[context, book]`. The book is
//! returned with other contents of its chapters.

use std::io::Read;

use serde_json::Value;

/// Where the items of the crate are found by name.
const SEARCH: &str = "https://docs.rs/barewire/latest/barewire/?search=";

/// Translates the book of the standard input. The error says what the input lacks.
pub(crate) fn translate() -> Result<String, String> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).map_err(|error| error.to_string())?;
    let mut parts: Value = serde_json::from_str(&input)
        .map_err(|error| format!("mdbook calls this with a book on the standard input: {error}"))?;
    let book = parts.get_mut(1).ok_or("the input has no book")?;
    each_content(book);
    Ok(book.to_string())
}

/// Translates every chapter, wherever this version of mdbook has it.
fn each_content(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(each_content),
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "content" => *text = page(text),
                    other => each_content(other),
                }
            }
        }
        _ => {}
    }
}

/// Translates the links and code blocks of a page.
fn page(text: &str) -> String {
    let mut in_code = false;
    let mut out = String::new();
    for line in text.lines() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            in_code = !in_code;
            // What rustdoc reads as Rust that it compiles or does not run.
            let is_rust = info.is_empty() || info.starts_with(['n', 'c']) && !info.contains("sh");
            if in_code && is_rust {
                out += "```rust,ignore\n";
                continue;
            }
            out += line;
        } else if in_code {
            out += line;
        } else {
            out += &line.replace("](crate::", &format!("]({SEARCH}"));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::*;
    use crate::process::repository;

    fn guide() -> PathBuf {
        repository().join("docs/guide")
    }

    fn pages() -> Vec<(String, String)> {
        let files = fs::read_dir(guide()).unwrap().map(|file| file.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
    }

    /// The targets of links outside code.
    fn links(text: &str) -> Vec<&str> {
        let mut in_code = false;
        let prose = text.lines().filter(|line| {
            in_code ^= line.trim_start().starts_with("```");
            !in_code
        });
        prose
            .flat_map(|line| line.split("](").skip(1))
            .filter_map(|rest| rest.split(')').next())
            .collect()
    }

    #[test]
    fn links_and_blocks_of_rustdoc_are_translated() {
        let text = "[`Endpoint`](crate::Endpoint), [x](x.md)\n```\nlet a = b](crate::c);\n```\n\
                    ```no_run\n```\n```sh\n```\n```compile_fail,E0599\n```\n";
        let expected = "[`Endpoint`](https://docs.rs/barewire/latest/barewire/?search=Endpoint), [x](x.md)\n\
                        ```rust,ignore\nlet a = b](crate::c);\n```\n\
                        ```rust,ignore\n```\n```sh\n```\n```rust,ignore\n```\n";
        assert_eq!(page(text), expected);
        let mut book = json!({"items": [{"Chapter": {"content": "[a](crate::A)", "sub_items": [
            {"Chapter": {"content": "[b](crate::B)", "name": "](crate::"}}
        ]}}]});
        each_content(&mut book);
        let inner = &book["items"][0]["Chapter"];
        assert_eq!(inner["content"], format!("[a]({SEARCH}A)\n"));
        assert_eq!(inner["sub_items"][0]["Chapter"]["content"], format!("[b]({SEARCH}B)\n"));
        assert_eq!(inner["sub_items"][0]["Chapter"]["name"], "](crate::");
    }

    #[test]
    fn the_book_has_every_page_once() {
        let summary = fs::read_to_string(guide().join("SUMMARY.md")).unwrap();
        let mut listed = links(&summary);
        listed.sort_unstable();
        let mut found: Vec<String> = pages().into_iter().map(|(name, _)| name).collect();
        found.retain(|name| name != "SUMMARY.md");
        found.sort_unstable();
        assert_eq!(listed, found);
    }
}
