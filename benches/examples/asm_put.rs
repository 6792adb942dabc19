//! Probes whose machine code `cargo xtask asm` counts: one operation each, on an open epoch.
use rma::{LockAll, Op, OwnedLockAll, Rank, RmaError};
use std::hint::black_box;
use std::sync::Arc;

/// A near put of eight bytes.
#[inline(never)]
pub fn rma_asm_probe_put(
    epoch: &LockAll<'_>,
    target: Rank,
    disp: u64,
    value: u64,
) -> Result<(), RmaError> {
    epoch.put(target, disp, &[value])
}

/// The same, of an epoch that is kept with its window. In another order of arguments: the compiler
/// makes one function of two that are equal.
#[inline(never)]
pub fn rma_asm_probe_kept_put(
    kept: &OwnedLockAll,
    value: u64,
    disp: u64,
    target: Rank,
) -> Result<(), RmaError> {
    kept.epoch().put(target, disp, &[value])
}

/// A near get of eight bytes.
#[inline(never)]
pub fn rma_asm_probe_get(
    epoch: &LockAll<'_>,
    target: Rank,
    disp: u64,
    value: &mut u64,
) -> Result<(), RmaError> {
    epoch.get(target, disp, std::slice::from_mut(value))
}

/// A near fetch-and-add of eight bytes.
#[inline(never)]
pub fn rma_asm_probe_fetch_add(
    epoch: &LockAll<'_>,
    target: Rank,
    disp: u64,
    operand: u64,
) -> Result<u64, RmaError> {
    epoch.fetch_and_op(target, disp, Op::Sum, operand)
}

/// Uses the probes, and checks that they do what they are named after.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let universe = rma::initialize()?;
    let window = universe.world().window(1, size_of::<u64>()).allocate()?;
    let epoch = window.lock_all()?;
    let target = black_box(Rank(0));
    // Nothing about the arguments may be known where the probes are compiled.
    let (disp, mut seen) = (black_box(0), 0);
    rma_asm_probe_put(&epoch, target, disp, black_box(41))?;
    let old = rma_asm_probe_fetch_add(&epoch, target, disp, black_box(1))?;
    rma_asm_probe_get(&epoch, target, disp, &mut seen)?;
    epoch.unlock()?;
    let kept = Arc::new(window).lock_all_owned()?;
    rma_asm_probe_kept_put(&kept, black_box(43), disp, target)?;
    let last: u64 = kept.epoch().fetch_and_op(target, disp, Op::NoOp, 0)?;
    let window = kept.unlock()?;
    Arc::into_inner(window).ok_or("the window is held elsewhere")?.free()?;
    universe.finalize()?;
    if (old, seen, last) != (41, 42, 43) {
        return Err(format!("41, 42 and 43 were expected, {old}, {seen} and {last} came").into());
    }
    Ok(())
}
