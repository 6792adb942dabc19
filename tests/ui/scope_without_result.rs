//! What a scope gives back is a result, so that errors inside go out with one `?`.
fn main() {
    rma::local(2, |universe| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        let value = [1u64];
        epoch.ops(|ops| {
            ops.put(rma::Rank(1), 0, &value).unwrap();
            7
        });
    })
    .unwrap();
}
