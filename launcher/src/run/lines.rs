//! Cutting output into whole lines where that is possible in bounded memory, and adding nothing.

use std::collections::VecDeque;

use super::stamp::{self, Clock};

/// What can be printed now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Whole lines with their labels; at most the last one has no end.
    pub(super) bytes: Vec<u8>,
    /// The beginning of its first line was in the piece before; it has no label.
    pub(super) continues: bool,
}

/// What goes in front of each line of a rank: the time of its first byte, its label.
#[derive(Debug, Default)]
pub(super) struct Front {
    clock: Option<Clock>,
    label: Vec<u8>,
}

impl Front {
    pub(super) fn new(clock: Option<Clock>, label: Option<u32>) -> Front {
        let label = label.map_or_else(Vec::new, |rank| format!("[{rank}] ").into_bytes());
        Front { clock, label }
    }

    /// Nothing goes there.
    pub(super) fn is_empty(&self) -> bool {
        self.clock.is_none() && self.label.is_empty()
    }

    /// Of a line that begins now.
    fn of_now(&self) -> Vec<u8> {
        match self.clock {
            Some(clock) => [stamp::written(clock()).as_bytes(), b" ", &self.label].concat(),
            None => self.label.clone(),
        }
    }
}

/// Collects what a rank prints until it is whole lines, or too much of one.
#[derive(Debug)]
pub(super) struct Lines {
    front: Front,
    /// That of the first byte that was not passed on.
    label: Vec<u8>,
    /// What was not passed on of a line without an end.
    open: Vec<u8>,
    /// The beginning of that line was passed on.
    begun: bool,
    /// As many bytes of a line are passed on without its end.
    limit: usize,
}

impl Lines {
    pub(super) fn new(front: Front, limit: usize) -> Lines {
        Lines { front, label: Vec::new(), open: Vec::new(), begun: false, limit }
    }

    /// Whether something goes in front of each line.
    pub(super) fn is_marked(&self) -> bool {
        !self.front.is_empty()
    }

    /// What goes in front of the rest of a line, should another one have come in between.
    pub(super) fn label(&self) -> &[u8] {
        &self.label
    }

    /// Whether something waits for the end of its line.
    pub(super) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the beginning of a line was passed on, and its end was not.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Takes what was printed; returns what can be passed on.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Piece {
        let label = self.front.of_now();
        if self.open.is_empty() {
            self.label.clone_from(&label);
        }
        let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            self.open.extend_from_slice(bytes);
            return if self.open.len() >= self.limit { self.rest() } else { Piece::default() };
        };
        let (whole, rest) = bytes.split_at(last + 1);
        let continues = self.begun;
        let mut piece = Vec::with_capacity(self.open.len() + bytes.len());
        if label.is_empty() {
            piece.append(&mut self.open);
            piece.extend_from_slice(whole);
            self.begun = false;
        } else {
            for line in whole.split_inclusive(|byte| *byte == b'\n') {
                self.begin(&mut piece);
                piece.extend_from_slice(line);
                self.begun = false;
                self.label.clone_from(&label);
            }
        }
        self.open.extend_from_slice(rest);
        if self.waits() && self.open.len() >= self.limit {
            self.begin(&mut piece);
        }
        Piece { bytes: piece, continues }
    }

    /// What there is of the last line, without its end.
    pub(super) fn rest(&mut self) -> Piece {
        let continues = self.begun;
        let mut bytes = Vec::new();
        if self.waits() {
            self.begin(&mut bytes);
        }
        Piece { bytes, continues }
    }

    /// Passes on what there is of a line.
    fn begin(&mut self, piece: &mut Vec<u8>) {
        if !self.begun {
            piece.extend_from_slice(&self.label);
        }
        piece.append(&mut self.open);
        self.begun = true;
    }
}

/// The end of what was printed.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<u8>);

impl Tail {
    /// Bytes kept.
    pub(super) const LEN: usize = 8 << 10;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(Tail::LEN)..];
        let excess = (self.0.len() + bytes.len()).saturating_sub(Tail::LEN);
        self.0.drain(..excess);
        self.0.extend(bytes);
    }

    /// Whether the last line has no end yet.
    pub(super) fn is_cut(&self) -> bool {
        self.0.back().is_some_and(|last| *last != b'\n')
    }

    /// Whole lines of it, as text.
    pub(super) fn text(&self) -> String {
        let (front, back) = self.0.as_slices();
        let bytes = [front, back].concat();
        let cut = if bytes.len() < Tail::LEN {
            0
        } else {
            bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1)
        };
        String::from_utf8_lossy(&bytes[cut..]).into_owned()
    }
}

/// The last lines of what was printed, to follow a line of the launcher.
pub(super) fn last_lines(text: &str) -> String {
    const LINES: usize = 5;
    let lines: Vec<_> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LINES));
    last.map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(bytes: &[u8], continues: bool) -> Piece {
        Piece { bytes: bytes.to_vec(), continues }
    }

    #[test]
    fn lines_come_out_whole_and_labelled() {
        let mut lines = Lines::new(Front::new(None, Some(12)), 100);
        assert_eq!(lines.push(b"one\ntw"), piece(b"[12] one\n", false));
        assert_eq!(lines.push(b"o"), piece(b"", false));
        assert_eq!(lines.push(b"\n\nthree"), piece(b"[12] two\n[12] \n", false));
        assert!(lines.waits() && !lines.is_begun());
        assert_eq!(lines.rest(), piece(b"[12] three", false));
        assert!(!lines.waits() && lines.is_begun());
        assert_eq!(lines.rest(), piece(b"", true));
        assert_eq!(lines.push(b" four\nfive\n"), piece(b" four\n[12] five\n", true));
        assert!(!lines.is_begun());
    }

    #[test]
    fn long_lines_are_passed_on_in_pieces() {
        let mut lines = Lines::new(Front::new(None, Some(1)), 4);
        assert_eq!(lines.push(b"abc"), piece(b"", false));
        assert_eq!(lines.push(b"def"), piece(b"[1] abcdef", false));
        assert_eq!(lines.push(b"gh"), piece(b"", false));
        assert_eq!(lines.push(b"ij\nklmno"), piece(b"ghij\n[1] klmno", true));
        assert_eq!(lines.push(b"\n"), piece(b"\n", true));
        assert_eq!(lines.rest(), piece(b"", false));
    }

    /// A clock that goes on by a second at each look.
    fn ticking() -> std::time::Duration {
        thread_local!(static TICKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
        TICKS.set(TICKS.get() + 1);
        std::time::Duration::from_secs(TICKS.get())
    }

    #[test]
    fn a_line_begins_with_the_time_of_its_first_byte_and_then_its_label() {
        let of = |second: u32, text: &str| format!("1970-01-01T00:00:0{second}.000Z [3] {text}");
        let mut lines = Lines::new(Front::new(Some(ticking), Some(3)), 100);
        assert_eq!(lines.push(b"na"), Piece::default());
        assert_eq!(lines.push(b"me? "), Piece::default());
        assert_eq!(lines.rest(), piece(of(1, "name? ").as_bytes(), false), "a prompt");
        assert_eq!(
            lines.push(b"me\na\nb\nc"),
            piece(["me\n", &of(3, "a\n"), &of(3, "b\n")].concat().as_bytes(), true,)
        );
        assert_eq!(lines.push(b"c\nd"), piece(of(3, "cc\n").as_bytes(), false));
        assert_eq!(lines.rest(), piece(of(4, "d").as_bytes(), false));
        // Should another rank print meanwhile, what follows begins a line of its own.
        assert_eq!(lines.push(b"e"), Piece::default());
        assert_eq!(lines.rest(), piece(b"e", true));
        assert_eq!(lines.label(), of(5, "").as_bytes());
        let mut plain = Lines::new(Front::new(Some(ticking), None), 0);
        assert_eq!(plain.push(b"x\n"), piece(b"1970-01-01T00:00:06.000Z x\n", false));
    }

    #[test]
    fn the_tail_is_bounded_and_starts_with_a_line() {
        let mut tail = Tail::default();
        tail.push(b"short\n");
        assert_eq!((tail.text().as_str(), tail.is_cut()), ("short\n", false));
        tail.push(b"sho");
        assert!(tail.is_cut());
        tail.push(b"rt\n");
        assert!(!tail.is_cut());
        for number in 0..10_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.starts_with("line ") && text.ends_with("line 9999\n"), "{text}");
        assert!(text.len() <= Tail::LEN);
        tail.push(&[b'x'; Tail::LEN * 2]);
        assert_eq!(tail.text().len(), Tail::LEN);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added(pieces: Vec<Vec<u8>>, limit in 0usize..9) {
            let mut lines = Lines::new(Front::default(), limit);
            let mut out = Vec::new();
            for piece in &pieces {
                out.extend(lines.push(piece).bytes);
                prop_assert!(lines.open.len() < limit.max(1), "bounded");
            }
            out.extend(lines.rest().bytes);
            prop_assert_eq!(out, pieces.concat());
        }

        #[test]
        fn each_line_has_one_label(pieces: Vec<Vec<u8>>, limit in 0usize..9) {
            let mut lines = Lines::new(Front::new(None, Some(3)), limit);
            let mut out = Vec::new();
            for piece in &pieces {
                out.extend(lines.push(piece).bytes);
            }
            out.extend(lines.rest().bytes);
            let all = pieces.concat();
            let labelled: Vec<u8> = all
                .split_inclusive(|byte| *byte == b'\n')
                .flat_map(|line| [b"[3] ", line].concat())
                .collect();
            prop_assert_eq!(out, labelled);
        }
    }
}
