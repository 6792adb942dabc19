//! The scope's handle cannot be kept.
use rma::Window;

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut kept = None;
    epoch
        .ops(|ops| {
            kept = Some(ops);
            Ok(())
        })
        .unwrap();
    drop(kept);
}

fn main() {}
