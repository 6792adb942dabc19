//! What a rank knows of its operations on far targets, and of those that it holds.
use super::Far;
use crate::engine::Pending;
use crate::memory::target::held;
use crate::rank::Rank;
use std::sync::Arc;
use std::thread;

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

/// What a flush waits for is that alone.
fn is(waited: (Option<Arc<Pending>>, Vec<Arc<Pending>>), what: &Arc<Pending>) -> bool {
    waited.1.is_empty() && waited.0.is_some_and(|first| Arc::ptr_eq(&first, what))
}

/// A far target to which this thread puts something that is under way.
fn with_put() -> (Far, Arc<Pending>) {
    let (far, mine) = (Far::new(None), Arc::new(Pending::of_this_thread()));
    assert!(far.outstanding(OWN).0.is_none(), "nothing was put");
    far.state().pending.entry(OWN).or_default().puts.push(mine.clone());
    mine.hold();
    (far, mine)
}

/// A flush waits for puts of its own thread, and leaves them to be counted with later ones; those
/// of other threads it takes along, so that it does not wait for what they put meanwhile.
#[test]
fn a_flush_waits_for_what_was_put_before() {
    let (far, mine) = with_put();
    let puts = || far.state().pending[&OWN].puts.len();
    assert!(is(far.outstanding(OWN), &mine) && puts() == 1);
    assert!(mine.release());
    assert!(far.outstanding(OWN).0.is_none() && puts() == 1, "it is there");
    mine.hold();
    thread::scope(|scope| {
        scope.spawn(|| assert!(is(far.outstanding(OWN), &mine))).join().unwrap();
    });
    assert_eq!(puts(), 0);
    assert!(is(far.outstanding(OWN), &mine), "still under way");
    assert!(mine.release());
    assert!(far.outstanding(OWN).0.is_none());
}

#[test]
fn what_has_failed_is_told_once() {
    let (far, mine) = with_put();
    mine.cancel();
    assert!(!far.state().pending[&OWN].is_over());
    assert!(is(far.outstanding(OWN), &mine));
    mine.set_told();
    assert!(far.outstanding(OWN).0.is_none());
    assert!(far.state().pending[&OWN].is_over());
}
