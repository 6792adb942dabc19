//! What is between the two ends of the machine's transactions, in an assembly file: on every way
//! that jumps may take from a beginning to an end, in whatever order the lines are. Ways that
//! values exclude are ways here, too, so none is missed, and what is complained of may be on none
//! that is taken. What makes a transaction fail at times only, as the fault of a page or too many
//! lines, is seen where transactions are counted (`benches/tests/arrays.rs`).

use super::graph::{Graph, mnemonic};
use super::listing::Function;

/// Instructions that make every transaction fail, or may lead to one that does (Intel's manual,
/// volume 1, 16.3.8.1; `vzeroupper` where it was measured).
const ENDS: &[&str] = &[
    "call",
    "cli",
    "clflush",
    "clflushopt",
    "clwb",
    "cpuid",
    "emms",
    "in",
    "int",
    "int3",
    "into",
    "invd",
    "monitor",
    "mwait",
    "out",
    "pause",
    "popf",
    "popfq",
    "rdpmc",
    "sti",
    "syscall",
    "sysenter",
    "vzeroall",
    "vzeroupper",
    "wbinvd",
    "xabort",
];
/// What their names begin with: of x87, past the caches, of the state of the CPU.
const KINDS: &[&str] = &["f", "movnt", "vmovnt", "xsave", "xrstor"];

fn may_end(code: &str) -> bool {
    let name = mnemonic(code);
    let mut words = code.split(|letter: char| !letter.is_ascii_alphanumeric());
    let is_mmx =
        |word: &str| word.strip_prefix("mm").is_some_and(|rest| rest.parse::<u8>().is_ok());
    ENDS.contains(&name)
        || KINDS.iter().any(|kind| name.starts_with(kind))
        || words.any(is_mmx)
        || is_blind_jump(code)
}

/// Whether it jumps to where a register or memory says: perhaps to an end.
fn is_blind_jump(code: &str) -> bool {
    let to = code.strip_prefix("jmp ");
    to.is_some_and(|to| to.contains('[') || to.starts_with('r') && to.len() <= 3)
}

/// Instructions of a function, and which may follow each.
struct Flow {
    codes: Vec<String>,
    next: Vec<Vec<usize>>,
}

impl Flow {
    fn of(function: &Function) -> Self {
        let blocks = Graph::build(function).blocks;
        let mut starts = Vec::new();
        let mut codes = Vec::new();
        for block in &blocks {
            starts.push(codes.len());
            codes.extend(block.instructions.iter().cloned());
        }
        let mut next: Vec<Vec<usize>> = (1..=codes.len()).map(|at| vec![at]).collect();
        for (block, start) in blocks.iter().zip(&starts) {
            if let Some(last) = block.instructions.len().checked_sub(1) {
                // A block without instructions is the last one.
                let first = block.next.iter().map(|block| starts[*block]);
                next[start + last] = first.filter(|first| *first < codes.len()).collect();
            }
        }
        Self { codes, next }
    }

    fn is(&self, at: usize, name: &str) -> bool {
        mnemonic(&self.codes[at]) == name
    }

    /// What may follow `from` before another transaction begins, or one ends: that is the last.
    fn reached(&self, from: usize) -> Vec<bool> {
        let mut seen = vec![false; self.codes.len()];
        let mut open = self.next[from].clone();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut seen[at], true)
                && !self.is(at, "xend")
                && !self.is(at, "xbegin")
            {
                open.extend(&self.next[at]);
            }
        }
        seen
    }

    /// Whether it is followed by an end, no other beginning between.
    fn is_ended(&self, at: usize) -> bool {
        let reached = self.reached(at);
        (0..self.codes.len()).any(|other| reached[other] && self.is(other, "xend"))
    }
}

/// How many transactions there are, none of which has such an instruction between its ends; else
/// one complaint for each that has one, or if there is none at all.
pub(super) fn check(text: &str) -> Result<usize, Vec<String>> {
    let mut complaints = Vec::new();
    let mut count = 0;
    for function in Function::all(text) {
        let flow = Flow::of(&function);
        for begin in (0..flow.codes.len()).filter(|at| flow.is(*at, "xbegin")) {
            let symbol = &function.symbol;
            let reached = flow.reached(begin);
            let is_between = |at: &usize| {
                let code = &flow.codes[*at];
                reached[*at] && may_end(code) && (is_blind_jump(code) || flow.is_ended(*at))
            };
            let between = (0..flow.codes.len()).filter(is_between);
            let found: Vec<&str> = between.map(|at| flow.codes[at].as_str()).collect();
            if !found.is_empty() {
                let found = found.join("`, `");
                complaints.push(format!("{symbol}: `{found}` in a transaction"));
            } else if !flow.is_ended(begin) {
                complaints.push(format!("{symbol}: a transaction has no end"));
                continue;
            }
            count += 1;
        }
    }
    if count == 0 {
        complaints.push("there are no transactions".to_owned());
    }
    if complaints.is_empty() { Ok(count) } else { Err(complaints) }
}

#[cfg(test)]
mod tests {
    use super::check;

    const RIGHT: &str = "kernel:\n xbegin .L1\n.L1:\n cmp eax, -1\n je .L3\n.L2:\n vzeroupper\n \
         ret\n.L3:\n vmovups ymm1, [rdi]\n jne .L3\n xend\n jmp .L2\n";

    #[test]
    fn what_is_not_begun_may_do_anything() {
        assert_eq!(check(RIGHT), Ok(1));
        assert_eq!(check(&RIGHT.repeat(3)), Ok(3));
    }

    /// What is behind the end in the file, and before it when it runs.
    #[test]
    fn ways_are_followed_and_not_lines() {
        let away = RIGHT.replace(" jne .L3\n xend\n", " jne .L4\n.L5:\n xend\n");
        assert_eq!(check(&format!("{away}.L4:\n inc rax\n jmp .L5\n")), Ok(1));
        let told = check(&format!("{away}.L4:\n cpuid\n jmp .L5\n")).unwrap_err();
        assert_eq!(told, ["kernel: `cpuid` in a transaction"]);
        // Behind one that failed another is begun.
        let again = "kernel:\n.L1:\n xbegin .L2\n.L2:\n jne .L3\n xend\n ret\n.L3:\n \
             call slow\n jmp .L1\n";
        assert_eq!(check(again), Ok(1));
    }

    #[test]
    fn what_ends_a_transaction_is_found() {
        for ends in [
            "vzeroupper",
            "call combine",
            "syscall",
            "fld st(0)",
            "movd eax, mm1",
            "jmp rax",
            "jmp qword ptr [rax]",
        ] {
            let wrong = RIGHT.replace(" jne", &format!(" {ends}\n jne"));
            let told = vec![format!("kernel: `{ends}` in a transaction")];
            assert_eq!(check(&wrong), Err(told));
        }
        assert_eq!(check("a:\n xbegin .L1\nb:\n xend\n").unwrap_err().len(), 2);
        assert_eq!(check("a:\n ret\n").unwrap_err(), ["there are no transactions"]);
    }
}
