//! What the checks read of a Markdown document.

use std::collections::BTreeSet;
use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A document of the repository.
#[derive(Debug)]
pub(super) struct Document {
    /// Relative to the repository.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) blocks: Vec<Block>,
    /// Targets of links and images, each with its line.
    pub(super) links: Vec<(usize, String)>,
    /// The texts between backticks.
    pub(super) spans: Vec<(usize, String)>,
    /// The anchors of the headings, as GitHub makes them.
    pub(super) anchors: BTreeSet<String>,
    /// Comments of the form `<!-- key: value -->` before which no block begins.
    pub(super) loose: Vec<(usize, Mark)>,
}

/// A code block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) line: usize,
    pub(super) language: String,
    pub(super) code: String,
    /// The place of the code in the text.
    pub(super) place: Range<usize>,
    /// The comment directly before the block.
    pub(super) mark: Option<Mark>,
}

impl Block {
    /// Returns whether a reader would type the block in a shell.
    pub(super) fn is_shell(&self) -> bool {
        matches!(self.language.as_str(), "sh" | "bash" | "shell" | "console")
    }
}

/// What a comment such as `<!-- not run: needs an adapter -->` says about the block after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Why the block is not run.
    NotRun(String),
    /// The block is what this command prints.
    OutputOf(String),
    /// The block is this part of a program, `FILE:ANCHOR`.
    PartOf(String),
}

impl Mark {
    fn parse(html: &str) -> Option<Self> {
        let inner = html.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
        let (key, value) = inner.split_once(": ")?;
        let value = value.to_owned();
        match key {
            "not run" => Some(Self::NotRun(value)),
            "output of" => Some(Self::OutputOf(value)),
            "part of" => Some(Self::PartOf(value)),
            _ => None,
        }
    }
}

impl Document {
    pub(super) fn parse(path: &str, text: &str) -> Self {
        let mut document = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            blocks: Vec::new(),
            links: Vec::new(),
            spans: Vec::new(),
            anchors: BTreeSet::new(),
            loose: Vec::new(),
        };
        let line = |place: usize| text[..place].matches('\n').count() + 1;
        let mut last_mark: Option<(Mark, Range<usize>)> = None;
        let mut block: Option<Block> = None;
        let mut heading: Option<String> = None;
        for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Html(html) => {
                    if let Some(mark) = Mark::parse(&html) {
                        document.loose.extend(last_mark.take().map(|(m, p)| (line(p.start), m)));
                        last_mark = Some((mark, place));
                    }
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let belongs =
                        |mark: &Range<usize>| text[mark.end..place.start].trim().is_empty();
                    let mark = last_mark.take_if(|(_, mark)| belongs(mark)).map(|(mark, _)| mark);
                    let (line, code) = (line(place.start), String::new());
                    let start =
                        text[place.clone()].find('\n').map_or(place.end, |at| place.start + at + 1);
                    block = Some(Block { line, language, code, place: start..start, mark });
                }
                Event::Text(code) if block.is_some() => {
                    if let Some(block) = &mut block {
                        block.place.end = place.end;
                        block.code += &code;
                    }
                }
                Event::End(TagEnd::CodeBlock) => document.blocks.extend(block.take()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    if let Some(text) = heading.take() {
                        document.add_anchor(&text);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line(place.start), dest_url.into_string()));
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        *heading += &code;
                    }
                    document.spans.push((line(place.start), code.into_string()));
                }
                Event::Text(words) => {
                    if let Some(heading) = &mut heading {
                        *heading += &words;
                    }
                }
                _ => {}
            }
        }
        document.loose.extend(last_mark.map(|(mark, place)| (line(place.start), mark)));
        document
    }

    fn add_anchor(&mut self, heading: &str) {
        let kept = |c: char| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        };
        let anchor: String = heading.to_lowercase().chars().filter_map(kept).collect();
        let others = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(others);
        let free = names.find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# Try `it`, now!

See [this](a.md#b) and `src/lib.rs`.

<!-- not run: needs root -->
```sh
one
two
```

<!-- output of: three -->

text

```text
```

| a | b |
|---|---|
| `c` | ![d](e.svg) |

## Try it, now
";

    #[test]
    fn blocks_have_their_mark_and_place() {
        let document = Document::parse("x.md", SAMPLE);
        let [marked, other] = &document.blocks[..] else { panic!("{:?}", document.blocks) };
        assert_eq!((marked.line, marked.language.as_str()), (6, "sh"));
        assert_eq!(marked.mark, Some(Mark::NotRun("needs root".to_owned())));
        assert_eq!(&SAMPLE[marked.place.clone()], "one\ntwo\n");
        assert_eq!(marked.code, "one\ntwo\n");
        assert_eq!((other.line, &other.mark), (15, &None));
        assert!(SAMPLE[..other.place.start].ends_with("```text\n") && other.place.is_empty());
        assert_eq!(document.loose, [(11, Mark::OutputOf("three".to_owned()))]);
    }

    #[test]
    fn links_spans_and_anchors_are_found_in_text_and_tables() {
        let document = Document::parse("x.md", SAMPLE);
        assert_eq!(document.links, [(3, "a.md#b".to_owned()), (20, "e.svg".to_owned())]);
        let spans: Vec<&str> = document.spans.iter().map(|(_, span)| span.as_str()).collect();
        assert_eq!(spans, ["it", "src/lib.rs", "c"]);
        let anchors: Vec<&str> = document.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["try-it-now", "try-it-now-1"]);
    }
}
