//! A program in objdump's output: functions of instructions, and the targets of their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::process::{self, Failure, Invocation};

/// Prefixes without meaning here.
const PADDING: &[&str] = &["addr32", "bnd", "notrack", "data16", "cs", "ds"];

/// The processor of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// Debian's disassembler and its options.
    fn objdump(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::X86_64 => ("objdump", &["-M", "intel"]),
            Self::Aarch64 => ("aarch64-linux-gnu-objdump", &[]),
        }
    }
}

/// A disassembled program.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// By address.
    functions: BTreeMap<u64, Function>,
    /// Slots that the loader fills (the global offset table).
    slots: BTreeMap<u64, Slot>,
    /// Constants and jump tables, up to sixteen bytes at a time.
    constants: BTreeMap<u64, Vec<u8>>,
    /// Addresses that instructions load, which are boundaries of constants.
    loaded: BTreeSet<u64>,
}

/// The contents of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// An address in this program.
    Own(u64),
    /// A symbol of a library.
    Foreign(String),
}

/// A function.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// Its path, or its exported name.
    pub(super) name: String,
    pub(super) instructions: Vec<Instruction>,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) address: u64,
    /// With a prefix `lock` or `rep`, if present.
    pub(super) mnemonic: String,
    /// Without objdump's symbol names.
    pub(super) operands: String,
    /// The named address: the target of a jump, or the memory of an operand relative to the
    /// instruction pointer.
    pub(super) named: Option<u64>,
}

impl Function {
    /// Returns the index of the instruction at `address`.
    pub(super) fn position(&self, address: u64) -> Option<usize> {
        self.instructions.binary_search_by_key(&address, |instruction| instruction.address).ok()
    }
}

impl Program {
    /// Disassembles the binary at `path`.
    pub(super) fn read(path: &str, machine: Machine) -> Result<Self, Failure> {
        let (objdump, syntax) = machine.objdump();
        let ask = |arguments: &[&str]| {
            let objdump = Invocation::new(objdump, arguments).with(&[path]);
            process::text(&objdump, Duration::from_mins(2))
        };
        let code = ask(&[&["-d", "-C", "--no-show-raw-insn"], syntax].concat())?;
        let program = Self::parse(&code, &ask(&["-R"])?, &ask(&["-s", "-j", ".rodata"])?);
        // Every Rust program has both; otherwise the names were not understood.
        let has = |name: &str| program.functions.values().any(|function| function.name == name);
        if program.slots.is_empty() || !has("core::panicking::panic_fmt") {
            return Err(Failure::Found(format!("cannot read what this objdump says of {path}")));
        }
        Ok(program)
    }

    fn parse(code: &str, relocations: &str, constants: &str) -> Self {
        let mut functions: BTreeMap<u64, Function> = BTreeMap::new();
        for line in code.lines() {
            if let Some((address, name)) = header(line) {
                functions.insert(address, Function { name, instructions: Vec::new() });
            } else if let Some(mut function) = functions.last_entry()
                && let Some(instruction) = instruction(line)
            {
                function.get_mut().instructions.push(instruction);
            }
        }
        let code = functions.values().flat_map(|function| &function.instructions);
        let loaded = code.filter(|i| i.mnemonic == "lea").filter_map(|i| i.named).collect();
        let slots = relocations.lines().filter_map(slot).collect();
        Self { functions, slots, constants: constants.lines().filter_map(row).collect(), loaded }
    }

    /// Returns the function exported as `name`.
    pub(super) fn exported(&self, name: &str) -> Option<&Function> {
        self.functions.values().find(|function| function.name == name)
    }

    /// Returns the functions whose name has this prefix.
    pub(super) fn beginning_with(&self, prefix: &str) -> impl Iterator<Item = &Function> {
        self.functions.values().filter(move |function| function.name.starts_with(prefix))
    }

    /// Returns the function that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Function> {
        self.functions.range(..=address).next_back().map(|(_, function)| function)
    }

    /// Returns the `length` constant bytes at `address`.
    pub(super) fn constant(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let byte = |at: u64| {
            let (start, row) = self.constants.range(..=at).next_back()?;
            row.get((at - start) as usize).copied()
        };
        (address..address + length as u64).map(byte).collect()
    }

    /// Returns the targets of the jump table at `address`, if `function` has one there: numbers of
    /// 4 bytes, each the distance of an instruction from the table's start.
    pub(super) fn table(&self, address: u64, function: &Function) -> Vec<u64> {
        let entry = |at: u64| {
            let place = address + 4 * at;
            if at > 0 && self.loaded.contains(&place) {
                return None;
            }
            let distance = self.constant(place, 4)?.try_into().ok()?;
            Some(address.wrapping_add_signed(i32::from_le_bytes(distance).into()))
        };
        (0..).map_while(entry).take_while(|target| function.position(*target).is_some()).collect()
    }

    /// Returns what the loader puts at `address`.
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        self.slots.get(&address)
    }
}

/// `0000000000027f60 <held_write_8>:`
fn header(line: &str) -> Option<(u64, String)> {
    let (address, rest) = line.split_once(" <")?;
    let name = rest.strip_suffix(">:")?;
    // The legacy mangling ends in a hash.
    let name = match name.rsplit_once("::h") {
        Some((name, hash))
            if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            name
        }
        _ => name,
    };
    Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
}

/// `   27f65:\tjs     2802f <held_write_8+0xcf>`,
/// `   28b08:\tcall   QWORD PTR [rip+0xa443a]        # ed4f8 <_DYNAMIC+0x468>`,
/// `   18b4c:\ttbnz\tx1, #56, 18b78 <held_poll+0x3c>`, `   18e08:\tcset\tw0, ne\t// ne = any`
fn instruction(line: &str) -> Option<Instruction> {
    let (address, text) = line.split_once(":\t")?;
    let address = u64::from_str_radix(address.trim(), 16).ok()?;
    let text = text.split_once("//").map_or(text, |(text, _)| text);
    let (text, note) = text.split_once(" # ").unwrap_or((text, ""));
    let mut words = text.split_whitespace().filter(|word| !PADDING.contains(word));
    let mut mnemonic = words.next().unwrap_or("nop").to_owned();
    if matches!(mnemonic.as_str(), "lock" | "rep" | "repz" | "repnz") {
        mnemonic = format!("{mnemonic} {}", words.next().unwrap_or_default());
    }
    let operands = words.collect::<Vec<_>>().join(" ");
    let (operands, label) = operands.split_once(" <").unwrap_or((&operands, ""));
    let named = if note.is_empty() {
        operands.rsplit(' ').next().filter(|_| !label.is_empty())
    } else {
        note.split(' ').next()
    };
    let named = named.and_then(|word| u64::from_str_radix(word, 16).ok());
    Some(Instruction { address, mnemonic, operands: operands.to_owned(), named })
}

/// `00000000000ed2c0 R_X86_64_GLOB_DAT  memcpy@GLIBC_2.14`,
/// `00000000000ed4f8 R_X86_64_RELATIVE  *ABS*+0x0000000000043f47`; of aarch64, `R_AARCH64_RELATIVE`
fn slot(line: &str) -> Option<(u64, Slot)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let (kind, value) = (words.next()?, words.next()?);
    let kind = kind.strip_prefix("R_X86_64_").or_else(|| kind.strip_prefix("R_AARCH64_"))?;
    let slot = match kind {
        "RELATIVE" => Slot::Own(u64::from_str_radix(value.strip_prefix("*ABS*+0x")?, 16).ok()?),
        "GLOB_DAT" | "JUMP_SLOT" => {
            Slot::Foreign(value.split('@').next().unwrap_or(value).to_owned())
        }
        _ => return None,
    };
    Some((address, slot))
}

/// ` d970 08000080 00000000 00000000 00000000  ................`
fn row(line: &str) -> Option<(u64, Vec<u8>)> {
    let (address, rest) = line.strip_prefix(' ')?.split_once(' ')?;
    let groups = rest.get(..35).unwrap_or(rest).split_whitespace();
    let digits: Vec<u8> = groups.flat_map(str::bytes).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes =
        pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>()?;
    Some((u64::from_str_radix(address, 16).ok()?, bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A program with `code`: slot 0x9000 is memcpy, 0x9008 the function at 0x300, and there are
    /// constants at 0x8000.
    pub(in super::super) fn program(code: &str) -> Program {
        let relocations = "DYNAMIC RELOCATION RECORDS\nOFFSET           TYPE              VALUE\n\
             0000000000009000 R_X86_64_GLOB_DAT  memcpy@GLIBC_2.14\n\
             0000000000009008 R_X86_64_RELATIVE  *ABS*+0x0000000000000300\n\
             0000000000009010 R_X86_64_64  other@Base\n";
        let constants = "Contents of section .rodata:\n 8000 0881ffff 0d81ffff 00000000 00000080  ................\n \
             8010 2a00                                 *.              \n";
        Program::parse(code, relocations, constants)
    }

    #[test]
    fn reads_constants() {
        let program = program("");
        assert_eq!(program.constant(0x8000, 4), Some(vec![0x08, 0x81, 0xff, 0xff]));
        assert_eq!(program.constant(0x800f, 3), Some(vec![0x80, 0x2a, 0]));
        assert_eq!(program.constant(0x8010, 4), None);
        assert_eq!(program.constant(0x7fff, 1), None);
    }

    #[test]
    fn reads_functions_and_slots() {
        let program = program(
            "\n/t/driver:     file format elf64-x86-64\n\nDisassembly of section .text:\n\n\
             0000000000000100 <a::b<c>>:\n 100:\tmov    eax,DWORD PTR [rdi+0x20]\n \
             103:\tjs     10f <a::b<c>+0xf>\n 109:\tlock cmpxchg DWORD PTR [rdi],ecx\n 10f:\tret\n\n\
             0000000000000300 <core::panicking::panic::h0123456789abcdef>:\n \
             300:\taddr32 call 100 <a::b<c>>\n 306:\tjmp    QWORD PTR [rip+0x8cf4]        # 9000 <memcpy@GLIBC_2.14>\n",
        );
        let function = program.at(0x109).unwrap();
        assert_eq!(function.name, "a::b<c>");
        let seen: Vec<_> = function
            .instructions
            .iter()
            .map(|i| (i.address, i.mnemonic.as_str(), i.operands.as_str(), i.named))
            .collect();
        assert_eq!(
            seen,
            [
                (0x100, "mov", "eax,DWORD PTR [rdi+0x20]", None),
                (0x103, "js", "10f", Some(0x10f)),
                (0x109, "lock cmpxchg", "DWORD PTR [rdi],ecx", None),
                (0x10f, "ret", "", None)
            ]
        );
        let panic = program.exported("core::panicking::panic").unwrap();
        assert_eq!(
            (panic.instructions[0].mnemonic.as_str(), panic.instructions[0].named),
            ("call", Some(0x100))
        );
        assert_eq!(panic.instructions[1].named, Some(0x9000));
        assert_eq!(program.slot(0x9000), Some(&Slot::Foreign("memcpy".to_owned())));
        assert_eq!(program.slot(0x9008), Some(&Slot::Own(0x300)));
        assert_eq!(program.slot(0x9010), None);
    }

    #[test]
    fn reads_aarch64() {
        let code = "0000000000018b3c <held_poll>:\n   18b4c:\ttbnz\tx1, #56, 18b78 <held_poll+0x3c>\n   \
             18b50:\tb.eq\t18b80 <held_poll+0x44>  // b.none\n   18b54:\tmov\tw10, #0x8   \t// #8\n   \
             18b58:\thint\t#0x6\n";
        let relocations = "0000000000089348 R_AARCH64_RELATIVE  *ABS*+0x000000000006071c\n\
             0000000000089350 R_AARCH64_GLOB_DAT  memcpy@GLIBC_2.17\n";
        let program = Program::parse(code, relocations, "");
        let seen: Vec<_> = program.functions[&0x18b3c]
            .instructions
            .iter()
            .map(|i| (i.mnemonic.as_str(), i.operands.as_str(), i.named))
            .collect();
        assert_eq!(
            seen,
            [
                ("tbnz", "x1, #56, 18b78", Some(0x18b78)),
                ("b.eq", "18b80", Some(0x18b80)),
                ("mov", "w10, #0x8", None),
                ("hint", "#0x6", None)
            ]
        );
        assert_eq!(program.slot(0x89348), Some(&Slot::Own(0x6071c)));
        assert_eq!(program.slot(0x89350), Some(&Slot::Foreign("memcpy".to_owned())));
    }
}
