//! Two ranks that put to each other in turn, and wait for the value.
use crate::Result;
use crate::bench::{Bench, row};
use crate::hop::{Flags, await_at_least};
use crate::machine::cpu_ns;
use crate::raw::Raw;
use crate::record::Unit;
use rma::{Op, Rank, Window};
use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    if world.size() != 2 {
        return Err("this benchmark is for 2 ranks".into());
    }
    let window = world.window(Flags::BYTES, 1).allocate()?;
    round_trip(bench, "put + flush, wait_until, and back", &window)?;
    idle(bench, &window)?;
    window.free()?;
    let far = world.window(Flags::BYTES, 1).hint("rma_path", "messages")?.allocate()?;
    round_trip(bench, "the same by messages", &far)?;
    Ok(far.free()?)
}

/// A round trip of a value, by words of the parts that wait for it.
fn round_trip(bench: &mut Bench<'_>, name: &str, window: &Window) -> Result<()> {
    let world = bench.world();
    let (flags_window, other) = (world.window(Flags::BYTES, 1).allocate()?, world.rank().0 ^ 1);
    let flags = Flags::new(&Raw::new(&bench.part(&flags_window, Rank(0))?));
    let (is_first, other) = (bench.is_first(), Rank(other));
    let (count, raw_count) = (Cell::new(0u64), Cell::new(0));
    let view = window.local();
    let epoch = window.lock_all()?;
    let turn = |wait: &dyn Fn(u64) -> std::result::Result<(), rma::RmaError>| {
        count.set(count.get() + 1);
        if !is_first {
            wait(count.get())?;
        }
        epoch.put(other, 0, &[count.get()])?;
        epoch.flush(other)?;
        if is_first { wait(count.get()) } else { Ok(()) }
    };
    let mut raw = |n| {
        for _ in 0..n {
            raw_count.set(raw_count.get() + 1);
            let (mine, theirs) =
                if is_first { (flags.request, flags.reply) } else { (flags.reply, flags.request) };
            if !is_first {
                await_at_least(theirs, raw_count.get());
            }
            // pairs with the other rank's `await_at_least`.
            mine.store(raw_count.get(), Release);
            if is_first {
                await_at_least(theirs, raw_count.get());
            }
        }
        Ok(())
    };
    let by_hand = |value| {
        while view.load::<u64>(0)? < value {
            window.progress();
            spin_loop();
        }
        Ok(())
    };
    let awaited = |value| view.wait_until(0, |seen: u64| seen >= value).map(drop);
    world.barrier()?;
    bench.together(
        row(name).bytes(8),
        &mut |n| Ok((0..n).try_for_each(|_| turn(&awaited))?),
        &mut [
            ("2 flags in turn", &mut raw),
            ("by hand", &mut |n| Ok((0..n).try_for_each(|_| turn(&by_hand))?)),
        ],
    )?;
    epoch.unlock()?;
    Ok(flags_window.free()?)
}

/// What a rank costs that waits for a value which does not come.
fn idle(bench: &mut Bench<'_>, window: &Window) -> Result<()> {
    let world = bench.world();
    let long = if bench.is_smoke() { Duration::from_millis(50) } else { Duration::from_secs(1) };
    world.barrier()?;
    let before = cpu_ns();
    window.local().wait_until_for(8, long, |value: u64| value != 0)?;
    let worst = world.allreduce(&[cpu_ns() - before], Op::Max)?[0];
    let name = format!("CPU time of waiting for a value that does not come in {long:?}");
    bench.note(row(name), Unit::Nanoseconds, &[worst as f64])
}
