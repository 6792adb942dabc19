//! Making windows.
use crate::Result;
use crate::bench::{Bench, row};

const SIZES: [usize; 2] = [4 << 10, 1 << 20];
const ROUNDS: usize = 51;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    bench.set_rounds(ROUNDS);
    for bytes in SIZES {
        bench.together(
            row("allocate + free").bytes(bytes),
            &mut |n| {
                for _ in 0..n {
                    world.window(bytes, 1).allocate()?.free()?;
                }
                Ok(())
            },
            &mut [],
        )?;
    }
    Ok(())
}
