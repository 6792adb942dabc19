//! Operations of no elements.
use rma::{Config, Op, Rank, local_with};

/// Nothing is combined anywhere, also where an element would not be aligned; on every path.
#[test]
fn nothing_is_not_misaligned() {
    for path in ["auto", "messages"] {
        let mut config = Config::default();
        config.hint("rma_path", path).unwrap();
        let ends = local_with(config, 2, |universe| {
            let window = universe.world().window(16, 1).allocate().unwrap();
            let epoch = window.lock_all().unwrap();
            for target in [Rank(0), Rank(1)] {
                for disp in [0, 3, 16] {
                    let none = [0u64; 0];
                    epoch.accumulate(target, disp, Op::Sum, &none).unwrap();
                    epoch.get_accumulate(target, disp, Op::Sum, &none, &mut [0u64; 0]).unwrap();
                    epoch.get_accumulate(target, disp, Op::NoOp, &none, &mut [0u64; 0]).unwrap();
                }
            }
            epoch.unlock().unwrap();
            universe.world().barrier().unwrap();
        });
        ends.unwrap();
    }
}
