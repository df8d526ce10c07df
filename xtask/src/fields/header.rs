//! Reads the structures of a C header that describes them bit by bit, as `mlx5_ifc.h` does.

use std::collections::HashMap;

/// A member of a structure: its last name, its offset and its length, in bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) bit: usize,
    pub(super) width: usize,
}

/// The structures of a header by name, without `mlx5_ifc_` and `_bits`.
#[derive(Debug)]
pub(super) struct Header(HashMap<String, Vec<Member>>);

/// What precedes the names of structures.
const PREFIXES: [&str; 2] = ["mlx5_ifc_", "uct_ib_mlx5_"];

impl Header {
    pub(super) fn parse(text: &str) -> Self {
        let words = words(text);
        let mut bodies = HashMap::new();
        for (at, found) in words.windows(3).enumerate() {
            let [keyword, name, "{"] = found else { continue };
            let (Some(name), Some(kind)) = (structure(name), Kind::parse(keyword)) else {
                continue;
            };
            bodies.insert(name, (kind, block(&words[at + 2..])));
        }
        let mut reader = Reader { bodies: &bodies, lengths: HashMap::new() };
        let mut structures = HashMap::new();
        for (name, (kind, body)) in &bodies {
            // A header may describe a structure by other types, which are not for commands.
            if let Some((members, _)) = reader.members(*kind, body) {
                structures.insert((*name).to_owned(), members);
            }
        }
        Self(structures)
    }

    /// The members of a structure; with those of structures that are declared inside of it.
    pub(super) fn members(&self, structure: &str) -> Option<&[Member]> {
        self.0.get(structure).map(Vec::as_slice)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Struct,
    Union,
}

impl Kind {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "struct" => Some(Self::Struct),
            "union" => Some(Self::Union),
            _ => None,
        }
    }
}

struct Reader<'a> {
    bodies: &'a HashMap<&'a str, (Kind, &'a [&'a str])>,
    lengths: HashMap<&'a str, Option<usize>>,
}

impl<'a> Reader<'a> {
    /// The members of a body, and its length in bits.
    fn members(&mut self, kind: Kind, mut body: &'a [&'a str]) -> Option<(Vec<Member>, usize)> {
        let (mut members, mut length) = (Vec::new(), 0);
        while let [first, rest @ ..] = body {
            let bit = if kind == Kind::Union { 0 } else { length };
            let width;
            if let (Some(inner), ["{", ..]) = (Kind::parse(first), rest) {
                let block = block(rest);
                let (found, inner) = self.members(inner, block)?;
                members.extend(found.into_iter().map(|m| Member { bit: bit + m.bit, ..m }));
                width = inner;
                // A name may follow.
                let rest = &rest[block.len() + 2..];
                body = &rest[rest.iter().position(|word| *word == ";")? + 1..];
            } else {
                let (element, rest) = match rest {
                    rest if *first == "u8" => (1, rest),
                    [of, rest @ ..] => (self.length(structure(of)?)?, rest),
                    [] => return None,
                };
                let end = rest.iter().position(|word| *word == ";")?;
                let (name, dimensions) = rest[..end].split_first()?;
                let dimensions = dimensions.iter().filter(|word| !matches!(**word, "[" | "]"));
                let empty = rest[..end].windows(2).any(|pair| pair == ["[", "]"]);
                let product = dimensions.map(|word| number(word)).product::<Option<usize>>()?;
                width = if empty { 0 } else { element * product };
                members.push(Member { name: (*name).to_owned(), bit, width });
                body = &rest[end + 1..];
            }
            length = if kind == Kind::Union { length.max(width) } else { length + width };
        }
        Some((members, length))
    }

    fn length(&mut self, name: &'a str) -> Option<usize> {
        if let Some(known) = self.lengths.get(name) {
            return *known;
        }
        let (kind, body) = self.bodies.get(name)?;
        let length = self.members(*kind, body).map(|(_, length)| length);
        self.lengths.insert(name, length);
        length
    }
}

/// The name of a structure without prefix and suffix.
fn structure(name: &str) -> Option<&str> {
    let name = name.strip_suffix("_bits")?;
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// The words between the braces at the start of `words`.
fn block<'w, 'a>(words: &'w [&'a str]) -> &'w [&'a str] {
    let mut depth = 0;
    let end = words.iter().position(|word| {
        match *word {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    words.get(1..end.unwrap_or(words.len())).unwrap_or(&[])
}

/// A number of C, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The names, numbers and brackets of C, without comments and directives.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skip = if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") || first == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let end = end.unwrap_or(rest.len());
            words.push(&rest[..end]);
            end
        } else {
            if "{}[];".contains(first) {
                words.push(&rest[..1]);
            }
            first.len_utf8()
        };
        rest = &rest[skip..];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_every_form() {
        let header = Header::parse(
            "#define A \\\n/* struct */ struct mlx5_ifc_inner_bits { u8 low[0x8]; u8 high[0x18]; };
             struct mlx5_ifc_outer_bits { // flags
                 u8 flag[0x1]; u8 reserved_at_1[0x1f];
                 struct mlx5_ifc_inner_bits inner[2];
                 union { u8 whole[0x40]; struct { u8 a[0x20]; u8 b[0x20]; } parts; };
                 u8 last[2][0x10]; u8 list[][0x40]; };
             struct mlx5_ifc_odd_bits { uint8_t bit; };",
        );
        let outer = header.members("outer").unwrap();
        let place = |name: &str| {
            let member = outer.iter().find(|member| member.name == name).unwrap();
            (member.bit, member.width)
        };
        assert_eq!(place("flag"), (0, 1));
        assert_eq!(place("inner"), (0x20, 0x40));
        assert_eq!((place("whole"), place("b")), ((0x60, 0x40), (0x80, 0x20)));
        assert_eq!((place("last"), place("list")), ((0xa0, 0x20), (0xc0, 0)));
        assert_eq!(header.members("inner").unwrap()[1].bit, 8);
        assert!(header.members("odd").is_none());
    }
}
