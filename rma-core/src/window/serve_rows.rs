//! The target's side of operations with layouts.
use super::Part;
use super::near::Held;
use super::serve_accumulate::Answer;
use crate::element::{BasicElement, BasicType, Visitor};
use crate::memory::strided::{Area, Row};
use crate::memory::target::Span;
use crate::memory::{accumulate, stripe};
use crate::ops::Op;
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rows::{BadRows, Rows};
use crate::transport::WorldRank;
use crate::universe::Process;

impl Process {
    pub(super) fn serve_get_rows(
        &self,
        from: WorldRank,
        head: &Head,
        body: &[u8],
        part: &Part,
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

impl Part {
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

    /// Combines rows with the operands behind them. `None` if a stripe is held by somebody:
    /// nothing happened then. S-H9
    pub(super) fn accumulate_rows(
        &self,
        kind: Kind,
        head: &Head,
        body: &[u8],
        body_max: usize,
    ) -> Result<Option<Answer>, Status> {
        let basic = BasicType::from_wire(head.basic).ok_or(Status::Malformed)?;
        let (op, fetches) = (Op::from_wire(head.op), kind == Kind::GetAccumulateRows);
        let op = op.filter(|op| basic.has(*op) && (*op != Op::NoOp || fetches));
        let op = op.ok_or(Status::Malformed)?;
        // The answer fits into one message, as the operands did.
        let bytes = usize::try_from(head.length.get()).ok();
        let bytes = bytes.filter(|bytes| *bytes > 0 && *bytes <= body_max.max(basic.width()));
        let bytes = bytes.ok_or(Status::Malformed)?;
        let (rows, operands) = self.rows(head, body)?;
        if operands.len() != if op == Op::NoOp { 0 } else { bytes } {
            return Err(Status::Malformed);
        }
        let (held, low) = self.around(rows)?;
        let part = held.get();
        if !with_packed(rows, low).all(|(row, _)| holds_elements(part, row, basic)) {
            return Err(Status::Malformed);
        }
        let _locked = if basic.is_atomic() {
            None
        } else {
            // Everything between the first byte and the last: more than needed, in one piece.
            let (first, end) = rows.hull();
            let block = self.block.get();
            match stripe::try_range(block, first, end - first, self.comm.rank()) {
                None => return Ok(None),
                locked => locked,
            }
        };
        let combine =
            CombineRows { part, rows, low, op, operands, result: if fetches { bytes } else { 0 } };
        let old = basic.visit(combine).ok_or(Status::Malformed)?;
        Ok(Some(if fetches { Answer::Bytes(old) } else { Answer::Done }))
    }
}

/// Whether the blocks of a row are whole elements, each aligned.
fn holds_elements(part: Span<'_>, row: Row, basic: BasicType) -> bool {
    let align = basic.align() as u64;
    let start = part.part(row.at as usize, 0);
    let aligned = start.is_some_and(|start| start.is_aligned(basic.align()));
    let steps = row.count == 1 || row.stride.unsigned_abs().is_multiple_of(align);
    aligned && steps && row.len.is_multiple_of(basic.width() as u64)
}

/// Combines rows; gives what was there.
struct CombineRows<'a> {
    part: Span<'a>,
    rows: Rows<'a>,
    /// Where in the window's part `part` begins.
    low: u64,
    op: Op,
    operands: &'a [u8],
    /// Bytes, 0 if nobody wants to know.
    result: usize,
}

impl Visitor for CombineRows<'_> {
    type Output = Vec<u8>;

    fn visit<E: BasicElement>(self) -> Vec<u8> {
        let Self { part, rows, low, op, .. } = self;
        let operands: Vec<E> = bytemuck::pod_collect_to_vec(self.operands);
        let mut old = vec![E::zeroed(); self.result / size_of::<E>()];
        let mut at = 0;
        for (row, _) in with_packed(rows, low) {
            let end = at + (row.len * row.count) as usize / size_of::<E>();
            let (operands, old) = (operands.get(at..end).unwrap_or_default(), old.get_mut(at..end));
            if E::BASIC.is_atomic() {
                accumulate::row_by_atomics(part, row, op, operands, old);
            } else {
                accumulate::row_under_lock(part, row, op, operands, old);
            }
            at = end;
        }
        bytemuck::cast_slice(&old).to_vec()
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
