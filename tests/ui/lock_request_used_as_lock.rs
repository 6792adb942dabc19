//! A lock that was asked for is none before `wait` or `test` has given it.
fn main() {
    rma::local(2, |universe| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let request = window.request_lock(rma::Rank(1), rma::LockKind::Shared).unwrap();
        request.put(0, &[1u64]).unwrap();
    })
    .unwrap();
}
