//! What a rank knows of its operations on far targets, and of those that it holds.
use super::Far;
use crate::engine::{Failure, Pending};
use crate::memory::target::held;
use crate::protocol::message::Card;
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
    let puts = Arc::new(Pending::of(crate::thread::id()));
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

/// A thread that performs what another one queued, and gives it up, is not the only one that hears.
#[test]
fn what_another_thread_gave_up_is_told_by_a_flush_of_ones_own() {
    let (far, me) = (Far::new(None), crate::thread::id());
    thread::scope(|scope| scope.spawn(|| far.add_lost(OWN, me)).join().unwrap());
    assert_eq!(far.flushable(), [OWN]);
    let (first, others) = far.outstanding(OWN);
    let all: Vec<_> = first.into_iter().chain(others).collect();
    assert_eq!(
        all.iter().map(|lost| lost.failure()).collect::<Vec<_>>(),
        [Some(Failure::Cancelled)]
    );
    all[0].set_told();
    assert!(all[0].is_over());
}

/// What a flush waits for is that alone.
fn is(waited: (Option<Arc<Pending>>, Vec<Arc<Pending>>), what: &Arc<Pending>) -> bool {
    waited.1.is_empty() && waited.0.is_some_and(|first| Arc::ptr_eq(&first, what))
}

/// A far target to which this thread puts something that is under way.
fn with_put() -> (Far, Arc<Pending>) {
    let (far, mine) = (Far::new(None), Arc::new(Pending::of(crate::thread::id())));
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

/// Cards of regions are found by any address in them, and of parts by none but 0; a budget bounds
/// those of all targets together.
#[test]
fn cards_are_of_what_holds_an_address() {
    let (far, other) = (Far::new(None), Rank(2));
    let card = |start, len| Card::new((start, len), 1, 0, None);
    let mut state = far.state();
    for (target, start, len) in [(OWN, 100, 10), (OWN, 200, 10), (other, 0, 0)] {
        state.learn((target, start), card(start, len), 3);
    }
    drop(state);
    let found =
        |target, address| far.state().card(target, address).map(|(_, card)| card.start.get());
    let at = |addresses: [u64; 6]| addresses.map(|address| found(OWN, address));
    assert_eq!(
        at([99, 100, 109, 110, 205, 210]),
        [None, Some(100), Some(100), None, Some(200), None]
    );
    assert_eq!((found(other, 0), found(other, 1), found(OWN, 0)), (Some(0), None, None));
    far.forget_card(OWN, 150);
    far.forget_card(OWN, 105);
    assert_eq!(at([100, 105, 110, 200, 205, 209])[..4], [None, None, None, Some(200)]);
    let mut state = far.state();
    state.learn((OWN, 300), card(300, 1), 3);
    assert_eq!(state.order.len(), 3, "what is forgotten makes room");
    state.learn((OWN, 400), card(400, 1), 3);
    assert_eq!((state.order.len(), state.known.len()), (3, 3));
    drop(state);
    assert_eq!((found(OWN, 200), found(other, 0), found(OWN, 400)), (None, Some(0), Some(400)));
}

/// As many requests are remembered as are under way, or a few; of failures one for each thread.
#[test]
fn requests_that_are_over_are_forgotten_without_a_flush() {
    let (far, under_way) = (Far::new(None), Arc::<Pending>::default());
    under_way.hold();
    far.add_request(OWN, &under_way);
    let over = (0..1000).map(|_| {
        let request = Arc::<Pending>::default();
        far.add_request(OWN, &request);
        Arc::downgrade(&request)
    });
    let over: Vec<_> = over.collect();
    let kept = over.iter().filter(|request| request.strong_count() > 0).count();
    assert!(kept <= 16, "{kept} of 1000");
    for _ in 0..2 {
        far.add_request(OWN, &Arc::new(Pending::lost(crate::thread::id())));
    }
    (0..100).for_each(|_| far.add_request(OWN, &Arc::default()));
    let (first, others) = far.outstanding(OWN);
    let all: Vec<_> = first.into_iter().chain(others).collect();
    let failures = all.iter().filter(|pending| pending.failure().is_some()).count();
    assert_eq!((all.len(), failures), (2, 1), "what is under way, and one failure");
    assert!(under_way.release());
}

/// A thread hears of each failure of another's puts, whatever that one hears, and when.
#[test]
fn a_failure_that_was_heard_of_stands_for_no_other() {
    let far = Far::new(None);
    let other = std::thread::spawn(crate::thread::id).join().unwrap();
    let [one, two] = [(); 2].map(|()| Arc::new(Pending::lost(other)));
    far.add_request(OWN, &one);
    assert!(is(far.outstanding(OWN), &one));
    one.set_told();
    assert!(far.outstanding(OWN).0.is_none(), "this thread knows");
    far.add_request(OWN, &two);
    (0..100).for_each(|_| far.add_request(OWN, &Arc::default()));
    assert!(is(far.outstanding(OWN), &two));
}

#[test]
fn what_a_dropped_request_keeps_is_given_back_by_the_next() {
    let (far, buffer, request) = (Far::new(None), Arc::new(()), Arc::<Pending>::default());
    request.hold();
    far.add_request(OWN, &request);
    request.keep(Box::new(buffer.clone()));
    far.set_keeping(OWN);
    far.add_request(OWN, &Arc::default());
    assert!(request.release());
    drop(request);
    assert_eq!(Arc::strong_count(&buffer), 2, "nothing has looked");
    far.add_request(OWN, &Arc::default());
    assert_eq!(Arc::strong_count(&buffer), 1);
}
