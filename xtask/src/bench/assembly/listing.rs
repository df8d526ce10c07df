//! A function as text without addresses, which changes only if the code does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::program::{Function, Instruction, Program, Slot};

/// Returns the instructions of `function`, with labels for its jump targets and names for its
/// callees.
pub(super) fn listing(program: &Program, function: &Function) -> String {
    let labels = labels(program, function);
    let mut text = format!("{}:\n", function.name);
    for instruction in function.instructions.iter().filter(|instruction| !is_filler(instruction)) {
        if let Some(label) = labels.get(&instruction.address) {
            let _ = writeln!(text, ".{label}:");
        }
        let operands = match tables(program, function, instruction) {
            targets if targets.is_empty() => operands(program, instruction, &labels),
            targets => {
                let names: Vec<String> =
                    targets.iter().map(|target| format!(".{}", labels[target])).collect();
                relative(&instruction.operands, &names.join(" "))
            }
        };
        let _ = writeln!(
            text,
            "{}",
            format!("        {:7} {operands}", instruction.mnemonic).trim_end()
        );
    }
    text
}

/// The instructions of a listing.
pub(super) fn length(listing: &str) -> usize {
    listing.lines().filter(|line| line.starts_with(' ')).count()
}

/// Padding up to an aligned address.
fn is_filler(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic.as_str(), "nop" | "nopw" | "nopl" | "int3")
        || (instruction.mnemonic == "xchg" && instruction.operands == "ax,ax")
}

/// Returns the jump targets inside the function, numbered in order.
fn labels(program: &Program, function: &Function) -> BTreeMap<u64, usize> {
    let mut targets = BTreeSet::new();
    for instruction in &function.instructions {
        let jump = instruction.named.filter(|_| is_jump(instruction));
        targets.extend(jump.filter(|target| function.position(*target).is_some()));
        targets.extend(tables(program, function, instruction));
    }
    targets.into_iter().zip(1..).collect()
}

/// Returns the targets of the jump table whose address the instruction loads.
fn tables(program: &Program, function: &Function, instruction: &Instruction) -> Vec<u64> {
    match instruction.named {
        Some(address) if instruction.mnemonic == "lea" => program.table(address, function),
        _ => Vec::new(),
    }
}

/// Whether the instruction jumps or calls, on either processor.
fn is_jump(instruction: &Instruction) -> bool {
    let mnemonic = instruction.mnemonic.as_str();
    mnemonic.starts_with('j')
        || mnemonic.starts_with("b.")
        || matches!(mnemonic, "call" | "b" | "bl" | "cbz" | "cbnz" | "tbz" | "tbnz")
}

fn operands(program: &Program, instruction: &Instruction, labels: &BTreeMap<u64, usize>) -> String {
    let Some(named) = instruction.named else { return instruction.operands.clone() };
    let name =
        |address: u64| program.at(address).map_or("?".to_owned(), |function| function.name.clone());
    if !is_jump(instruction) {
        return relative(&instruction.operands, &constant(program, instruction, named));
    }
    if let Some(label) = labels.get(&named) {
        // Of aarch64, `tbnz x1, #56, 18b78`.
        let tested = instruction.operands.rsplit_once(' ');
        return tested.map_or(format!(".{label}"), |(tested, _)| format!("{tested} .{label}"));
    }
    match program.slot(named) {
        Some(Slot::Own(address)) => name(*address),
        Some(Slot::Foreign(symbol)) => symbol.clone(),
        None if instruction.operands.contains("[rip") => relative(&instruction.operands, "?"),
        None => name(named),
    }
}

/// Returns the bytes that an instruction reads at `address`.
fn constant(program: &Program, instruction: &Instruction, address: u64) -> String {
    let widths =
        [("XMMWORD PTR", 16), ("QWORD PTR", 8), ("DWORD PTR", 4), ("WORD PTR", 2), ("BYTE PTR", 1)];
    let width = widths.into_iter().find(|(size, _)| instruction.operands.contains(size));
    match width.and_then(|(_, width)| program.constant(address, width)) {
        Some(bytes) => bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
        None => "constant".to_owned(),
    }
}

/// Replaces an offset from the instruction pointer by `what`.
fn relative(operands: &str, what: &str) -> String {
    let Some((before, rest)) = operands.split_once("[rip") else { return operands.to_owned() };
    let after = rest.split_once(']').map_or("", |(_, after)| after);
    format!("{before}[{what}]{after}")
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::program;
    use super::*;

    #[test]
    fn has_labels_and_names_and_no_addresses() {
        let program = program(
            "0000000000000100 <held_write>:\n 100:\tdec    eax\n 102:\tjs     120 <held_write+0x20>\n \
             104:\tpor    xmm1,XMMWORD PTR [rip+0x59e5]        # 8000 <GCC_except_table141+0x1f4>\n \
             108:\tcall   QWORD PTR [rip+0x8ef0]        # 9000 <_DYNAMIC+0x10>\n \
             10e:\tcall   QWORD PTR [rip+0x8ef0]        # 9008 <_DYNAMIC+0x18>\n 114:\tcs nopw 0x0[rax+rax*1]\n \
             11a:\txchg   ax,ax\n 120:\tjmp    300 <slow>\n 125:\tint3\n\n\
             0000000000000300 <slow>:\n 300:\tret\n",
        );
        let function = program.exported("held_write").unwrap();
        let wanted = "held_write:\n        dec     eax\n        js      .1\n        \
             por     xmm1,XMMWORD PTR [0881ffff0d81ffff0000000000000080]\n        call    memcpy\n        call    slow\n.1:\n        \
             jmp     slow\n";
        assert_eq!(listing(&program, function), wanted);
        assert_eq!(length(wanted), 6);
    }

    #[test]
    fn keeps_what_a_jump_of_aarch64_tests() {
        let program = program(
            "0000000000000100 <held_poll>:\n 100:\ttbnz\tx1, #56, 108 <held_poll+0x8>\n \
             104:\tb.eq\t108 <held_poll+0x8>  // b.none\n 108:\tret\n",
        );
        let function = program.exported("held_poll").unwrap();
        let wanted =
            "held_poll:\n        tbnz    x1, #56, .1\n        b.eq    .1\n.1:\n        ret\n";
        assert_eq!(listing(&program, function), wanted);
    }

    #[test]
    fn names_the_targets_of_a_jump_table() {
        let program = program(
            "0000000000000100 <held_poll>:\n 100:\tlea    rcx,[rip+0x7ef9]        # 8000 <t>\n 106:\tjmp    rax\n \
             108:\tinc    eax\n 10d:\tret\n",
        );
        let function = program.exported("held_poll").unwrap();
        let wanted = "held_poll:\n        lea     rcx,[.1 .2]\n        jmp     rax\n.1:\n        inc     eax\n.2:\n        ret\n";
        assert_eq!(listing(&program, function), wanted);
    }
}
