//! Documents read the same in any viewer of Markdown: nothing in them is for rustdoc or mdbook alone.

use super::Faults;
use super::markdown::{Block, Document};

/// Finds links that only rustdoc follows, and lines of code that only rustdoc hides or mdbook fills
/// in.
pub(super) fn check(documents: &[Document], faults: &mut Faults) {
    for document in documents {
        for (line, link) in document.links.iter().filter(|(_, link)| link.starts_with("crate::")) {
            let what =
                format!("link to {link}: only rustdoc follows it; name the item in backticks");
            faults.add(&document.path, *line, what);
        }
        for block in document.blocks.iter().filter(|block| is_rust(block)) {
            let is_hidden = |line: &str| line.trim_start().starts_with("# ") || line.trim() == "#";
            for (at, line) in block.code.lines().enumerate() {
                let line_number = block.line + 1 + at;
                if is_hidden(line) {
                    faults.add(&document.path, line_number, "only rustdoc hides this line");
                } else if line.contains("{{#include") {
                    faults.add(&document.path, line_number, "only mdbook includes this");
                }
            }
        }
    }
}

fn is_rust(block: &Block) -> bool {
    block.language.split([',', ' ']).next() == Some("rust")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let mut faults = Faults::default();
        check(&[Document::parse("a.md", text)], &mut faults);
        faults.texts()
    }

    #[test]
    fn what_every_viewer_shows_is_no_fault() {
        let text = "# A\n[`b`](b.md)\n```rust\n#[derive(Debug)]\nstruct A;\n```\n```sh\n# comment\ntrue\n```\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn what_rustdoc_or_mdbook_alone_reads_is_a_fault() {
        let text = "[`A`](crate::A)\n\n```rust,no_run\n# let a = 1;\nlet b = a;\n#\n{{#include b.rs}}\n```\n";
        let expected = [
            "a.md:1: link to crate::A: only rustdoc follows it; name the item in backticks",
            "a.md:4: only rustdoc hides this line",
            "a.md:6: only rustdoc hides this line",
            "a.md:7: only mdbook includes this",
        ];
        assert_eq!(faults(text), expected);
    }
}
