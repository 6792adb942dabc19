//! Basic blocks of a function, which of them are cold, and the longest path through the rest.

use super::listing::{Function, Line};
use crate::workspace::Result;
use std::fmt::Write;

/// A block that calls or jumps to a symbol with one of these in its name is off the near path.
const COLD: &[&str] = &[
    "cold",
    "panic",
    "unwrap_failed",
    "expect_failed",
    "index_fail",
    "handle_alloc_error",
    "_Unwind_Resume",
];

/// Straight-line code.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// Labels that lead here.
    pub(super) labels: Vec<String>,
    /// What it executes.
    pub(super) instructions: Vec<String>,
    /// Blocks it continues with.
    pub(super) next: Vec<usize>,
    /// Symbols it calls or leaves for.
    calls: Vec<String>,
    /// It holds `ret`, or leaves for another function.
    returns: bool,
}

fn is_cold(symbol: &str) -> bool {
    COLD.iter().any(|part| symbol.contains(part))
}

impl Block {
    fn is_cold(&self) -> bool {
        self.calls.iter().any(|symbol| is_cold(symbol))
            || self.instructions.iter().any(|code| code == "ud2")
    }
}

/// The function as blocks; block 0 is its entry.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
}

impl Graph {
    /// Cuts the function into blocks and links them.
    pub(super) fn build(function: &Function) -> Self {
        let mut blocks = vec![Block::default()];
        let mut ended = false;
        for line in &function.lines {
            let current = blocks.len() - 1;
            match line {
                Line::Label(label) => {
                    if ended || !blocks[current].instructions.is_empty() {
                        blocks.push(Block::default());
                    }
                    ended = false;
                    let current = blocks.len() - 1;
                    blocks[current].labels.push(label.clone());
                }
                Line::Instruction(code) => {
                    if ended {
                        blocks.push(Block::default());
                    }
                    let current = blocks.len() - 1;
                    blocks[current].instructions.push(code.clone());
                    ended = mnemonic(code).starts_with('j') || ends(code);
                }
            }
        }
        let mut graph = Self { blocks };
        graph.link();
        graph
    }

    fn link(&mut self) {
        for index in 0..self.blocks.len() {
            let mut next = Vec::new();
            let mut calls = Vec::new();
            let mut returns = false;
            for code in &self.blocks[index].instructions {
                let operand = code.split_once(' ').map_or("", |(_, operand)| operand);
                match mnemonic(code) {
                    "call" => calls.push(operand.to_string()),
                    "ret" => returns = true,
                    jump if jump.starts_with('j') => match self.resolve(index, operand) {
                        Some(target) => next.push(target),
                        // Taken, this jump leaves the near path; not taken, it stays on it.
                        None if jump != "jmp" && is_cold(operand) => {}
                        None => {
                            calls.push(operand.to_string());
                            returns = true;
                        }
                    },
                    _ => {}
                }
            }
            let falls_through = !self.blocks[index].instructions.last().is_some_and(|c| ends(c));
            if falls_through && index + 1 < self.blocks.len() {
                next.push(index + 1);
            }
            let block = &mut self.blocks[index];
            (block.next, block.calls, block.returns) = (next, calls, returns);
        }
    }

    /// The block that a jump in block `from` names; none if it leaves the function.
    fn resolve(&self, from: usize, operand: &str) -> Option<usize> {
        let holds =
            |block: usize, label: &str| self.blocks[block].labels.iter().any(|l| l == label);
        let numeric = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit());
        if let Some(label) = operand.strip_suffix('b').filter(|label| numeric(label)) {
            return (0..=from).rev().find(|&block| holds(block, label));
        }
        if let Some(label) = operand.strip_suffix('f').filter(|label| numeric(label)) {
            return (from + 1..self.blocks.len()).find(|&block| holds(block, label));
        }
        (0..self.blocks.len()).find(|&block| holds(block, operand))
    }

    /// The longest way from the entry to a `ret` that meets no cold block.
    pub(super) fn near_path(&self) -> Result<Vec<usize>> {
        let mut state = vec![Visit::New; self.blocks.len()];
        self.longest_from(0, &mut state)?;
        let mut path = Vec::new();
        let mut at = Some(0);
        while let Some(block) = at {
            let Visit::Done(Some((_, next))) = state[block] else {
                return Err("every way to a `ret` is cold: the near path is lost".into());
            };
            path.push(block);
            at = next;
        }
        Ok(path)
    }

    /// Length of the longest near path that starts with `block`, and its second block.
    fn longest_from(&self, block: usize, state: &mut [Visit]) -> Result<Option<usize>> {
        match state[block] {
            Visit::Done(best) => return Ok(best.map(|(length, _)| length)),
            Visit::Open => {
                let labels = self.blocks[block].labels.join(" ");
                return Err(format!("the near path holds a loop at {labels}").into());
            }
            Visit::New => state[block] = Visit::Open,
        }
        let own = self.blocks[block].instructions.len();
        let mut best = None;
        if !self.blocks[block].is_cold() {
            best = self.blocks[block].returns.then_some((own, None));
            for &next in &self.blocks[block].next {
                let rest = self.longest_from(next, state)?;
                let found = rest.map(|rest| (own + rest, Some(next)));
                best = best.max(found);
            }
        }
        state[block] = Visit::Done(best);
        Ok(best.map(|(length, _)| length))
    }

    /// Every symbol called by a block that some near path meets.
    pub(super) fn near_calls(&self) -> Vec<&str> {
        let mut seen = vec![false; self.blocks.len()];
        let mut open = vec![0];
        let mut calls = Vec::new();
        while let Some(block) = open.pop() {
            if !std::mem::replace(&mut seen[block], true) && !self.blocks[block].is_cold() {
                calls.extend(self.blocks[block].calls.iter().map(String::as_str));
                open.extend(&self.blocks[block].next);
            }
        }
        calls
    }

    /// The path's instructions, numbered.
    pub(super) fn print(&self, path: &[usize], symbol: &str) -> String {
        let mut text = format!("near path of {symbol}:");
        let mut count = 0;
        for &index in path {
            let block = &self.blocks[index];
            for label in &block.labels {
                let _ = write!(text, "\n{label}:");
            }
            for code in &block.instructions {
                count += 1;
                let _ = write!(text, "\n{count:>4}  {code}");
            }
        }
        text
    }
}

/// How far the search for the longest path has come with a block.
#[derive(Debug, Clone, Copy)]
enum Visit {
    New,
    Open,
    /// Longest length and the block after this one, if a `ret` is reached.
    Done(Option<(usize, Option<usize>)>),
}

pub(super) fn mnemonic(code: &str) -> &str {
    code.split(' ').next().unwrap_or_default()
}

/// Nothing falls through this instruction.
fn ends(code: &str) -> bool {
    matches!(mnemonic(code), "ret" | "jmp" | "ud2")
}
