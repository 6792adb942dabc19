//! Which bytes of a buffer, or of a target's part, an operation is about: one run of them, or those
//! of a layout.
use crate::layout::{Cursor, PlacedLayout, Row, pack};
use crate::protocol::rows::WireRow;
use bytemuck::cast_slice;
use std::borrow::Cow;

/// Bytes of one side of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side<'l> {
    /// So many, one behind the other.
    Bytes { at: u64, len: u64 },
    /// As a layout arranges them.
    Layout(PlacedLayout<'l>),
}

impl<'l> From<PlacedLayout<'l>> for Side<'l> {
    fn from(placed: PlacedLayout<'l>) -> Self {
        Self::Layout(placed)
    }
}

impl<'l> Side<'l> {
    /// All of a buffer.
    pub(crate) fn dense(len: usize) -> Self {
        Self::Bytes { at: 0, len: len as u64 }
    }

    /// How many bytes; `None` if that is not a number of bytes.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes { len, .. } => Some(*len),
            Self::Layout(placed) => placed.bytes(),
        }
    }

    /// The same, `offset` bytes further on; `None` if that is no place.
    pub(crate) fn placed(self, offset: u64) -> Option<Self> {
        Some(match self {
            Self::Bytes { at, len } => Self::Bytes { at: at.checked_add(offset)?, len },
            Self::Layout(placed) => {
                Self::Layout(placed.starting_at(placed.start().checked_add(offset)?))
            }
        })
    }

    /// The same in memory that begins at `begin` of what positions count from.
    pub(crate) fn counted_from(self, begin: u64) -> Self {
        match self {
            Self::Bytes { at, len } => Self::Bytes { at: at.wrapping_sub(begin), len },
            // Negative if position 0 of the layout lies before its first byte.
            Self::Layout(placed) => {
                Self::Layout(placed.starting_at(placed.start().wrapping_sub(begin)))
            }
        }
    }

    /// Where position 0 is.
    pub(crate) fn start(&self) -> u64 {
        match self {
            Self::Bytes { at, .. } => *at,
            Self::Layout(placed) => placed.start(),
        }
    }

    /// Lowest and highest position touched, the latter exclusive; `None` if nothing is.
    pub(crate) fn hull(&self) -> Option<(i128, i128)> {
        match self {
            Self::Bytes { len: 0, .. } => None,
            Self::Bytes { at, len } => Some((i128::from(*at), i128::from(*at) + i128::from(*len))),
            Self::Layout(placed) => placed.wide_span(),
        }
    }

    /// Whether every element begins at a multiple of `align` in a buffer that begins at `base`.
    pub(crate) fn is_aligned(&self, base: u64, align: usize) -> bool {
        match self {
            Self::Bytes { at, .. } => base.wrapping_add(*at).is_multiple_of(align as u64),
            Self::Layout(placed) => placed.is_aligned(base, align),
        }
    }

    /// How many runs of bytes.
    pub(crate) fn runs(&self) -> u64 {
        if let Self::Bytes { len, .. } = self {
            return u64::from(*len > 0);
        }
        let mut cursor = self.cursor();
        core::iter::from_fn(|| cursor.take(u64::MAX)).map(|row| row.count).sum()
    }

    /// The bytes in order.
    pub(crate) fn cursor(&self) -> Cursor<'l> {
        match self {
            Self::Bytes { at, len } => Cursor::dense(*at, *len),
            Self::Layout(placed) => Cursor::new(*placed),
        }
    }
}

/// What one message of an operation may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceRoom {
    /// Bytes of payload.
    pub(crate) body: usize,
    /// Bytes at the target that it may be about.
    pub(crate) bytes: u64,
    /// Whether these travel in it.
    pub(crate) carried: bool,
    /// Elements of this width stay whole.
    pub(crate) width: u64,
}

/// The bytes of one message.
#[derive(Default)]
pub(crate) struct Piece {
    /// Where they begin, if they lie one behind the other.
    pub(crate) at: u64,
    /// Otherwise, where they lie.
    pub(crate) rows: Vec<WireRow>,
    pub(crate) bytes: u64,
}

/// The bytes at the target, cut into what messages hold.
pub(crate) enum Pieces<'l> {
    Dense { at: u64, left: u64 },
    Rows(Cursor<'l>),
}

/// Bytes of the widest element that is not cut.
const WIDTH_MAX: u64 = 16;

impl<'l> Pieces<'l> {
    pub(crate) fn new(there: Side<'l>) -> Self {
        match there {
            Side::Bytes { at, len } => Self::Dense { at, left: len },
            Side::Layout(_) => Self::Rows(there.cursor()),
        }
    }

    /// As many bytes as there is room for; none at the end.
    pub(crate) fn next(&mut self, room: PieceRoom) -> Piece {
        match self {
            Self::Dense { at, left } => {
                let limit =
                    if room.carried { room.bytes.min(room.body as u64) } else { room.bytes };
                let whole = (limit / room.width).max(1) * room.width;
                let piece = Piece { at: *at, rows: Vec::new(), bytes: whole.min(*left) };
                (*at, *left) = (*at + piece.bytes, *left - piece.bytes);
                piece
            }
            Self::Rows(cursor) => Self::next_rows(cursor, room),
        }
    }

    /// The next bytes, at most `limit`, in blocks of the same length; `None` at the end.
    pub(crate) fn next_row(&mut self, limit: u64) -> Option<Row> {
        match self {
            Self::Dense { left: 0, .. } => None,
            Self::Dense { at, left } => {
                let len = limit.min(*left);
                let row = Row { at: at.cast_signed(), stride: 0, len, count: 1 };
                (*at, *left) = (*at + len, *left - len);
                Some(row)
            }
            Self::Rows(cursor) => cursor.take(limit),
        }
    }

    fn next_rows(cursor: &mut Cursor<'_>, room: PieceRoom) -> Piece {
        let mut piece = Piece::default();
        loop {
            let rows = (piece.rows.len() as u64 + 1) * WireRow::LEN as u64;
            // There is room for one row, whatever a transport's messages hold.
            let body = (room.body as u64).max(WireRow::LEN as u64 + WIDTH_MAX);
            let limit = match body.checked_sub(rows) {
                None => 0,
                Some(_) if !room.carried => room.bytes - piece.bytes,
                Some(left) => left.saturating_sub(piece.bytes).min(room.bytes - piece.bytes),
            };
            let Some(row) = cursor.take(limit - limit % room.width) else { return piece };
            piece.bytes += row.len * row.count;
            piece.rows.push(WireRow::new(row).expect("cut to the size of a message"));
        }
    }
}

impl Piece {
    /// The body of a message that carries the next bytes of `source`: the rows, and behind them
    /// these.
    pub(crate) fn body<'o>(&self, source: &mut Cursor<'_>, origin: &'o [u8]) -> Cow<'o, [u8]> {
        if self.rows.is_empty()
            && let Some(at) = source.take_solid(self.bytes)
        {
            return Cow::Borrowed(&origin[at as usize..][..self.bytes as usize]);
        }
        let mut body = cast_slice(&self.rows[..]).to_vec();
        let rows = body.len();
        body.resize(rows + self.bytes as usize, 0);
        pack(source, origin, &mut body[rows..]);
        Cow::Owned(body)
    }
}
