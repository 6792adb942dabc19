//! Memory of origin and target while operations are outstanding. By messages, what bounds it are
//! the budgets of slots and credit, and not the number of operations.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::memory::{forget_peak, peak, resident};
use crate::record::Unit;
use rma::{LockAll, Op, Request, Window};
use std::hint::black_box;

const COUNTS: [u64; 4] = [1, 1_000, 100_000, 1_000_000];
const SMOKE: u64 = 1_000;
/// So many tell what each of them takes: pages are counted.
const MANY: u64 = 100_000;
/// Words of the window.
const WORDS: u64 = 1024;

/// How operations are issued, so many of them without a flush.
#[derive(Clone, Copy)]
enum Kind {
    Put,
    Accumulate,
    /// Its requests, each of which has its buffer in it, are kept until all are issued.
    Rput,
    /// As above.
    Rget,
}

/// Few requests, because the allocator keeps what they had.
const WARM_UP: [(Kind, u64); 4] =
    [(Kind::Put, SMOKE), (Kind::Accumulate, SMOKE), (Kind::Rput, 1), (Kind::Rget, 1)];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "puts",
            Self::Accumulate => "accumulates",
            Self::Rput => "rputs, kept with their buffers",
            Self::Rget => "rgets, kept with their buffers",
        }
    }

    fn keeps_requests(self) -> bool {
        matches!(self, Self::Rput | Self::Rget)
    }

    fn issue(self, epoch: &LockAll<'_>, count: u64) -> Result<()> {
        match self {
            Self::Put => {
                for i in 0..count {
                    epoch.put(TARGET, i % WORDS, &[i])?;
                }
            }
            Self::Accumulate => {
                for i in 0..count {
                    epoch.accumulate(TARGET, i % WORDS, Op::Sum, &[i])?;
                }
            }
            Self::Rput => {
                let put = |i| epoch.rput(TARGET, i % WORDS, [i]);
                let kept = (0..count).map(put).collect::<std::result::Result<Vec<_>, _>>()?;
                for request in black_box(kept) {
                    request.wait()?;
                }
            }
            Self::Rget => {
                let get = |i| epoch.rget(TARGET, i % WORDS, [i]);
                let kept = (0..count).map(get).collect::<std::result::Result<Vec<_>, _>>()?;
                for request in black_box(kept) {
                    request.wait()?;
                }
            }
        }
        Ok(epoch.flush(TARGET)?)
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let mut windows = Vec::new();
    for path in bench.ways()? {
        let builder = bench.world().window(WORDS as usize, 8);
        windows.push((path, builder.hint("rma_path", path)?.allocate()?));
    }
    // What is set up once is not counted.
    for (_, window) in &windows {
        for (kind, count) in WARM_UP {
            issue(bench, window, kind, count)?;
        }
    }
    let before = resident()?;
    let most = if bench.is_smoke() { SMOKE } else { u64::MAX };
    // Requests come last, and the most of them at the end: the allocator keeps what they had.
    for kinds in [[Kind::Put, Kind::Accumulate], [Kind::Rput, Kind::Rget]] {
        for (path, window) in &windows {
            for count in COUNTS.into_iter().filter(|count| *count <= most) {
                for kind in kinds {
                    growth(bench, (window, path), kind, count, before)?;
                }
            }
        }
    }
    windows.into_iter().try_for_each(|(_, window)| Ok(window.free()?))
}

/// The target waits in a barrier, and so serves.
fn issue(bench: &Bench<'_>, window: &Window, kind: Kind, count: u64) -> Result<()> {
    let world = bench.world();
    world.barrier()?;
    if bench.is_first() {
        let epoch = window.lock_all()?;
        kind.issue(&epoch, count)?;
        epoch.unlock()?;
    }
    Ok(world.barrier()?)
}

fn growth(
    bench: &mut Bench<'_>,
    (window, path): (&Window, &str),
    kind: Kind,
    count: u64,
    before: u64,
) -> Result<()> {
    forget_peak();
    issue(bench, window, kind, count)?;
    let grown = peak()?.saturating_sub(before);
    let all = bench.world().allgather(&[grown])?;
    for (side, grown) in ["origin", "target"].into_iter().zip(&all) {
        let name = format!("{side}, {count} {}, {path}", kind.name());
        bench.note(row(name), Unit::Bytes, &[*grown as f64])?;
    }
    if kind.keeps_requests() && count >= MANY {
        let each = all[0] as f64 / count as f64;
        let kept = size_of::<Request<'_, [u64; 1]>>();
        let name = format!("origin, each of {count} {}, {path}", kind.name());
        let limit = ("a handle and its buffer", &[kept as f64][..]);
        bench.note_beside(row(name), Unit::Bytes, &[each], &[limit])?;
    }
    Ok(())
}
