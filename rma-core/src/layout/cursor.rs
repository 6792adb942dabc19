//! Walking through the bytes of layouts: the engine that all paths use.
use crate::layout::program::Loop;
use crate::layout::{PlacedLayout, Plane, Row};

/// Gives the bytes of a layout in the order of its type map, as rows.
///
/// Positions were checked when the layout was made, and their range before anything is done with
/// them; so arithmetic wraps here, and what comes out is in range.
pub(crate) struct Cursor<'l> {
    stack: Vec<Frame<'l>>,
    now: Row,
    /// The rest of a row whose first block was begun.
    then: Row,
    /// Whether `now` is all of what the loop on top of the stack repeats.
    whole: bool,
}

/// A loop that is under way.
struct Frame<'l> {
    step: LoopStep<'l>,
    base: i64,
    next: u64,
}

#[derive(Clone, Copy)]
enum LoopStep<'l> {
    Repeat { count: u64, stride: i64, body: &'l Loop },
    Runs(&'l [(i64, u64)]),
    Seq(&'l [(i64, Loop)]),
}

impl<'l> Cursor<'l> {
    /// One that gives `len` bytes at `at`.
    pub(crate) fn dense(at: u64, len: u64) -> Self {
        let now = Row { at: at.cast_signed(), stride: 0, len, count: u64::from(len > 0) };
        Self { stack: Vec::new(), now, then: Row::NONE, whole: false }
    }

    pub(crate) fn new(placed: PlacedLayout<'l>) -> Self {
        let mut cursor = Self::dense(0, 0);
        // Negative if position 0 lies before the bytes that positions count from.
        let start = placed.start.cast_signed();
        if let Some(row) = placed.row_from(start) {
            cursor.now = row;
        } else if let Some(part) = placed.part() {
            let (count, stride) = (placed.count, placed.layout.extent());
            let step = LoopStep::Repeat { count, stride, body: &part.node };
            cursor.stack.push(Frame { step, base: start.wrapping_add(part.at), next: 0 });
        }
        cursor
    }

    /// The row that a node is; otherwise it is next on the stack.
    #[inline]
    fn enter(&mut self, node: &'l Loop, base: i64) -> Option<Row> {
        let step = match node {
            Loop::Run(len) => return Some(Row { at: base, stride: 0, len: *len, count: 1 }),
            Loop::Repeat { count, stride, body } => {
                if let Loop::Run(len) = **body {
                    return Some(Row { at: base, stride: *stride, len, count: *count });
                }
                LoopStep::Repeat { count: *count, stride: *stride, body }
            }
            Loop::Runs(runs) => LoopStep::Runs(runs),
            Loop::Seq(nodes) => LoopStep::Seq(nodes),
        };
        self.stack.push(Frame { step, base, next: 0 });
        None
    }

    /// The next row of the program; `None` at its end.
    fn advance(&mut self) -> Option<Row> {
        loop {
            let frame = self.stack.last_mut()?;
            let next = frame.next;
            frame.next += 1;
            let base = frame.base;
            let (node, at) = match frame.step {
                LoopStep::Runs(runs) => match runs.get(next as usize) {
                    Some((at, len)) => {
                        let at = base.wrapping_add(*at);
                        return Some(Row { at, stride: 0, len: *len, count: 1 });
                    }
                    None => {
                        self.stack.pop();
                        continue;
                    }
                },
                LoopStep::Repeat { count, stride, body } if next < count => {
                    (body, stride.wrapping_mul(next.cast_signed()))
                }
                LoopStep::Seq(nodes) if next < nodes.len() as u64 => {
                    let (at, node) = &nodes[next as usize];
                    (node, *at)
                }
                LoopStep::Repeat { .. } | LoopStep::Seq(_) => {
                    self.stack.pop();
                    continue;
                }
            };
            if let Some(row) = self.enter(node, base.wrapping_add(at)) {
                return Some(row);
            }
        }
    }

    /// The row at hand: what is left of it.
    #[inline]
    fn peek(&mut self) -> Option<Row> {
        if self.now.count == 0 {
            self.whole = self.then.count == 0;
            self.now = match self.whole {
                true => self.advance()?,
                false => core::mem::replace(&mut self.then, Row::NONE),
            };
        }
        Some(self.now)
    }

    /// Passes over `count` blocks of `len` bytes: whole ones, or parts of the first.
    #[inline]
    fn consume(&mut self, len: u64, count: u64) {
        self.whole = false;
        let now = &mut self.now;
        if len == now.len {
            now.at = now.at.wrapping_add(now.stride.wrapping_mul(count.cast_signed()));
            now.count -= count;
            return;
        }
        let bytes = len * count;
        if now.count > 1 {
            let at = now.at.wrapping_add(now.stride);
            self.then = Row { at, count: now.count - 1, ..*now };
        }
        let left = now.len - bytes;
        let at = now.at.wrapping_add_unsigned(bytes);
        *now = Row { at, stride: 0, len: left, count: u64::from(left > 0) };
    }

    /// How often rows of the geometry of `row`, which are the next bytes, follow each other at
    /// equal distances, `row` included, and these distances.
    fn repeats(&self, row: Row) -> (u64, i64) {
        let (now, bytes) = (self.now, row.len * row.count);
        if now.matches(row) {
            return match self.stack.last() {
                Some(Frame { step: LoopStep::Repeat { count, stride, .. }, next, .. })
                    if self.whole =>
                {
                    (count - next + 1, *stride)
                }
                _ => (1, 0),
            };
        }
        match now.len {
            len if len == bytes => (now.count, now.stride),
            len if len == row.len => {
                (now.count / row.count, now.stride.wrapping_mul(row.count.cast_signed()))
            }
            len => (len / bytes, bytes.cast_signed()),
        }
    }

    /// Passes over rows of the geometry of `row`, as many as follow each other.
    fn consume_rows(&mut self, row: Row, times: u64) {
        let bytes = row.len * row.count;
        if times == 1 {
            return self.consume(row.len, row.count);
        }
        match self.now.len {
            _ if self.now.matches(row) => {
                if let Some(frame) = self.stack.last_mut() {
                    frame.next += times - 1;
                }
                self.now = Row::NONE;
            }
            len if len == bytes => self.consume(bytes, times),
            len if len == row.len => self.consume(len, row.count * times),
            _ => self.consume(bytes * times, 1),
        }
    }

    /// Where the next `bytes` are, if they lie in one block, which they are taken from.
    pub(crate) fn take_solid(&mut self, bytes: u64) -> Option<i64> {
        let row = self.peek().filter(|row| bytes > 0 && row.len >= bytes)?;
        self.consume(bytes, 1);
        Some(row.at)
    }

    /// The next bytes, at most `limit`, as a row; `None` at the end, or if `limit` is 0.
    #[inline]
    pub(crate) fn take(&mut self, limit: u64) -> Option<Row> {
        let row = self.peek().filter(|_| limit > 0)?;
        let taken = if row.len <= limit {
            Row { count: row.count.min(limit / row.len), ..row }
        } else {
            Row { stride: 0, len: limit, count: 1, ..row }
        };
        self.consume(taken.len, taken.count);
        Some(taken)
    }
}

/// The next bytes of two layouts of the same size, as planes of equal blocks; `None` at the end.
#[inline]
pub(crate) fn next_planes(a: &mut Cursor<'_>, b: &mut Cursor<'_>) -> Option<(Plane, Plane)> {
    let (x, y) = cut(a.peek()?, b.peek()?);
    let ((more_x, step_x), (more_y, step_y)) = match x.count {
        // One block at a time is soon found again.
        1 => ((1, 0), (1, 0)),
        _ => (a.repeats(x), b.repeats(y)),
    };
    let times = more_x.min(more_y);
    a.consume_rows(x, times);
    b.consume_rows(y, times);
    Some((Plane { row: x, step: step_x, times }, Plane { row: y, step: step_y, times }))
}

/// Two rows of as many bytes as such of equal blocks; `None` if it takes more.
#[inline(always)]
pub(crate) fn only_pair(x: Row, y: Row) -> Option<(Row, Row)> {
    let bytes = x.len.checked_mul(x.count)?;
    // Mostly one side is dense.
    if y.count == 1 && y.len == bytes {
        return Some((x, Row { at: y.at, stride: x.len.cast_signed(), ..x }));
    }
    if x.count == 1 && y.len.checked_mul(y.count)? == bytes {
        return Some((Row { at: x.at, stride: y.len.cast_signed(), ..y }, y));
    }
    // Their fields, so that the rows of the hot paths above need not be in memory.
    let ([x, y], whole) =
        cut_pair([x.at, y.at], [x.stride, y.stride], [x.len, y.len], [x.count, y.count]);
    (whole == bytes).then_some((x, y))
}

#[inline(never)]
fn cut_pair(at: [i64; 2], stride: [i64; 2], len: [u64; 2], count: [u64; 2]) -> ([Row; 2], u64) {
    let [x, y] = [0, 1].map(|i| Row { at: at[i], stride: stride[i], len: len[i], count: count[i] });
    let (x, y) = cut(x, y);
    ([x, y], x.len * x.count)
}

/// As much of two rows as has equal blocks: a longer block counts as several of the shorter length.
fn cut(x: Row, y: Row) -> (Row, Row) {
    let len = x.len.min(y.len);
    let whole = |row: Row| match row.len {
        same if same == len => row.count,
        // Far cheaper than to divide.
        more if len.is_power_of_two() => more >> len.trailing_zeros(),
        more => more / len,
    };
    let count = whole(x).min(whole(y));
    let cut = |row: Row| {
        let stride = if row.len == len { row.stride } else { len.cast_signed() };
        Row { at: row.at, stride, len, count }
    };
    (cut(x), cut(y))
}

/// Copies the next bytes of a layout, out of `origin`, to `packed`. The layout's range was
/// checked.
pub(crate) fn pack(cursor: &mut Cursor<'_>, origin: &[u8], mut packed: &mut [u8]) {
    while let Some(row) = cursor.take(packed.len() as u64) {
        for start in row.starts() {
            let block;
            (block, packed) = packed.split_at_mut(row.len as usize);
            copy(block, &origin[start as usize..][..row.len as usize]);
        }
    }
}

/// Deals `packed` to the next bytes of a layout in `origin`. The layout's range was checked.
pub(crate) fn unpack(cursor: &mut Cursor<'_>, mut packed: &[u8], origin: &mut [u8]) {
    while let Some(row) = cursor.take(packed.len() as u64) {
        for start in row.starts() {
            let block;
            (block, packed) = packed.split_at(row.len as usize);
            copy(&mut origin[start as usize..][..row.len as usize], block);
        }
    }
}

/// Copies a block; both have the same length.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    // For blocks of one element a call takes longer than the copy.
    match (<&mut [u8; 8]>::try_from(&mut *to), <&[u8; 8]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}
