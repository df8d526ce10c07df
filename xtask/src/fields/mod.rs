//! `cargo xtask fields`: the fields of commands in `layouts` beside those of public headers.
//!
//! The table `layouts/fields.txt` has a line per field: name, bit offset and width, and the headers
//! that have the same. A test compares the table with the source, so that no field changes by
//! mistake; the command writes the table anew from headers.

mod header;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use self::header::Header;
pub(crate) use self::header::number;
use crate::process::{self, Failure, repository};

const TABLE: &str = "layouts/fields.txt";
const SOURCE: &str = "layouts/src/command";
const HEAD: &str = "\
# The fields of commands: structure and name, bit offset, width in bits, and the public headers that
# have them so. NAME=other means that the header calls the field 'other'; NAME:OFFSET/WIDTH that it
# has it elsewhere. The reason for the latter, or for a field that no header has, follows '#'.
# Written by 'cargo xtask fields NAME=HEADER...'; reasons are kept.
";

/// A field as the source declares it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Field {
    /// The name of the structure in `mlx5_ifc.h`, and of the field.
    pub(crate) name: String,
    pub(crate) bit: usize,
    /// `None` for a structure inside of another.
    pub(crate) width: Option<usize>,
}

/// Writes the table. Each argument is `NAME=FILE`.
pub(crate) fn write(arguments: &[&str]) -> Result<(), Failure> {
    let headers = arguments.iter().map(|argument| {
        let (name, file) = argument
            .split_once('=')
            .ok_or_else(|| Failure::Found(format!("'{argument}' is not NAME=HEADER")))?;
        Ok((name, Header::parse(&read(Path::new(file))?)))
    });
    let headers = headers.collect::<Result<Vec<_>, Failure>>()?;
    let path = repository().join(TABLE);
    let reasons = reasons(&fs::read_to_string(&path).unwrap_or_default(), 1);
    let mut text = HEAD.to_owned();
    let mut lacking = 0;
    for field in fields()? {
        let mut line = place(&field);
        let notes: Vec<_> = headers.iter().filter_map(|(name, h)| note(&field, name, h)).collect();
        let agrees = notes.iter().any(|note| !note.contains(':'));
        for note in &notes {
            line.push(' ');
            line.push_str(note);
        }
        match reasons.get(&field.name) {
            Some(reason) => line.extend(["  # ", reason]),
            None if agrees && notes.iter().all(|note| !note.contains(':')) => {}
            None => lacking += 1,
        }
        text.push_str(&line);
        text.push('\n');
    }
    process::write(TABLE, &text)?;
    match lacking {
        0 => Ok(()),
        _ => Err(Failure::Found(format!("{lacking} lines need a reason: append '  # reason'"))),
    }
}

/// What a header says of a field; `None` if it lacks the structure or the field.
fn note(field: &Field, name: &str, header: &Header) -> Option<String> {
    let (structure, own) = field.name.split_once('.')?;
    let members = header.members(structure)?;
    let same = |member: &&header::Member| {
        member.bit == field.bit && field.width.is_none_or(|width| width == member.width)
    };
    let named: Vec<_> = members.iter().filter(|member| member.name == own).collect();
    if named.iter().any(same) {
        return Some(name.to_owned());
    }
    if let Some(other) = named.first() {
        return Some(format!("{name}:{:#x}/{}", other.bit, other.width));
    }
    let other = members.iter().find(|member| {
        same(member) && field.width.is_some() && !member.name.starts_with("reserved")
    })?;
    Some(format!("{name}={}", other.name))
}

/// The first words of a line, which stay when the table is written anew.
pub(crate) fn key(line: &str, words: usize) -> String {
    line.split(' ').take(words).collect::<Vec<_>>().join(" ")
}

/// The reasons of a table by the first words of its lines.
pub(crate) fn reasons(table: &str, words: usize) -> BTreeMap<String, String> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (place, reason) = line.split_once("  # ")?;
            Some((key(place, words), reason.to_owned()))
        })
        .collect()
}

/// A line of the table without the headers.
fn place(field: &Field) -> String {
    let width = field.width.map_or("struct".to_owned(), |width| width.to_string());
    format!("{} {:#x} {width}", field.name, field.bit)
}

/// Every field of the source, in order of structure and offset.
pub(crate) fn fields() -> Result<Vec<Field>, Failure> {
    let mut texts = Vec::new();
    sources(&repository().join(SOURCE), &mut texts)?;
    let mut names = BTreeMap::new();
    for text in &texts {
        names.extend(structures(text));
    }
    let mut fields = Vec::new();
    for text in &texts {
        let expected = ["Field::new(", "Nested::new("].map(|call| text.matches(call).count());
        let before = fields.len();
        declared(text, &names, &mut fields)?;
        if fields.len() - before != expected.iter().sum::<usize>() {
            let lost = format!("{} of {expected:?} fields are understood", fields.len() - before);
            return Err(Failure::Found(format!("{SOURCE}: {lost}")));
        }
    }
    fields.sort_by(|a, b| {
        let structure = |field: &Field| field.name.split('.').next().map(str::to_owned);
        (structure(a), a.bit, &a.name).cmp(&(structure(b), b.bit, &b.name))
    });
    Ok(fields)
}

fn sources(folder: &Path, texts: &mut Vec<String>) -> Result<(), Failure> {
    let failed = |error| Failure::Found(format!("cannot read {}: {error}", folder.display()));
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, texts)?;
        } else {
            texts.push(read(&path)?);
        }
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::Found(format!("cannot read {}: {error}", path.display())))
}

/// The types of structures with their names in `mlx5_ifc.h`: lines such as `Cqc: 64, "cqc";`.
fn structures(text: &str) -> impl Iterator<Item = (String, String)> {
    text.lines().filter_map(|line| {
        let (head, name) = line.trim().strip_suffix("\";")?.rsplit_once(", \"")?;
        let (own, _) = head.split_once(": ")?;
        own.chars().all(char::is_alphanumeric).then(|| (own.to_owned(), name.to_owned()))
    })
}

/// The fields that a file declares.
fn declared(
    text: &str,
    names: &BTreeMap<String, String>,
    fields: &mut Vec<Field>,
) -> Result<(), Failure> {
    let mut structure = String::new();
    let mut statement = String::new();
    for line in text.lines().map(str::trim) {
        let start = line.trim_start_matches("pub ");
        if let Some(rest) = start.strip_prefix("impl ").or_else(|| start.strip_prefix("trait ")) {
            let own: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            structure = match &*own {
                // The trait of five commands of one layout.
                "ModifyQp" => "rst2init_qp_in".to_owned(),
                _ => names.get(&own).cloned().unwrap_or(own),
            };
        }
        if start.starts_with("const ") {
            statement.clear();
        }
        statement.push_str(start);
        if !statement.starts_with("const ") || !line.ends_with(';') {
            continue;
        }
        let declaration = std::mem::take(&mut statement);
        let Some((head, call)) = declaration.split_once("::new(") else { continue };
        let wrong = || Failure::Found(format!("{SOURCE}: '{declaration}' is not understood"));
        let kind = head.rsplit(['=', ' ']).next().unwrap_or_default();
        if !["Field", "ByteField", "Nested"].contains(&kind) {
            continue;
        }
        let name = declaration["const ".len()..].split(':').next().unwrap_or_default();
        let numbers: Option<Vec<usize>> =
            call.trim_end_matches([';', ')']).split(',').map(|text| number(text.trim())).collect();
        let width = match (kind, numbers.as_deref()) {
            ("Field", Some([_, width])) => Some(*width),
            ("ByteField", Some([_])) => {
                let bytes = head.split('>').next().and_then(|of| of.rsplit(", ").next());
                Some(8 * bytes.and_then(number).ok_or_else(wrong)?)
            }
            ("Nested", Some([_])) => None,
            _ => return Err(wrong()),
        };
        let bit = numbers.and_then(|numbers| numbers.first().copied()).ok_or_else(wrong)?;
        fields.push(Field { name: format!("{structure}.{}", name.to_lowercase()), bit, width });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field is as in the table, which public headers agree with, or which has the reason.
    #[test]
    fn every_field_is_as_in_public_headers() {
        let table = fs::read_to_string(repository().join(TABLE)).unwrap();
        let mut lines = table.lines().filter(|line| !line.starts_with('#'));
        let fields = fields().unwrap();
        assert!(fields.len() > 400, "{}", fields.len());
        for field in &fields {
            let line = lines.next().unwrap_or_default();
            let (facts, reason) = line.split_once("  # ").unwrap_or((line, ""));
            let notes = facts.strip_prefix(&place(field)).unwrap_or_else(|| {
                panic!("{} is not as in {TABLE}: '{line}'", place(field));
            });
            let notes: Vec<_> = notes.split_whitespace().collect();
            let differs = notes.iter().any(|note| note.contains(':'));
            assert!(!reason.is_empty() || (!notes.is_empty() && !differs), "no reason: '{line}'");
        }
        assert_eq!(lines.next(), None, "a field that the source lacks");
    }
}
