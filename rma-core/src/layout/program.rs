//! What a layout is compiled to: loops over runs of bytes, in the order of the type map.
use crate::layout::Row;
use crate::layout::error::{LayoutError, fits};
use std::sync::Arc;

/// Levels of loops that do not merge.
pub(super) const DEPTH_MAX: u32 = 64;

/// Bytes, relative to where the node stands. S-J1
#[derive(Debug, Clone)]
pub(super) enum Loop {
    /// That many bytes, at least one.
    Run(u64),
    /// Two or more of the same. S-J2
    Repeat { count: u64, stride: i64, body: Arc<Loop> },
    /// Position and length of two or more runs.
    Runs(Arc<[(i64, u64)]>),
    /// Position and kind of two or more nodes.
    Seq(Arc<[(i64, Loop)]>),
}

/// A node and where it stands: all bytes of a layout that has some. S-J5
#[derive(Debug, Clone)]
pub(super) struct LoopBody {
    pub(super) at: i64,
    pub(super) node: Loop,
    pub(super) depth: u32,
}

impl LoopBody {
    pub(super) fn run(len: u64) -> Self {
        Self { at: 0, node: Loop::Run(len), depth: 0 }
    }

    /// The run that this is, if it is one.
    #[inline]
    pub(super) fn solid(&self) -> Option<u64> {
        match self.node {
            Loop::Run(len) => Some(len),
            _ => None,
        }
    }

    /// All bytes as one row, if they are.
    pub(super) fn row(&self) -> Option<Row> {
        let at = self.at;
        match &self.node {
            Loop::Run(len) => Some(Row { at, stride: 0, len: *len, count: 1 }),
            Loop::Repeat { count, stride, body } => match **body {
                Loop::Run(len) => Some(Row { at, stride: *stride, len, count: *count }),
                _ => None,
            },
            Loop::Runs(_) | Loop::Seq(_) => None,
        }
    }

    pub(super) fn shifted(self, by: i64) -> Result<Self, LayoutError> {
        Ok(Self { at: fits(self.at.checked_add(by), "a displacement")?, ..self })
    }

    /// `count` copies at distances of `stride`; the number of bytes was checked.
    pub(super) fn repeated(self, count: u64, stride: i64) -> Result<Option<Self>, LayoutError> {
        let node = match self.node {
            _ if count == 0 => return Ok(None),
            node if count == 1 => node,
            Loop::Run(len) if u64::try_from(stride) == Ok(len) => {
                Loop::Run(fits(len.checked_mul(count), "the size")?)
            }
            Loop::Repeat { count: inner, stride: step, body }
                if inner.checked_mul(count).is_some() && is_next(inner, step, stride) =>
            {
                Loop::Repeat { count: inner * count, stride: step, body }
            }
            node => {
                let depth = one_deeper(self.depth)?;
                let node = Loop::Repeat { count, stride, body: Arc::new(node) };
                return Ok(Some(Self { node, depth, ..self }));
            }
        };
        Ok(Some(Self { node, ..self }))
    }

    /// One after the other.
    pub(super) fn sequence(parts: Vec<Self>) -> Result<Option<Self>, LayoutError> {
        let mut all: Vec<(i64, Loop)> = Vec::new();
        let mut depth = 0;
        for part in parts {
            depth = depth.max(part.depth);
            match (all.last_mut(), &part.node) {
                (Some((at, Loop::Run(len))), Loop::Run(more))
                    if at.checked_add_unsigned(*len) == Some(part.at) =>
                {
                    *len = fits(len.checked_add(*more), "the size")?;
                }
                _ => all.push((part.at, part.node)),
            }
        }
        if all.len() < 2 {
            return Ok(all.pop().map(|(at, node)| Self { at, node, depth }));
        }
        let runs: Option<Arc<[(i64, u64)]>> = all.iter().map(as_run).collect();
        match runs {
            None => {
                let node = Loop::Seq(all.into());
                Ok(Some(Self { at: 0, node, depth: one_deeper(depth)? }))
            }
            Some(runs) => Ok(Some(Self::of_runs(runs))),
        }
    }

    fn of_runs(runs: Arc<[(i64, u64)]>) -> Self {
        let (first, len) = runs[0];
        let stride = runs[1].0.checked_sub(first);
        let regular = stride.is_some_and(|stride| {
            runs.windows(2)
                .all(|pair| pair[1].1 == len && pair[1].0.checked_sub(pair[0].0) == Some(stride))
        });
        match stride {
            Some(stride) if regular => {
                let body = Arc::new(Loop::Run(len));
                let node = Loop::Repeat { count: runs.len() as u64, stride, body };
                Self { at: first, node, depth: 1 }
            }
            _ => Self { at: 0, node: Loop::Runs(runs), depth: 1 },
        }
    }
}

fn as_run((at, node): &(i64, Loop)) -> Option<(i64, u64)> {
    match node {
        Loop::Run(len) => Some((*at, *len)),
        _ => None,
    }
}

/// Whether a loop at distances of `stride` goes on where `count` steps of `step` end.
pub(super) fn is_next(count: u64, step: i64, stride: i64) -> bool {
    i64::try_from(count).ok().and_then(|count| count.checked_mul(step)) == Some(stride)
}

fn one_deeper(depth: u32) -> Result<u32, LayoutError> {
    let deeper = depth + 1;
    if deeper > DEPTH_MAX { Err(LayoutError::TooDeep { limit: DEPTH_MAX }) } else { Ok(deeper) }
}
