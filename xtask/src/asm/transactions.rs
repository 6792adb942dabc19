//! What is between the two ends of the machine's transactions, in an assembly file: in the order of
//! its lines. What the compiler moves behind the end, or reaches by a jump, is not seen here; it is
//! where transactions are counted (`benches/tests/arrays.rs`).

/// Instructions that make every transaction fail, or may lead to one that does.
const ENDS: [&str; 3] = ["vzeroupper", "call", "syscall"];

/// How many transactions there are, none of which has such an instruction between its ends; else
/// one complaint for each that has one, or if there is none at all.
pub(super) fn check(text: &str) -> Result<usize, Vec<String>> {
    let mut complaints = Vec::new();
    let mut count = 0;
    let mut label = "";
    // What the open transaction has had so far: of its present block, and of those before.
    let mut open: Option<(Vec<&str>, Vec<&str>)> = None;
    for line in text.lines() {
        let instruction = line.trim();
        let mnemonic = instruction.split_whitespace().next().unwrap_or_default();
        if !line.starts_with([' ', '\t', '.']) && instruction.ends_with(':') {
            label = instruction;
            if open.take().is_some() {
                complaints.push(format!("before {label} a transaction has no end"));
            }
        }
        match (&mut open, mnemonic) {
            (None, "xbegin") => open = Some(Default::default()),
            (Some((block, before)), "xend") => {
                before.append(block);
                if !before.is_empty() {
                    let found = before.join("`, `");
                    complaints.push(format!("{label} has `{found}` in a transaction"));
                }
                count += 1;
                open = None;
            }
            // What leads out of the function is the way of those that were not begun.
            (Some((block, _)), "ret") => block.clear(),
            (Some((block, before)), _) if mnemonic.ends_with(':') => before.append(block),
            (Some((block, _)), _) if ENDS.contains(&mnemonic) => block.push(instruction),
            _ => (),
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

    #[test]
    fn what_ends_a_transaction_is_found() {
        for ends in ["vzeroupper", "call combine", "syscall"] {
            let wrong = RIGHT.replace(" jne", &format!(" {ends}\n jne"));
            let told = vec![format!("kernel: has `{ends}` in a transaction")];
            assert_eq!(check(&wrong), Err(told));
        }
        assert_eq!(check("a:\n xbegin .L1\nb:\n xend\n").unwrap_err().len(), 2);
        assert_eq!(check("a:\n ret\n").unwrap_err(), ["there are no transactions"]);
    }
}
