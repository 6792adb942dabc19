//! One function of an assembly file, as labels and instructions.

use crate::workspace::Result;

/// A line that matters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// `.LBB0_1`, or a numeric label of inline assembly: `2`.
    Label(String),
    /// Mnemonic and operands, without comment.
    Instruction(String),
}

/// A function body.
#[derive(Debug)]
pub(super) struct Function {
    /// Its mangled name.
    pub(super) symbol: String,
    /// Its lines, in order.
    pub(super) lines: Vec<Line>,
}

impl Function {
    /// All functions.
    pub(super) fn all(text: &str) -> Vec<Self> {
        let mut all = Vec::<Self>::new();
        let mut inside = false;
        for line in text.lines() {
            if let Some(symbol) = line.strip_suffix(':').filter(|label| is_symbol(label)) {
                all.push(Self { symbol: symbol.into(), lines: Vec::new() });
                inside = true;
            } else if line.starts_with(".Lfunc_end") {
                inside = false;
            } else if let Some(last) = all.last_mut().filter(|_| inside) {
                last.lines.extend(line.split(';').filter_map(parse));
            }
        }
        all
    }

    /// The one function whose mangled name ends in `name`, but for a hash or generic arguments.
    pub(super) fn find(text: &str, name: &str) -> Result<Self> {
        let mangled = format!("{}{name}", name.len());
        let symbols: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_suffix(':'))
            .filter(|label| is_symbol(label))
            .filter(|label| is_symbol_of(label, &mangled, name))
            .collect();
        let alias = || text.lines().find_map(|line| merged(line, &mangled, name));
        match symbols.as_slice() {
            [symbol] => Ok(Self { symbol: (*symbol).into(), lines: body(text, symbol) }),
            [] if let Some(symbol) = alias() => {
                Ok(Self { symbol: symbol.into(), lines: body(text, symbol) })
            }
            [] => Err(format!(
                "no function {name} in the assembly: it must be `#[inline(never)]`, not generic, \
                 and used by the example's main"
            )
            .into()),
            several => Err(format!("several functions {name}: {}", several.join(", ")).into()),
        }
    }
}

/// Whether a label is no local one.
fn is_symbol(label: &str) -> bool {
    !label.starts_with(['.', ' ', '\t']) && !label.starts_with(|first: char| first.is_ascii_digit())
}

fn is_symbol_of(label: &str, mangled: &str, name: &str) -> bool {
    let tail = label.split_once(mangled).map(|(_, tail)| tail);
    // v0 mangling ends here; legacy mangling adds a hash of 16 digits and an `E`.
    let is_hash = |tail: &str| tail.starts_with("17h") && tail.len() == 20 && tail.ends_with('E');
    label == name || tail.is_some_and(|tail| tail.is_empty() || is_hash(tail))
}

/// The symbol of which this function is another name: the compiler merges equal ones.
fn merged<'l>(line: &'l str, mangled: &str, name: &str) -> Option<&'l str> {
    let (symbol, same) = line.trim_start().strip_prefix(".set")?.trim_start().split_once(", ")?;
    is_symbol_of(symbol, mangled, name).then_some(same.trim_end())
}

fn body(text: &str, symbol: &str) -> Vec<Line> {
    let start = |line: &&str| line.strip_suffix(':') != Some(symbol);
    let lines = text.lines().skip_while(start).skip(1);
    let inside = lines.take_while(|line| !line.starts_with(".Lfunc_end"));
    inside.flat_map(|line| line.split(';')).filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Line> {
    let code = line.split('#').next()?.trim();
    if let Some(label) = code.strip_suffix(':') {
        return Some(Line::Label(label.into()));
    }
    if code.is_empty() || code.starts_with('.') {
        return None;
    }
    Some(Line::Instruction(code.split_whitespace().collect::<Vec<_>>().join(" ")))
}
