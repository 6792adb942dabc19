//! Cutting output into whole lines, in bounded memory.

use std::collections::VecDeque;

/// Collects what a rank prints until it is whole lines.
#[derive(Debug)]
pub(super) struct Lines {
    label: Vec<u8>,
    /// The beginning of a line, without its label.
    open: Vec<u8>,
    /// A longer line is broken in several.
    limit: usize,
}

impl Lines {
    pub(super) fn new(label: Option<u32>, limit: usize) -> Lines {
        let label = label.map_or_else(Vec::new, |rank| format!("[{rank}] ").into_bytes());
        Lines { label, open: Vec::new(), limit: limit.max(1) }
    }

    /// Takes what was printed; returns the lines that are whole now, with their labels.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.split_last() {
                Some((b'\n', line)) => {
                    self.append(line, &mut whole);
                    self.close(&mut whole);
                }
                _ => self.append(piece, &mut whole),
            }
        }
        whole
    }

    /// The last line, if its end is missing, with its end.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        if !self.open.is_empty() {
            self.close(&mut whole);
        }
        whole
    }

    fn append(&mut self, mut bytes: &[u8], whole: &mut Vec<u8>) {
        while self.open.len() + bytes.len() > self.limit {
            let (fits, rest) = bytes.split_at(self.limit - self.open.len());
            self.open.extend_from_slice(fits);
            self.close(whole);
            bytes = rest;
        }
        self.open.extend_from_slice(bytes);
    }

    fn close(&mut self, whole: &mut Vec<u8>) {
        whole.extend_from_slice(&self.label);
        whole.append(&mut self.open);
        whole.push(b'\n');
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_come_out_whole_and_labelled() {
        let mut lines = Lines::new(Some(12), 100);
        assert_eq!(lines.push(b"one\ntw"), b"[12] one\n");
        assert_eq!(lines.push(b"o"), b"");
        assert_eq!(lines.push(b"\n\nthree"), b"[12] two\n[12] \n");
        assert_eq!(lines.finish(), b"[12] three\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn long_lines_are_broken() {
        let mut lines = Lines::new(None, 4);
        assert_eq!(lines.push(b"abcdefghij"), b"abcd\nefgh\n");
        assert_eq!(lines.push(b"kl\nabcd\n"), b"ijkl\nabcd\n");
        assert_eq!(lines.finish(), b"");
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
        fn nothing_is_lost_or_added(pieces: Vec<Vec<u8>>) {
            let mut lines = Lines::new(None, usize::MAX / 2);
            let mut out = Vec::new();
            for piece in &pieces {
                out.extend(lines.push(piece));
            }
            out.extend(lines.finish());
            let mut all = pieces.concat();
            if all.last().is_some_and(|byte| *byte != b'\n') {
                all.push(b'\n');
            }
            prop_assert_eq!(out, all);
        }

        #[test]
        fn no_line_is_longer_than_the_limit(pieces: Vec<Vec<u8>>, limit in 1usize..9) {
            let mut lines = Lines::new(None, limit);
            let mut out = Vec::new();
            for piece in &pieces {
                out.extend(lines.push(piece));
            }
            out.extend(lines.finish());
            prop_assert!(out.split(|byte| *byte == b'\n').all(|line| line.len() <= limit));
            let joined = |bytes: &[u8]| -> Vec<u8> {
                bytes.iter().copied().filter(|byte| *byte != b'\n').collect()
            };
            prop_assert_eq!(joined(&out), joined(&pieces.concat()));
        }
    }
}
