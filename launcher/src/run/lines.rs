//! Cutting output into whole lines where that is possible in bounded memory, and adding nothing.

use std::collections::VecDeque;

/// What can be printed now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Whole lines with their labels; at most the last one has no end.
    pub(super) bytes: Vec<u8>,
    /// The beginning of its first line was in the piece before; it has no label.
    pub(super) continues: bool,
}

/// Collects what a rank prints until it is whole lines, or too much of one.
#[derive(Debug)]
pub(super) struct Lines {
    label: Vec<u8>,
    /// What was not passed on of a line without an end.
    open: Vec<u8>,
    /// The beginning of that line was passed on.
    begun: bool,
    /// As many bytes of a line are passed on without its end.
    limit: usize,
}

impl Lines {
    pub(super) fn new(label: Option<u32>, limit: usize) -> Lines {
        let label = label.map_or_else(Vec::new, |rank| format!("[{rank}] ").into_bytes());
        Lines { label, open: Vec::new(), begun: false, limit }
    }

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
        let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            self.open.extend_from_slice(bytes);
            return if self.open.len() >= self.limit { self.rest() } else { Piece::default() };
        };
        let (whole, rest) = bytes.split_at(last + 1);
        let continues = self.begun;
        let mut piece = Vec::with_capacity(self.open.len() + bytes.len());
        if self.label.is_empty() {
            piece.append(&mut self.open);
            piece.extend_from_slice(whole);
            self.begun = false;
        } else {
            for line in whole.split_inclusive(|byte| *byte == b'\n') {
                self.begin(&mut piece);
                piece.extend_from_slice(line);
                self.begun = false;
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
        let mut lines = Lines::new(Some(12), 100);
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
        let mut lines = Lines::new(Some(1), 4);
        assert_eq!(lines.push(b"abc"), piece(b"", false));
        assert_eq!(lines.push(b"def"), piece(b"[1] abcdef", false));
        assert_eq!(lines.push(b"gh"), piece(b"", false));
        assert_eq!(lines.push(b"ij\nklmno"), piece(b"ghij\n[1] klmno", true));
        assert_eq!(lines.push(b"\n"), piece(b"\n", true));
        assert_eq!(lines.rest(), piece(b"", false));
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
            let mut lines = Lines::new(None, limit);
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
            let mut lines = Lines::new(Some(3), limit);
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
