//! A thread that asked for a lock waits for it, or gives it up, before the window goes.
fn main() {
    rma::local(2, |universe| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let request = window.request_lock(rma::Rank(1), rma::LockKind::Shared).unwrap();
        window.free().unwrap();
        drop(request);
    })
    .unwrap();
}
