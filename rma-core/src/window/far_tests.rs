//! What a rank knows of its operations on far targets, and of those that it holds.
use super::Far;
use crate::engine::Pending;
use crate::memory::target::held;
use crate::rank::Rank;
use std::sync::Arc;

const OWN: Rank = Rank(1);

#[test]
fn only_another_target_that_is_locked_is_another_lock() {
    let far = Far::new(None);
    assert!(!far.any_locked_but(OWN));
    far.set_held(OWN, held::BY_LOCK);
    far.set_held(Rank(0), held::BY_START);
    far.set_held(Rank(2), held::LOCKING);
    assert!(!far.any_locked_but(OWN), "its own, one that is exposed, one that it waits for");
    assert!(far.any_locked_but(Rank(0)));
    for how in [held::BY_LOCK, held::UNCHECKED] {
        far.set_held(Rank(3), how);
        assert!(far.any_locked_but(OWN));
        far.set_held(Rank(3), held::NOT);
        assert!(!far.any_locked_but(OWN));
    }
}

#[test]
fn puts_and_everything_else_keep_a_target_busy() {
    let (far, get) = (Far::new(None), Arc::<Pending>::default());
    assert!(far.is_idle());
    let puts = Arc::new(Pending::of_this_thread());
    far.state().pending.entry(OWN).or_default().puts.push(puts.clone());
    puts.hold();
    assert!(!far.is_idle(), "a put, and nothing else");
    get.hold();
    far.add_get(OWN, &get);
    assert!(!far.is_idle());
    assert!(puts.release());
    assert!(!far.is_idle(), "a get, and no put");
    far.state().pending.entry(Rank(0)).or_default();
    assert!(!far.is_idle(), "of one target of two");
    assert!(get.release() && far.is_idle());
}
