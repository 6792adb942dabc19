//! Operations that messages perform, as networks will: bandwidth, how many a second, and what
//! order costs.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::{Raw, RawTarget, leaked};
use rma::{LockAll, Op, Window};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::Duration;

/// From one message to many, and to large puts that ask first.
const SIZES: [usize; 8] = [8, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// Requests under way at once.
const REQUESTS: u64 = 64;
/// Long enough for some round trips of each.
const BATCH: Duration = Duration::from_millis(1);
const ROUNDS: usize = 101;

/// The target waits in a barrier, and so serves messages.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let builder = bench.world().window(LARGEST, 1).hint("rma_path", "messages")?;
    let bytes = builder.allocate()?;
    let words = Words::new(bench)?;
    let there = RawTarget::of(leaked(size_of::<u64>()));
    let there = bench.world().allgather(&[there])?[usize::from(TARGET)];
    bench.set_rounds(ROUNDS);
    bench.set_batch(BATCH);
    if bench.is_first() {
        let part = Raw::new(&bench.part(&bytes, TARGET)?);
        let epoch = bytes.lock_all()?;
        let buffer = RefCell::new(vec![7u8; LARGEST]);
        SIZES.iter().try_for_each(|size| bandwidth(bench, &epoch, &part, &buffer, *size))?;
        under_way(bench, &epoch, there)?;
        epoch.unlock()?;
        words.accumulates(bench)?;
    }
    bench.world().barrier()?;
    words.free()?;
    Ok(bytes.free()?)
}

fn bandwidth(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    buffer: &RefCell<Vec<u8>>,
    bytes: usize,
) -> Result<()> {
    bench.alone(
        row("put + flush").bytes(bytes),
        &mut |n| {
            let buffer = buffer.borrow();
            for _ in 0..n {
                epoch.put(TARGET, 0, black_box(&buffer[..bytes]))?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [("memcpy", &mut |n| {
            let buffer = buffer.borrow();
            (0..n).for_each(|_| part.write_memcpy(black_box(&buffer[..bytes])));
            Ok(())
        })],
    )?;
    bench.alone(
        row("get").bytes(bytes),
        &mut |n| {
            let mut buffer = buffer.borrow_mut();
            (0..n).try_for_each(|_| Ok(epoch.get(TARGET, 0, black_box(&mut buffer[..bytes]))?))
        },
        &mut [("memcpy", &mut |n| {
            let mut buffer = buffer.borrow_mut();
            (0..n).for_each(|_| part.read_memcpy(black_box(&mut buffer[..bytes])));
            Ok(())
        })],
    )
}

/// Beside copies by the system, which are one at a time.
fn under_way(bench: &mut Bench<'_>, epoch: &LockAll<'_>, there: RawTarget) -> Result<()> {
    let mut buffers = vec![vec![7u64]; REQUESTS as usize];
    bench.alone(
        row(format!("rget, {REQUESTS} under way")).bytes(8),
        &mut |n| {
            let mut left = n;
            while left > 0 {
                let round = left.min(REQUESTS);
                left -= round;
                let get = |(i, buffer)| epoch.rget(TARGET, i * 8, buffer);
                let some = (0..).zip(buffers.drain(..round as usize));
                let requests = some.map(get).collect::<std::result::Result<Vec<_>, _>>()?;
                for request in requests {
                    buffers.push(request.wait()?);
                }
            }
            Ok(())
        },
        &mut [("process_vm_writev", &mut |n| {
            Ok((0..n).try_for_each(|i: u64| there.write(&i.to_ne_bytes()))?)
        })],
    )
}

/// Two windows of words: accumulates to the one keep their order, those to the other need not.
struct Words {
    ordered: Window,
    any_order: Window,
}

impl Words {
    fn new(bench: &Bench<'_>) -> Result<Self> {
        let builder = || bench.world().window(1, 8).hint("rma_path", "messages");
        let ordered = builder()?.allocate()?;
        let any_order = builder()?.hint("accumulate_ordering", "none")?.allocate()?;
        Ok(Self { ordered, any_order })
    }

    /// Many to one element.
    fn accumulates(&self, bench: &mut Bench<'_>) -> Result<()> {
        let (ordered, any_order) = (self.ordered.lock_all()?, self.any_order.lock_all()?);
        let accumulate = |epoch: &LockAll<'_>, n| -> Result<()> {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1u64)])?;
            }
            Ok(epoch.flush(TARGET)?)
        };
        bench.alone(
            row("accumulate to one element, in order").bytes(8).goal(1.1),
            &mut |n| accumulate(&ordered, n),
            &mut [("in any order", &mut |n| accumulate(&any_order, n))],
        )?;
        ordered.unlock()?;
        Ok(any_order.unlock()?)
    }

    fn free(self) -> Result<()> {
        self.ordered.free()?;
        Ok(self.any_order.free()?)
    }
}
