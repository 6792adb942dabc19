//! Elements at places of which nothing is known beforehand.
use crate::element::Element;
use crate::layout::bounds::Bounds;
use crate::layout::program::{Loop, LoopBody};
use crate::layout::signature::Fingerprint;
use crate::layout::{Compiled, Geometry, Layout};
use std::sync::Arc;

impl Layout {
    /// One element of type `E` at each of these positions in bytes, in their order. A place may be
    /// named twice: the caller says what comes of that.
    ///
    /// No element ends beyond `i64::MAX / 2`; the caller has checked that.
    pub(crate) fn scattered<E: Element>(positions: &[u64]) -> Self {
        let (len, align) = (size_of::<E>() as u64, align_of::<E>() as i64);
        let (Some(first), true) = (positions.first(), len > 0) else { return Self::nothing() };
        let (mut low, mut high, mut steps) = (*first, *first, 0);
        for at in positions {
            (low, high) = (low.min(*at), high.max(*at));
            steps |= at.wrapping_sub(*first);
        }
        let data = Some((low.cast_signed(), (high + len).cast_signed()));
        let bounds = Bounds { data, align, steps, ..Bounds::NONE };
        let runs: Arc<[(i64, u64)]> = positions.iter().map(|at| (at.cast_signed(), len)).collect();
        let node = Loop::Runs(runs);
        Self {
            inner: Arc::new(Compiled {
                size: len * positions.len() as u64,
                bounds,
                extent: bounds.extent(),
                fingerprint: Fingerprint::of::<E>().repeated(positions.len() as u64),
                overlaps: false,
                part: Some(LoopBody { at: 0, node, depth: 1 }),
                geometry: Geometry::NOTHING,
            }),
        }
    }
}
