//! Counts the loads that a kernel has in flight, from the text of its disassembly.

use std::collections::BTreeMap;
use std::ops::Range;

/// The comment at the end of source lines whose loads are counted.
pub const MARK: &str = "// in flight";

/// Returns the numbers of the marked lines of a source, counted from 1.
pub fn marked_lines(text: &str) -> Vec<u32> {
    let is_marked = |(_, line): &(u32, &str)| line.trim_end().ends_with(MARK);
    (1..).zip(text.lines()).filter(is_marked).map(|(number, _)| number).collect()
}

/// Returns the minimum number of loads in flight for each kernel with loads from marked lines of
/// `source`. `disassembly` is the output of `nvdisasm -c -gi`.
///
/// A load is in flight until an instruction reads its result. At each wait that follows newly
/// issued loads, the loads in flight are counted, and the smallest count is returned. A loop that
/// waits for each load gives 1, even if other loops do better. Where paths meet, the path with the
/// most loads counts, because the other path handles bags with fewer ids.
pub fn count_in_flight(disassembly: &str, source: &str, marked: &[u32]) -> BTreeMap<String, u32> {
    let mut least = BTreeMap::new();
    let (mut kernel, mut loads) = (String::new(), PendingLoads::default());
    let mut at_label: BTreeMap<&str, PendingLoads> = BTreeMap::new();
    // The lines that name the source of an instruction precede the instruction. The innermost
    // inlined function comes first.
    let (mut is_counted, mut in_places) = (false, false);
    for line in disassembly.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix(".text.").and_then(|line| line.strip_suffix(':')) {
            (kernel, loads, is_counted) = (name.to_owned(), PendingLoads::default(), false);
            at_label.clear();
        } else if let Some(label) = line.strip_suffix(':') {
            // A label joins the path that falls through with the paths that jump to it.
            if let Some(jumped) = at_label.remove(label) {
                loads = loads.keep_larger(jumped);
            }
        } else if line.starts_with("//## File ") {
            // An instruction of an inlined function has several such lines, and one marked line is
            // enough.
            is_counted = (in_places && is_counted) || names_marked_line(line, source, marked);
            in_places = true;
        } else if let Some(instruction) = Instruction::parse(line) {
            in_places = false;
            if let Some(count) = loads.apply_instruction(&instruction, is_counted) {
                let least = least.entry(kernel.clone()).or_insert(count);
                *least = count.min(*least);
            }
            if let Some(label) = instruction.target() {
                // The state of a backward jump is never used, because its label has already passed.
                // The body of a loop is therefore counted once.
                let before = at_label.remove(label).unwrap_or_default();
                at_label.insert(label, before.keep_larger(loads.clone()));
            }
            if instruction.ends_path() {
                loads = PendingLoads::default();
            }
        }
    }
    least
}

/// Whether a line of the disassembly, such as `//## File "a/b.cu", line 3 inlined at "c.cu", line
/// 9` names a marked line of the source.
fn names_marked_line(line: &str, source: &str, marked: &[u32]) -> bool {
    line.split('"').collect::<Vec<_>>().windows(2).any(|pair| {
        let number = pair[1].strip_prefix(", line ").and_then(|rest| rest.split(' ').next());
        let is_marked = number.and_then(|n| n.parse().ok()).is_some_and(|n| marked.contains(&n));
        is_marked && pair[0].ends_with(source)
    })
}

/// The counted loads in flight, by the registers into which they load.
#[derive(Clone, Default)]
struct PendingLoads {
    registers: Vec<Range<u32>>,
    /// Whether a counted load was issued since the last wait.
    is_fresh: bool,
}

impl PendingLoads {
    fn keep_larger(self, other: Self) -> Self {
        if other.registers.len() > self.registers.len() { other } else { self }
    }

    /// Applies an instruction to the loads in flight. If it waits for one of them, returns the
    /// number of loads in flight at that point.
    fn apply_instruction(
        &mut self,
        instruction: &Instruction<'_>,
        is_counted: bool,
    ) -> Option<u32> {
        let reads = instruction.read_registers();
        let before = self.registers.len();
        let is_read = |range: &Range<u32>| reads.iter().any(|register| range.contains(register));
        self.registers.retain(|range| !is_read(range));
        // Only the first wait after new loads counts, because later reads find fewer loads in
        // flight by design.
        let waits = self.registers.len() < before && std::mem::take(&mut self.is_fresh);
        if let Some(loaded) = instruction.written_registers() {
            // An overwritten register no longer holds the result of an earlier load.
            self.registers.retain(|range| range.end <= loaded.start || loaded.end <= range.start);
            if is_counted && instruction.operation.starts_with("LDG") {
                self.registers.push(loaded);
                self.is_fresh = true;
            }
        }
        waits.then_some(before as u32)
    }
}

/// An instruction of the disassembly, parsed from a line such as `/*27f0*/ @!P5 LDG.E.128.CONSTANT
/// R16, desc[UR6][R20.64] ;`.
struct Instruction<'a> {
    has_predicate: bool,
    operation: &'a str,
    operands: &'a str,
}

impl<'a> Instruction<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
        let mut rest = rest.trim().trim_end_matches(';').trim();
        let has_predicate = rest.starts_with('@');
        if has_predicate {
            rest = rest.split_once(' ')?.1.trim();
        }
        let (operation, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self { has_predicate, operation, operands })
    }

    /// Returns the target label if the instruction is a jump.
    fn target(&self) -> Option<&'a str> {
        let (_, label) = self.operands.split_once("`(")?;
        self.operation.starts_with("BRA").then(|| label.split(')').next())?
    }

    /// Whether execution never continues with the next line.
    fn ends_path(&self) -> bool {
        let ends = ["BRA", "EXIT", "RET"].iter().any(|name| self.operation.starts_with(name));
        ends && !self.has_predicate
    }

    /// Whether the first operand is the destination of a result.
    fn has_result(&self) -> bool {
        let without = ["ST", "RED", "BRA", "BAR", "EXIT", "WARPSYNC", "BSSY", "BSYNC", "CALL"];
        !without.iter().any(|prefix| self.operation.starts_with(prefix))
    }

    /// Returns the registers that the instruction overwrites.
    fn written_registers(&self) -> Option<Range<u32>> {
        let first = self.operands.split(',').next().filter(|_| self.has_result())?;
        let register = *registers(first).first()?;
        let is = |suffix| self.operation.split('.').any(|part| part == suffix);
        // A register has 32 bits, so 128 bits take four registers and 64 bits take two.
        let count = if is("128") { 4 } else { 1 + u32::from(is("64") || is("WIDE")) };
        Some(register..register + count)
    }

    fn read_registers(&self) -> Vec<u32> {
        let skipped = usize::from(self.has_result());
        self.operands.split(',').skip(skipped).flat_map(registers).collect()
    }
}

/// Returns the registers that an operand names. `R4.64` names two registers.
fn registers(operand: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for (at, _) in operand.match_indices('R') {
        let is_part = operand[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let rest = &operand[at + 1..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (Ok(number), false) = (rest[..digits].parse(), is_part) else { continue };
        found.push(number);
        if rest[digits..].starts_with(".64") {
            found.push(number + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{count_in_flight, marked_lines};

    const SOURCE: &str = "ops/lookup/kernel.cu";

    /// Counts the loads in flight of a kernel with these instructions. An L before an instruction
    /// marks it as a counted load.
    fn check(text: &str) -> BTreeMap<String, u32> {
        let marked = "\t//## File \"/d/prelude.cu\", line 9 inlined at \"/d/ops/lookup/kernel.cu\", \
                      line 2\n\t//## File \"/d/ops/lookup/kernel.cu\", line 7\n";
        let other = "\t//## File \"/d/ops/lookup/kernel.cu\", line 3\n";
        let mut lines = ".text.lookup:\n".to_owned();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.ends_with(':') {
                lines += &format!("{line}\n");
                continue;
            }
            let (places, instruction) = match line.strip_prefix("L ") {
                Some(load) => (marked, load),
                None => (other, line),
            };
            lines += &format!("{places}        /*0010*/ {instruction} ;\n");
        }
        count_in_flight(&lines, SOURCE, &marked_lines("\nload();  // in flight\n"))
    }

    fn lookup(least: u32) -> BTreeMap<String, u32> {
        BTreeMap::from([("lookup".to_owned(), least)])
    }

    #[test]
    fn a_loop_that_waits_for_each_load_has_one_in_flight() {
        let text = "
            L LDG.E.CONSTANT R4, desc[UR6][R2.64]
            FADD R8, R8, R4
            L LDG.E.CONSTANT R4, desc[UR6][R2.64+0x80]
            FADD R8, R8, R4";
        assert_eq!(check(text), lookup(1));
    }

    #[test]
    fn loads_issued_before_the_first_addition_are_in_flight() {
        let text = "
            L @!P1 LDG.E.128.CONSTANT R4, desc[UR6][R2.64]
            L @!P2 LDG.E.128.CONSTANT R12, desc[UR6][R2.64+0x80]
            LDG.E.CONSTANT R40, desc[UR6][R30.64]
            L LDG.E.128.CONSTANT R16, desc[UR6][R20.64]
            L LDG.E.128.CONSTANT R20, desc[UR6][R24.64]
            FMUL R5, R5, R40.reuse
            @P1 FADD R8, R12, R5
            STG.E desc[UR6][R2.64], R22";
        assert_eq!(check(text), lookup(4));
    }

    #[test]
    fn the_worst_of_several_loops_counts() {
        let many: String =
            (0..4).map(|i| format!("L LDG.E.U16 R{i}, desc[UR6][R20.64]\n")).collect();
        let one = "FADD R8, R8, -R2\nL LDG.E R40, desc[UR6][R20.64]\nFADD R41, R41, |R40|\n";
        // After the fifth load is issued, only one of the first four is still in flight, so the
        // count is 2.
        assert_eq!(check(&format!("{many}FADD R8, R0, R1\n{one}")), lookup(2));
        assert_eq!(check(&many), BTreeMap::new());
    }

    #[test]
    fn loads_of_one_path_are_not_those_of_the_other() {
        let text = "
            @P0 BRA `(.L_x_1)
            L LDG.E.128 R4, desc[UR6][R2.64]
            L LDG.E.128 R8, desc[UR6][R2.64]
            @P1 BRA `(.L_x_2)
            L LDG.E.128 R12, desc[UR6][R2.64]
            BRA `(.L_x_2)
            .L_x_1:
            L LDG.E R4, desc[UR6][R12.64]
            .L_x_2:
            FADD R20, R20, R4";
        assert_eq!(check(text), lookup(3));
    }

    #[test]
    fn a_store_of_a_loaded_value_waits_and_an_overwritten_one_is_not_in_flight() {
        let text = "
            L LDG.E.64 R4, desc[UR6][R2.64]
            L LDG.E R6, desc[UR6][R2.64+0x8]
            IMAD.WIDE R4, R10, 0x4, R12
            STG.E desc[UR6][R20.64], R6";
        assert_eq!(check(text), lookup(1));
    }
}
