//! A region stays attached while there is a view of it.
use rma::{Attached, RmaError, Window};

fn misuse(window: &Window, attached: Attached<Vec<u64>>) -> Result<u64, RmaError> {
    let view = window.region(&attached)?;
    let _memory = window.detach(attached)?;
    view.load(0)
}

fn main() {}
