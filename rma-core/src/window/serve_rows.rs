//! The target's side of puts and gets with layouts.
use super::Part;
use super::near::Held;
use crate::memory::strided::{Area, Row};
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rows::{BadRows, Rows};
use crate::transport::{Transport, WorldRank};
use crate::universe::Process;

impl<T: Transport> Process<T> {
    pub(super) fn serve_get_rows(
        &self,
        from: WorldRank,
        head: &Head,
        body: &[u8],
        part: &Part<T>,
    ) -> bool {
        let packed = match part.get_rows(head, body, self.body_max()) {
            Ok(packed) => packed,
            Err(status) => {
                self.reply(from, &head.reply(Kind::Data, status), &[]);
                return status != Status::Malformed;
            }
        };
        let mut reply = head.reply(Kind::Data, Status::Ok);
        // In the origin's buffer.
        reply.offset = 0.into();
        self.reply(from, &reply, &packed);
        true
    }
}

impl<T: Transport> Part<T> {
    fn rows<'m>(&self, head: &Head, body: &'m [u8]) -> Result<(Rows<'m>, &'m [u8]), Status> {
        let rows = Rows::parse(body, head.tag.get(), head.length.get(), self.reach());
        rows.map_err(|bad| match bad {
            BadRows::Malformed => Status::Malformed,
            BadRows::OutOfRange => Status::OutOfRange,
        })
    }

    /// Bytes that hold the rows, and where in the part they begin.
    fn around(&self, rows: Rows<'_>) -> Result<(Held<'_>, u64), Status> {
        // In a dynamic window, within one region.
        let (low, high) = if self.regions.is_some() { rows.hull() } else { (0, self.size) };
        let held = self.span(low, high.saturating_sub(low) as usize);
        Ok((held.ok_or(Status::OutOfRange)?, low))
    }

    pub(super) fn put_rows(&self, head: &Head, body: &[u8]) -> Result<u64, Status> {
        let (rows, data) = self.rows(head, body)?;
        if data.len() as u64 != head.length.get() {
            return Err(Status::Malformed);
        }
        let (held, low) = self.around(rows)?;
        let area = Area::new(held.get());
        for (row, packed) in with_packed(rows, low) {
            area.write_row(row, data, packed);
        }
        Ok(0)
    }

    /// The bytes of the rows, packed: as many as one message takes.
    fn get_rows(&self, head: &Head, body: &[u8], body_max: usize) -> Result<Vec<u8>, Status> {
        let bytes = head.length.get();
        if bytes == 0 || bytes > body_max as u64 {
            return Err(Status::Malformed);
        }
        let (rows, rest) = self.rows(head, body)?;
        if !rest.is_empty() {
            return Err(Status::Malformed);
        }
        let (held, low) = self.around(rows)?;
        let area = Area::new(held.get());
        let mut data = vec![0; bytes as usize];
        for (row, packed) in with_packed(rows, low) {
            area.read_row(row, &mut data, packed);
        }
        Ok(data)
    }
}

/// Each row, counted from `low`, and where its bytes are in the packed data.
fn with_packed(rows: Rows<'_>, low: u64) -> impl Iterator<Item = (Row, Row)> {
    let mut at = 0i64;
    rows.iter().map(move |row| {
        let packed = Row { at, stride: row.len.cast_signed(), ..row };
        // The sum was checked against the length of the data.
        at = at.wrapping_add_unsigned(row.len * row.count);
        // Every row begins behind the lowest byte of all.
        (Row { at: row.at.wrapping_sub_unsigned(low), ..row }, packed)
    })
}
