//! Large puts and gets, one way and both ways.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::raw::{HAS_NON_TEMPORAL, Raw};
use rma::{LockAll, Rank};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 6] = [64 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// From here on fewer batches do: each is long.
const LARGE: usize = 2 << 20;
const LARGE_ROUNDS: usize = 101;
/// How many limits there are: `memcpy`, and the non-temporal copy where there is one.
const LIMITS: usize = 1 + HAS_NON_TEMPORAL as usize;
/// Of what both do: as long as those of peers. A rank that sleeps in the barrier before is some
/// 50 µs behind the other one when it goes on, as long as a batch of one rank.
const BATCH_OF_BOTH: Duration = Duration::from_millis(2);
/// A large block that the C library's `malloc` gives begins so far behind the beginning of a page,
/// where the part lies: `rep movsb` is far slower then on some CPUs.
const MALLOC: usize = 16;
/// In times of the first limit.
const GOAL: f64 = 1.05;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(LARGEST, 1).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        Side { epoch: &epoch, target: TARGET, part: &part, is_both: false }.all(bench)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Both ranks to, and from, each other at the same time.
pub(super) fn both(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    if world.size() != 2 {
        return Err("this benchmark is for 2 ranks".into());
    }
    let window = world.window(LARGEST, 1).allocate()?;
    bench.set_batch(BATCH_OF_BOTH);
    let target = world.rank().on_ring(1, 2);
    let part = Raw::new(&bench.part(&window, target)?);
    let epoch = window.lock_all()?;
    Side { epoch: &epoch, target, part: &part, is_both: true }.all(bench)?;
    epoch.unlock()?;
    Ok(window.free()?)
}

/// A rank that transfers.
struct Side<'a, 'w> {
    epoch: &'a LockAll<'w>,
    target: Rank,
    part: &'a Raw<'w>,
    /// Each batch ends when both ranks are done.
    is_both: bool,
}

impl Side<'_, '_> {
    fn all(&self, bench: &mut Bench<'_>) -> Result<()> {
        let mut buffer = Aligned::new(7u8, LARGEST);
        for bytes in SIZES {
            if bytes >= LARGE {
                bench.set_rounds(LARGE_ROUNDS);
            }
            self.put(bench, &buffer[..bytes])?;
            self.get(bench, &mut buffer[..bytes])?;
            if bytes == SIZES[0] && !self.is_both {
                for bytes in [4 << 10, bytes] {
                    self.get_as_malloc_aligns(bench, &mut buffer[MALLOC..][..bytes])?;
                }
            }
        }
        Ok(())
    }

    fn put(&self, bench: &mut Bench<'_>, buffer: &[u8]) -> Result<()> {
        let Self { epoch, target, part, .. } = self;
        let mut ours = || {
            epoch.put(*target, 0, black_box(buffer))?;
            Ok(epoch.flush(*target)?)
        };
        let mut memcpy = || part.write_memcpy(black_box(buffer));
        let mut non_temporal = || part.write_non_temporal(black_box(buffer));
        let limits: [&mut dyn FnMut(); 2] = [&mut memcpy, &mut non_temporal];
        self.measure(bench, "put + flush", buffer.len(), &mut ours, limits)
    }

    fn get(&self, bench: &mut Bench<'_>, buffer: &mut [u8]) -> Result<()> {
        let Self { epoch, target, part, .. } = self;
        let bytes = buffer.len();
        // Every work reads into the same buffer, one at a time.
        let buffer = RefCell::new(buffer);
        let mut ours = || Ok(epoch.get(*target, 0, black_box(&mut **buffer.borrow_mut()))?);
        let mut memcpy = || part.read_memcpy(black_box(&mut buffer.borrow_mut()));
        let mut non_temporal = || part.read_non_temporal(black_box(&mut buffer.borrow_mut()));
        let limits: [&mut dyn FnMut(); 2] = [&mut memcpy, &mut non_temporal];
        self.measure(bench, "get", bytes, &mut ours, limits)
    }

    fn get_as_malloc_aligns(&self, bench: &mut Bench<'_>, buffer: &mut [u8]) -> Result<()> {
        let Self { epoch, target, part, .. } = self;
        let draft = row("get, as malloc aligns").bytes(buffer.len()).goal(GOAL);
        let buffer = RefCell::new(buffer);
        let get = || epoch.get(*target, 0, black_box(&mut **buffer.borrow_mut()));
        let memcpy = || part.read_memcpy(black_box(&mut buffer.borrow_mut()));
        bench.alone(
            draft,
            &mut |n| Ok((0..n).try_for_each(|_| get())?),
            &mut [("memcpy", &mut |n| {
                (0..n).for_each(|_| memcpy());
                Ok(())
            })],
        )
    }

    /// One transfer, next to `memcpy` and the non-temporal copy.
    fn measure(
        &self,
        bench: &mut Bench<'_>,
        name: &str,
        bytes: usize,
        ours: &mut dyn FnMut() -> Result<()>,
        [memcpy, non_temporal]: [&mut dyn FnMut(); 2],
    ) -> Result<()> {
        let (world, is_both) = (bench.world(), self.is_both);
        let end = || -> Result<()> {
            if is_both {
                world.barrier()?;
            }
            Ok(())
        };
        let mut ours = |n| {
            (0..n).try_for_each(|_| ours())?;
            end()
        };
        let mut memcpy = |n| {
            (0..n).for_each(|_| memcpy());
            end()
        };
        let mut non_temporal = |n| {
            (0..n).for_each(|_| non_temporal());
            end()
        };
        if is_both {
            let limits: &mut [(&str, Work<'_>)] =
                &mut [("memcpy by both", &mut memcpy), ("non-temporal by both", &mut non_temporal)];
            let draft = row(format!("{name} by both at once, each way")).bytes(bytes).goal(GOAL);
            bench.together(draft, &mut ours, &mut limits[..LIMITS])
        } else {
            let limits: &mut [(&str, Work<'_>)] =
                &mut [("memcpy", &mut memcpy), ("non-temporal", &mut non_temporal)];
            bench.alone(row(name).bytes(bytes).goal(GOAL), &mut ours, &mut limits[..LIMITS])
        }
    }
}
