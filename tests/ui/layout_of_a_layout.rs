//! A layout of a layout of a buffer, the inner of which would be ignored.
use rma::{Layout, Rank};

fn main() {
    let ends = rma::local(1, |universe| {
        let window = universe.world().window(2, 8).allocate().unwrap();
        let (epoch, word) = (window.lock_all().unwrap(), Layout::element::<u64>());
        epoch.put(Rank(0), 0, word.of(word.of(&[1u64]))).unwrap();
    });
    ends.unwrap();
}
