//! What a call of a function can do: every instruction that its code, and the code that it calls,
//! can reach.
//!
//! Landing pads are not reached, since nothing jumps to them: they run after a panic, which is
//! itself a complaint, or after a panic of the user's function.

use std::collections::BTreeSet;

use super::program::{Function, Instruction, Program, Slot};

/// What a hot function must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    Panic,
    Allocate,
    /// `memcpy` and similar functions.
    Copy,
    SystemCall,
    /// Calls another library function.
    Leave,
    /// Calls through a pointer.
    Indirect,
    Lock,
    Divide,
}

impl Deed {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Panic => "may panic",
            Self::Allocate => "may allocate or free",
            Self::Copy => "copies or fills through libc",
            Self::SystemCall => "makes a system call",
            Self::Leave => "leaves the program",
            Self::Indirect => "calls through a pointer",
            Self::Lock => "locks the bus",
            Self::Divide => "divides",
        }
    }
}

/// A deed, and the call path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) deed: Deed,
    /// Functions from the hot one on; the last does it, or is it.
    pub(super) way: Vec<String>,
}

/// Returns all deeds that `root` can reach. Functions whose name ends in one of `cold` are not
/// entered.
pub(super) fn findings(program: &Program, root: &Function, cold: &[&str]) -> Vec<Finding> {
    let mut walk =
        Walk { program, cold, entered: BTreeSet::new(), way: Vec::new(), findings: Vec::new() };
    walk.enter(root);
    walk.findings
}

struct Walk<'a> {
    program: &'a Program,
    cold: &'a [&'a str],
    /// Addresses of functions.
    entered: BTreeSet<u64>,
    way: Vec<String>,
    findings: Vec<Finding>,
}

/// The target of a call or jump.
enum Goal<'a> {
    Own(u64),
    Foreign(&'a str),
    Unknown,
}

impl Walk<'_> {
    fn enter(&mut self, function: &Function) {
        if let Some(deed) = own_deed(&function.name) {
            return self.found(deed, Some(&function.name));
        }
        let Some(first) = function.instructions.first() else { return };
        if !self.entered.insert(first.address)
            || self.cold.iter().any(|name| function.name.ends_with(name))
        {
            return;
        }
        self.way.push(function.name.clone());
        for instruction in reachable(self.program, function) {
            self.look(function, instruction);
        }
        self.way.pop();
    }

    fn look(&mut self, function: &Function, instruction: &Instruction) {
        match instruction.mnemonic.as_str() {
            "syscall" | "sysenter" | "int" => self.found(Deed::SystemCall, None),
            "div" | "idiv" => self.found(Deed::Divide, None),
            // An exchange with memory locks implicitly.
            "xchg" if instruction.operands.contains('[') => self.found(Deed::Lock, None),
            locked if locked.starts_with("lock ") => self.found(Deed::Lock, None),
            call if call == "call" || call.starts_with('j') => match self.goal(instruction) {
                Goal::Own(address)
                    if address == function.instructions[0].address
                        || function.position(address).is_none() =>
                {
                    let program = self.program;
                    if let Some(next) = program.at(address) {
                        self.enter(next);
                    }
                }
                Goal::Own(_) => {}
                Goal::Foreign(symbol) => {
                    let symbol = symbol.to_owned();
                    self.found(foreign_deed(&symbol), Some(&symbol));
                }
                // A jump to a register uses a table of the function, whose targets count as
                // reached.
                Goal::Unknown if call != "call" && is_table(instruction) => {}
                Goal::Unknown => self.found(Deed::Indirect, None),
            },
            _ => {}
        }
    }

    fn goal(&self, instruction: &Instruction) -> Goal<'_> {
        match instruction.named {
            Some(address) if instruction.operands.contains('[') => match self.program.slot(address)
            {
                Some(Slot::Own(address)) => Goal::Own(*address),
                Some(Slot::Foreign(symbol)) => Goal::Foreign(symbol),
                None => Goal::Unknown,
            },
            Some(address) => Goal::Own(address),
            None => Goal::Unknown,
        }
    }

    fn found(&mut self, deed: Deed, last: Option<&str>) {
        let mut way = self.way.clone();
        way.extend(last.map(str::to_owned));
        let finding = Finding { deed, way };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// Returns the deed of a function that is known by its name.
fn own_deed(name: &str) -> Option<Deed> {
    let panics = ["core::panicking::", "std::panicking::", "alloc::alloc::handle_alloc_error"];
    if panics.iter().any(|path| name.starts_with(path)) {
        return Some(Deed::Panic);
    }
    let allocators = ["__rustc::__rust_", "__rust_", "__rdl_", "__rustc::__rdl_"];
    allocators.iter().any(|prefix| name.starts_with(prefix)).then_some(Deed::Allocate)
}

fn foreign_deed(symbol: &str) -> Deed {
    match symbol {
        "malloc" | "calloc" | "realloc" | "free" | "posix_memalign" | "aligned_alloc" => {
            Deed::Allocate
        }
        "memcpy" | "memmove" | "memset" | "memcmp" | "bcmp" | "strlen" => Deed::Copy,
        _ => Deed::Leave,
    }
}

fn is_table(jump: &Instruction) -> bool {
    jump.mnemonic == "jmp" && !jump.operands.contains('[')
}

/// Returns the instructions that a call of the function can reach.
fn reachable<'f>(
    program: &Program,
    function: &'f Function,
) -> impl Iterator<Item = &'f Instruction> {
    let code = &function.instructions;
    let mut reached = vec![false; code.len()];
    let mut next = vec![0];
    // Possible starts of jump tables, and whether there was a jump through one.
    let mut tables = Vec::new();
    let mut jumps = false;
    loop {
        while let Some(at) = next.pop() {
            let Some(instruction) = code.get(at) else { continue };
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            match (instruction.mnemonic.as_str(), instruction.named) {
                ("lea", Some(address)) => tables.push(address),
                ("jmp", None) => jumps |= is_table(instruction),
                (mnemonic, Some(address)) if mnemonic.starts_with('j') => {
                    next.extend(function.position(address));
                }
                _ => {}
            }
            if !matches!(instruction.mnemonic.as_str(), "jmp" | "ret" | "ud2" | "int3" | "hlt") {
                next.push(at + 1);
            }
        }
        if jumps {
            let targets = tables.iter().flat_map(|table| program.table(*table, function));
            next.extend(
                targets.filter_map(|target| function.position(target)).filter(|at| !reached[*at]),
            );
        }
        if next.is_empty() {
            break;
        }
    }
    let knows_all =
        !jumps || tables.iter().any(|table| !program.table(*table, function).is_empty());
    code.iter()
        .zip(reached)
        .filter_map(move |(instruction, was)| (was || !knows_all).then_some(instruction))
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::program;
    use super::*;

    fn deeds(code: &str, cold: &[&str]) -> Vec<(Deed, String)> {
        let program = program(code);
        let root = program.exported("held_x").unwrap();
        let findings = findings(&program, root, cold);
        findings.into_iter().map(|finding| (finding.deed, finding.way.join(" > "))).collect()
    }

    #[test]
    fn follows_calls_tail_calls_and_slots() {
        let code = "0000000000000100 <held_x>:\n 100:\tje     110 <held_x+0x10>\n 102:\tcall   200 <middle>\n \
             107:\tret\n 110:\tcall   QWORD PTR [rip+0x8ef0]        # 9000 <_DYNAMIC+0x10>\n 116:\tret\n\n\
             0000000000000200 <middle>:\n 200:\tjmp    QWORD PTR [rip+0x8ef0]        # 9008 <_DYNAMIC+0x18>\n\n\
             0000000000000300 <core::panicking::panic>:\n 300:\tud2\n";
        let wanted = [
            (Deed::Panic, "held_x > middle > core::panicking::panic".to_owned()),
            (Deed::Copy, "held_x > memcpy".to_owned()),
        ];
        assert_eq!(deeds(code, &[]), wanted);
        assert_eq!(deeds(code, &["middle"]), wanted[1..]);
    }

    #[test]
    fn leaves_out_what_only_unwinding_comes_to() {
        let code = "0000000000000100 <held_x>:\n 100:\tcall   QWORD PTR [rax+0x18]\n 102:\tret\n \
             103:\tcall   300 <core::panicking::panic>\n 108:\tud2\n\n\
             0000000000000300 <core::panicking::panic>:\n 300:\tud2\n";
        assert_eq!(deeds(code, &[]), [(Deed::Indirect, "held_x".to_owned())]);
        // A jump through a register.
        let code = code.replace("call   QWORD PTR [rax+0x18]", "jmp    rax");
        assert_eq!(
            deeds(&code, &[]),
            [(Deed::Panic, "held_x > core::panicking::panic".to_owned())]
        );
    }

    #[test]
    fn follows_jump_tables() {
        // The table at 0x8000 has two targets, 0x108 and 0x10d.
        let code = "0000000000000100 <held_x>:\n 100:\tlea    rcx,[rip+0x7ef9]        # 8000 <t>\n 106:\tjmp    rax\n \
             108:\tdiv    rcx\n 10d:\tlock inc DWORD PTR [rdi]\n 110:\tret\n 112:\tsyscall\n";
        let wanted = [Deed::Divide, Deed::Lock].map(|deed| (deed, "held_x".to_owned()));
        assert_eq!(deeds(code, &[]), wanted);
    }

    #[test]
    fn knows_instructions() {
        let one = |instruction: &str| {
            deeds(&format!("0000000000000100 <held_x>:\n 100:\t{instruction}\n 105:\tret\n"), &[])
        };
        let is = |deed| vec![(deed, "held_x".to_owned())];
        assert_eq!(one("syscall"), is(Deed::SystemCall));
        assert_eq!(one("div    rcx"), is(Deed::Divide));
        assert_eq!(one("lock xadd DWORD PTR [rdi],eax"), is(Deed::Lock));
        assert_eq!(one("xchg   DWORD PTR [rdi],eax"), is(Deed::Lock));
        assert_eq!(one("call   rax"), is(Deed::Indirect));
        assert_eq!(one("jmp    QWORD PTR [rax+0x18]"), is(Deed::Indirect));
        assert_eq!(one("xchg   ax,ax"), []);
        assert_eq!(one("divss  xmm0,xmm1"), []);
    }
}
