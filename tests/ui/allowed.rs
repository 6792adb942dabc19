//! What looks like the programs beside it and is right.
use rma::bytemuck::{Pod, Zeroable};
use rma::{Assert, LockKind, Op, Rank, RmaError, Window};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Pair {
    key: u64,
    value: f64,
}

fn right(window: Window) -> Result<Window, RmaError> {
    let epoch = window.lock_all()?;
    let (origin, mut result) = (vec![1u64; 9], vec![0u64; 9]);
    epoch.ops(|ops| {
        ops.put(Rank(1), 0, &origin)?;
        ops.get(Rank(2), 0, &mut result)
    })?;
    result[0] = origin[0];
    epoch.put(Rank(0), 0, &[Pair { key: 1, value: 0.5 }])?;
    let request = epoch.rget(Rank(1), 0, result)?;
    epoch.unlock()?;
    let _result = request.wait()?;

    let lock = window.lock(Rank(0), LockKind::Exclusive)?;
    lock.fetch_and_op(0, Op::Sum, 1u32)?;
    lock.unlock()?;

    let epoch = window.fence(Assert::NONE)?;
    let epoch = epoch.next(Assert::NO_PRECEDE)?;
    epoch.end()?;

    let exposure = window.post(&[Rank(0)], Assert::NONE)?;
    let epoch = window.start(&[Rank(1)], Assert::NONE)?;
    epoch.put(Rank(1), 0, &[1u64])?;
    epoch.complete()?;
    match exposure.test() {
        Ok(ended) => ended?,
        Err(exposure) => exposure.wait()?,
    }

    let mut sealed = window.seal()?;
    sealed.bytes_mut().fill(0);
    sealed.unseal()
}
