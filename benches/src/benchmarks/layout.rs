//! Puts and gets with layouts.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::{Element, Layout};
use std::hint::black_box;

/// Blocks of one element with gaps of one, next to a loop by hand.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for blocks in [1 << 10, 1 << 20] {
        vector(bench, blocks, 1u8, "1 B blocks", Raw::write_every_other_byte)?;
        vector(bench, blocks / 8, 1u64, "8 B blocks", Raw::write_every_other_word)?;
    }
    Ok(())
}

/// Writes a slice to every other element of a part, by hand.
type ByHand<E> = fn(&Raw<'_>, &[E]);

fn vector<E: Element>(
    bench: &mut Bench<'_>,
    blocks: usize,
    element: E,
    name: &str,
    by_hand: ByHand<E>,
) -> Result<()> {
    let window = bench.world().window(2 * blocks, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let dense = Layout::of::<E>();
        let every_other = dense.vector(blocks as u64, 1, 2)?;
        let mut buffer = vec![element; blocks];
        let bytes = size_of_val(&buffer[..]);
        let epoch = window.lock_all()?;
        bench.alone(
            row(format!("put {name}")).bytes(bytes).goal(1.2),
            &mut |n| {
                for _ in 0..n {
                    let origin = black_box(&buffer[..]);
                    let from = dense.times(blocks as u64);
                    epoch.put_shaped(TARGET, 0, &every_other, origin, from)?;
                }
                Ok(())
            },
            &mut [("loop", &mut |n| {
                for _ in 0..n {
                    by_hand(&part, black_box(&buffer[..]));
                }
                Ok(())
            })],
        )?;
        bench.alone(
            row(format!("get {name}")).bytes(bytes),
            &mut |n| {
                for _ in 0..n {
                    let origin = black_box(&mut buffer[..]);
                    let to = dense.times(blocks as u64);
                    epoch.get_shaped(TARGET, 0, &every_other, origin, to)?;
                }
                Ok(())
            },
            &mut [],
        )?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}
