//! Which bytes of a part a message is about: one range, or rows.
use super::message::Head;
use super::wire::{I64, U32, U64};
use crate::layout::Row;
use bytemuck::{Pod, Zeroable, cast_slice};

/// A [`Row`], at an offset in bytes of the target's part.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WireRow {
    at: U64,
    stride: I64,
    len: U32,
    count: U32,
}

impl WireRow {
    /// Bytes of a row in a message.
    pub(crate) const LEN: usize = size_of::<Self>();

    /// `None` if the row has more than 32 bits of bytes: it is cut first.
    pub(crate) fn new(row: Row) -> Option<Self> {
        Some(Self {
            at: u64::try_from(row.at).ok()?.into(),
            stride: row.stride.into(),
            len: u32::try_from(row.len).ok()?.into(),
            count: u32::try_from(row.count).ok()?.into(),
        })
    }

    #[cfg(test)]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }

    fn row(&self) -> Option<Row> {
        let (len, count) = (u64::from(self.len.get()), u64::from(self.count.get()));
        let at = i64::try_from(self.at.get()).ok()?;
        Some(Row { at, stride: self.stride.get(), len, count })
    }
}

/// The rows of a message, checked against the part that they are about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rows<'m> {
    /// Bytes one behind the other, as the header says.
    Dense(Row),
    Many(&'m [WireRow]),
}

/// Why rows were refused; nothing was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadRows {
    /// They do not parse, or do not add up to what the message says.
    Malformed,
    /// A byte lies outside the part.
    OutOfRange,
}

impl<'m> Rows<'m> {
    /// The rows that a message names, and what follows them in its payload. All lie inside a part
    /// of `size` bytes, none is empty, and they have as many bytes together as the header says.
    pub(crate) fn parse(
        head: &Head,
        body: &'m [u8],
        size: u64,
    ) -> Result<(Self, &'m [u8]), BadRows> {
        let (offset, bytes) = (head.offset.get(), head.length.get());
        if head.tag.get() > 0 {
            return Self::parse_many(body, head.tag.get(), bytes, size);
        }
        if bytes == 0 {
            return Err(BadRows::Malformed);
        }
        let at = i64::try_from(offset).map_err(|_| BadRows::OutOfRange)?;
        let row = Row { at, stride: 0, len: bytes, count: 1 };
        if row.fits(size) { Ok((Self::Dense(row), body)) } else { Err(BadRows::OutOfRange) }
    }

    fn parse_many(
        body: &'m [u8],
        count: u32,
        bytes: u64,
        size: u64,
    ) -> Result<(Self, &'m [u8]), BadRows> {
        let len = (count as usize).checked_mul(WireRow::LEN);
        let parsed = len.and_then(|len| body.split_at_checked(len));
        let (rows, rest) = parsed.ok_or(BadRows::Malformed)?;
        let rows: &[WireRow] = cast_slice(rows);
        let mut total = 0u64;
        for row in rows {
            let row = row.row().filter(|row| row.len * row.count > 0);
            let row = row.ok_or(BadRows::Malformed)?;
            let sum = total.checked_add(row.len * row.count);
            total = sum.filter(|sum| *sum <= bytes).ok_or(BadRows::Malformed)?;
            if !row.fits(size) {
                return Err(BadRows::OutOfRange);
            }
        }
        if total == bytes { Ok((Self::Many(rows), rest)) } else { Err(BadRows::Malformed) }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Row> {
        let (dense, many) = match self {
            Self::Dense(row) => (Some(row), &[][..]),
            Self::Many(rows) => (None, rows),
        };
        dense.into_iter().chain(many.iter().filter_map(WireRow::row))
    }

    /// The first byte, and the one behind the last.
    pub(crate) fn hull(self) -> (u64, u64) {
        self.iter().fold((u64::MAX, 0), |(low, high), row| {
            // Checked to lie inside the part.
            let last = row.count.saturating_sub(1).cast_signed();
            let reach = row.stride.wrapping_mul(last);
            let first = row.at.wrapping_add(reach.min(0)).cast_unsigned();
            let end = row.at.wrapping_add(reach.max(0)).wrapping_add_unsigned(row.len);
            (low.min(first), high.max(end.cast_unsigned()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;
    use super::*;
    use proptest::prelude::*;

    const ROW: Row = Row { at: 10, stride: -4, len: 2, count: 3 };

    fn head(count: u32, bytes: u64) -> Head {
        let mut head = Head::new(Kind::Put, 0, count);
        head.length = bytes.into();
        head
    }

    fn body(rows: &[Row]) -> Vec<u8> {
        let rows: Vec<_> = rows.iter().filter_map(|row| WireRow::new(*row)).collect();
        cast_slice(&rows).to_vec()
    }

    #[test]
    fn rows_round_trip() {
        let rows = [ROW, Row { at: 40, stride: 0, len: 7, count: 1 }];
        let mut bytes = body(&rows);
        assert_eq!(bytes.len(), 2 * WireRow::LEN);
        bytes.extend([9, 8]);
        let (parsed, rest) = Rows::parse(&head(2, 13), &bytes, 47).unwrap();
        assert_eq!(parsed.iter().collect::<Vec<_>>(), rows);
        assert_eq!(rest, [9, 8]);
        assert_eq!(parsed.hull(), (2, 47));
        assert!(WireRow::new(Row { at: -1, ..ROW }).is_none());
        assert!(WireRow::new(Row { len: 1 << 32, ..ROW }).is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |row: Row, count, bytes, size| {
            Rows::parse(&head(count, bytes), &body(&[row]), size).map(|_| ()).unwrap_err()
        };
        assert_eq!(refused(ROW, 2, 6, 100), BadRows::Malformed, "fewer rows than it says");
        assert_eq!(refused(ROW, u32::MAX, 6, 100), BadRows::Malformed);
        assert_eq!(refused(ROW, 1, 5, 100), BadRows::Malformed, "more bytes than it says");
        assert_eq!(refused(ROW, 1, 7, 100), BadRows::Malformed, "less");
        assert_eq!(refused(ROW, 1, 6, 11), BadRows::OutOfRange, "past the end");
        assert_eq!(refused(Row { at: 7, ..ROW }, 1, 6, 100), BadRows::OutOfRange, "below 0");
        assert_eq!(refused(Row { len: 0, ..ROW }, 1, 0, 100), BadRows::Malformed);
        assert_eq!(refused(Row { count: 0, ..ROW }, 1, 0, 100), BadRows::Malformed);
        assert_eq!(refused(Row { stride: i64::MIN, ..ROW }, 1, 6, 100), BadRows::OutOfRange);
    }

    #[test]
    fn a_range_is_one_row() {
        let mut head = head(0, 6);
        head.offset = 10.into();
        let (rows, rest) = Rows::parse(&head, &[7], 16).unwrap();
        assert_eq!((rows.hull(), rows.iter().count(), rest), ((10, 16), 1, &[7][..]));
        assert_eq!(Rows::parse(&head, &[], 15).map(drop), Err(BadRows::OutOfRange));
        head.offset = u64::MAX.into();
        assert_eq!(Rows::parse(&head, &[], 16).map(drop), Err(BadRows::OutOfRange));
        head.length = 0.into();
        assert_eq!(Rows::parse(&head, &[], 16).map(drop), Err(BadRows::Malformed));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Whatever arrives: what is accepted lies inside and adds up.
        #[test]
        fn forged_rows_are_harmless(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            count in 0u32..5,
            total in 0u64..1000,
            size in 0u64..1000,
        ) {
            if let Ok((rows, _)) = Rows::parse(&head(count, total), &bytes, size) {
                prop_assert!(rows.iter().all(|row| row.fits(size)));
                prop_assert_eq!(rows.iter().map(|row| row.len * row.count).sum::<u64>(), total);
            }
        }
    }
}
