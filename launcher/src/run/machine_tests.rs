//! Every way a job can end, without a process.

use super::*;

const fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn exited(rank: u32, status: i32) -> Event {
    Event::Exited { rank, exit: Exit::Status(status) }
}

fn killed(rank: u32, signal: Signal) -> Event {
    Event::Exited { rank, exit: Exit::Signal(signal.as_raw()) }
}

fn left(rank: u32) -> Event {
    Event::Left { rank, failed: false, missed: None }
}

const KILL_AFTER: Duration = Duration::from_secs(10);

/// All ranks run.
fn running(ranks: u32, timeout: Option<Duration>) -> Machine {
    let mut machine = Machine::new(ranks, timeout, KILL_AFTER, OnFailure::End);
    for rank in 0..ranks {
        machine.handle(Event::Started(rank), at(0));
    }
    machine.handle(Event::StartEnded, at(0));
    machine
}

fn after(ranks: u32, events: impl IntoIterator<Item = Event>) -> Machine {
    let mut machine = running(ranks, None);
    for event in events {
        machine.handle(event, at(0));
    }
    machine
}

fn failed(machine: &Machine) -> (u32, How) {
    match machine.cause() {
        Some(Cause::Failed { rank, how }) => (*rank, *how),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_that_never_join_and_exit_with_0_are_a_success() {
    let machine = after(2, [exited(1, 0), exited(0, 0)]);
    assert!(machine.finished());
    assert_eq!(machine.cause(), None);
}

#[test]
fn ranks_that_join_leave_and_exit_are_a_success() {
    use Event::{Disconnected, Joined};
    let machine = after(
        2,
        [
            Joined(0),
            Joined(1),
            left(1),
            exited(1, 0),
            left(0),
            Disconnected(0),
            Disconnected(1),
            exited(0, 0),
        ],
    );
    assert!(machine.finished());
    assert_eq!(machine.cause(), None);
}

#[test]
fn the_first_failure_counts_and_ends_the_others() {
    let mut machine = after(3, [exited(1, 3)]);
    assert_eq!(failed(&machine), (1, How::Exited(3)));
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
    machine.handle(killed(0, Signal::TERM), at(1));
    assert!(!machine.finished());
    let deadline = machine.deadline().unwrap();
    assert_eq!(deadline, KILL_AFTER, "ranks have their time to end in order");
    machine.handle(Event::Tick, deadline);
    assert_eq!(machine.poll_action(), Some(Action::Kill));
    machine.handle(killed(2, Signal::KILL), deadline);
    assert!(machine.finished());
    assert_eq!(failed(&machine), (1, How::Exited(3)));
}

#[test]
fn a_process_that_cannot_be_killed_is_given_up() {
    let mut machine = after(2, [exited(1, 3)]);
    for _ in 0..2 {
        let deadline = machine.deadline().unwrap();
        machine.handle(Event::Tick, deadline);
    }
    assert!(machine.finished());
    assert_eq!(machine.running(), [0]);
}

#[test]
fn exit_0_without_leaving_fails_once_the_connection_ends() {
    let mut machine = after(1, [Event::Joined(0), exited(0, 0)]);
    assert!(!machine.finished() && machine.cause().is_none());
    machine.handle(Event::Disconnected(0), at(1));
    assert_eq!(failed(&machine), (0, How::NeverLeft));
    assert!(machine.finished());
}

#[test]
fn a_leave_that_is_read_after_the_exit_counts() {
    let machine = after(1, [Event::Joined(0), exited(0, 0), left(0), Event::Disconnected(0)]);
    assert!(machine.finished());
    assert_eq!(machine.cause(), None);
}

#[test]
fn a_connection_that_outlives_its_process_is_not_waited_for() {
    let mut machine = after(1, [Event::Joined(0), exited(0, 0)]);
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), (0, How::NeverLeft));
}

#[test]
fn exit_0_before_joining_fails_when_another_joined_before() {
    let machine = after(2, [Event::Joined(0), exited(1, 0)]);
    assert_eq!(failed(&machine), (1, How::NeverJoined));
}

#[test]
fn exit_0_before_joining_fails_when_another_joins_later() {
    let machine = after(2, [exited(1, 0), Event::Joined(0)]);
    assert_eq!(failed(&machine), (1, How::NeverJoined));
}

#[test]
fn a_rank_that_says_it_failed_comes_before_those_that_fail_because_of_it() {
    let mut machine = after(2, [Event::Joined(0), Event::Joined(1)]);
    machine.handle(Event::Left { rank: 1, failed: true, missed: None }, at(0));
    machine.handle(exited(0, 9), at(1));
    assert_eq!(machine.cause(), None);
    machine.handle(killed(1, Signal::ABORT), at(2));
    assert_eq!(failed(&machine), (1, How::Signal(Signal::ABORT.as_raw())));
    assert!(machine.finished());
}

#[test]
fn a_rank_that_says_it_failed_and_lingers_fails_the_job() {
    let mut machine =
        after(2, [Event::Joined(0), Event::Left { rank: 0, failed: true, missed: None }]);
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), (0, How::Announced));
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
}

#[test]
fn a_rank_that_says_it_failed_and_exits_with_0_fails_the_job() {
    let said = Event::Left { rank: 0, failed: true, missed: None };
    let machine = after(1, [Event::Joined(0), said, exited(0, 0)]);
    assert_eq!(failed(&machine), (0, How::Announced));
}

#[test]
fn the_timeout_names_the_ranks_that_still_run() {
    let mut machine = running(3, Some(at(500)));
    machine.handle(exited(1, 0), at(1));
    assert_eq!(machine.deadline(), Some(at(500)));
    machine.handle(Event::Tick, at(500));
    assert_eq!(machine.cause(), Some(&Cause::TimedOut { running: vec![0, 2] }));
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
}

#[test]
fn signals_are_passed_on_and_dying_of_them_is_no_failure_of_a_rank() {
    let mut machine = after(2, [Event::Signal(Signal::USR1), Event::Signal(Signal::INT)]);
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::USR1)));
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::INT)));
    assert_eq!(machine.poll_action(), None);
    machine.handle(killed(0, Signal::INT), at(1));
    assert_eq!(machine.cause(), Some(&Cause::Interrupted(Signal::INT.as_raw())));
}

#[test]
fn a_second_interrupt_kills() {
    let mut machine = after(1, [Event::Signal(Signal::INT), Event::Signal(Signal::INT)]);
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::INT)));
    assert_eq!(machine.deadline(), Some(at(0)));
    machine.handle(Event::Tick, at(1));
    assert_eq!(machine.poll_action(), Some(Action::Kill));
    assert_eq!(machine.cause(), Some(&Cause::Interrupted(Signal::INT.as_raw())));
}

#[test]
fn one_signal_starts_a_grace_and_any_second_one_kills() {
    for first in ENDING {
        let mut machine = after(2, [Event::Signal(first)]);
        assert_eq!(machine.poll_action(), Some(Action::Forward(first)));
        assert_eq!((machine.deadline(), machine.cause()), (Some(KILL_AFTER), None));
        machine.handle(killed(1, first), at(5));
        assert_eq!(machine.poll_action(), None, "rank 0 is not asked again: it may be saving");
        machine.handle(Event::Tick, KILL_AFTER);
        assert_eq!(machine.poll_action(), Some(Action::Kill));
        assert_eq!(machine.cause(), Some(&Cause::Interrupted(first.as_raw())));
        for second in ENDING {
            let mut machine = after(1, [Event::Signal(first)]);
            machine.handle(Event::Signal(second), REPEAT);
            assert_eq!(machine.deadline(), Some(at(0)), "{first:?} {second:?}");
        }
    }
}

/// Whether or not all ranks are started yet.
#[test]
fn the_second_request_is_what_ended_the_job() {
    for starting in [true, false] {
        let mut machine = Machine::new(1, None, KILL_AFTER, OnFailure::End);
        machine.handle(Event::Started(0), at(0));
        if !starting {
            machine.handle(Event::StartEnded, at(0));
        }
        machine.handle(Event::Signal(Signal::INT), at(0));
        machine.handle(Event::Signal(Signal::QUIT), at(1));
        machine.handle(Event::Tick, at(1));
        assert_eq!(machine.cause(), Some(&Cause::Interrupted(Signal::QUIT.as_raw())), "{starting}");
    }
}

#[test]
fn one_request_that_is_told_twice_is_one() {
    let twice = [Event::Signal(Signal::TERM), Event::Signal(Signal::TERM)];
    let mut machine = after(1, twice);
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::TERM)));
    assert_eq!((machine.poll_action(), machine.deadline()), (None, Some(KILL_AFTER)));
}

#[test]
fn different_signals_at_once_are_one_request_but_for_interrupts() {
    for (first, second) in [(Signal::TERM, Signal::HUP), (Signal::HUP, Signal::QUIT)] {
        let mut machine = after(1, [Event::Signal(first), Event::Signal(second)]);
        assert_eq!(machine.poll_action(), Some(Action::Forward(first)));
        assert_eq!((machine.poll_action(), machine.deadline()), (None, Some(KILL_AFTER)));
        assert!(!machine.hurried());
    }
    for (first, second) in [(Signal::TERM, Signal::INT), (Signal::INT, Signal::TERM)] {
        let machine = after(1, [Event::Signal(first), Event::Signal(second)]);
        assert_eq!(machine.deadline(), Some(at(0)), "{first:?} {second:?}");
        assert!(machine.hurried());
    }
}

#[test]
fn the_first_signal_after_a_failure_leaves_the_others_their_time() {
    let mut machine = after(2, [exited(1, 3)]);
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
    machine.handle(Event::Signal(Signal::INT), at(1));
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::INT)));
    assert_eq!(machine.deadline(), Some(KILL_AFTER));
    machine.handle(Event::Signal(Signal::INT), at(2));
    assert_eq!(machine.deadline(), Some(at(0)));
    assert_eq!(failed(&machine), (1, How::Exited(3)));
}

#[test]
fn a_signal_while_ranks_are_started_ends_the_job() {
    let mut machine = Machine::new(3, None, KILL_AFTER, OnFailure::End);
    machine.handle(Event::Started(0), at(0));
    machine.handle(Event::Signal(Signal::TERM), at(1));
    assert_eq!(machine.poll_action(), Some(Action::Forward(Signal::TERM)));
    assert_eq!((machine.ending(), machine.running()), (true, vec![0]));
    machine.handle(exited(0, 0), at(2));
    assert!(!machine.finished(), "rank 1 may be starting");
    machine.handle(Event::Started(1), at(2));
    assert_eq!(machine.poll_action(), Some(Action::KillRank(1)));
    machine.handle(Event::StartEnded, at(2));
    machine.handle(killed(1, Signal::KILL), at(3));
    assert!(machine.finished());
    assert_eq!(machine.cause(), Some(&Cause::Interrupted(Signal::TERM.as_raw())));
}

#[test]
fn a_start_that_never_ends_is_given_up() {
    let mut machine = Machine::new(1, None, KILL_AFTER, OnFailure::End);
    machine.handle(Event::Signal(Signal::INT), at(0));
    for _ in 0..2 {
        let deadline = machine.deadline().unwrap();
        machine.handle(Event::Tick, deadline);
    }
    assert!(machine.finished());
}

#[test]
fn ranks_that_end_before_others_are_started_do_not_end_the_job() {
    let mut machine = Machine::new(2, None, KILL_AFTER, OnFailure::End);
    machine.handle(Event::Started(0), at(0));
    machine.handle(exited(0, 0), at(0));
    assert!(!machine.finished());
    machine.handle(Event::Started(1), at(0));
    machine.handle(Event::StartEnded, at(0));
    machine.handle(exited(1, 0), at(0));
    assert!(machine.finished() && machine.cause().is_none());
}

#[test]
fn ranks_go_on_where_that_is_asked_for() {
    let mut machine = Machine::new(3, None, KILL_AFTER, OnFailure::Continue);
    for rank in 0..3 {
        machine.handle(Event::Started(rank), at(0));
    }
    machine.handle(Event::StartEnded, at(0));
    machine.handle(exited(1, 3), at(1));
    machine.handle(exited(0, 5), at(1));
    assert_eq!((machine.poll_action(), machine.finished()), (None, false));
    assert_eq!((machine.ending(), machine.deadline()), (false, None));
    machine.handle(exited(2, 0), at(2));
    assert!(machine.finished());
    assert_eq!(failed(&machine), (1, How::Exited(3)));
}

#[test]
fn a_program_that_ends_in_order_when_asked_to_is_a_success() {
    let machine = after(1, [Event::Joined(0), Event::Signal(Signal::TERM), exited(0, 0)]);
    assert!(machine.finished());
    assert_eq!(machine.cause(), None);
}

#[test]
fn an_output_without_a_reader_ends_the_job() {
    let mut machine = after(1, [Event::OutputEnded(None), exited(0, 1)]);
    assert_eq!(machine.cause(), Some(&Cause::OutputEnded(None)));
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
}

#[test]
fn ranks_out_of_range_are_ignored() {
    let far = [Event::Joined(9), left(9), Event::Disconnected(9), exited(9, 1)];
    let machine = after(1, far);
    assert_eq!(machine.cause(), None);
    assert_eq!(machine.running(), [0]);
}

#[test]
fn a_tick_at_the_deadline_moves_the_deadline() {
    let starts: [&[Event]; 5] = [
        &[],
        &[Event::Joined(0), exited(0, 0)],
        &[Event::Joined(0), exited(0, 0), Event::Signal(Signal::TERM)],
        &[Event::Joined(0), Event::Left { rank: 0, failed: true, missed: None }],
        &[Event::Signal(Signal::INT), Event::Signal(Signal::INT)],
    ];
    for ranks in [1, 2] {
        for events in starts {
            let mut machine = running(ranks, Some(at(100)));
            for event in events {
                machine.handle(event.clone(), at(0));
            }
            let mut ticks = 0;
            while let Some(deadline) = machine.deadline().filter(|_| !machine.finished()) {
                machine.handle(Event::Tick, deadline);
                ticks += 1;
                assert!(ticks < 10, "{ranks} {events:?}: {machine:?}");
            }
        }
    }
}

#[test]
fn a_connection_that_breaks_off_tells_which_rank_failed_first() {
    use Event::{Disconnected, Joined};
    let machine = after(2, [Joined(0), Joined(1), Disconnected(1), exited(0, 9), exited(1, 0)]);
    assert_eq!(failed(&machine), (1, How::NeverLeft));
    let dies = [Joined(0), Joined(1), Disconnected(1), exited(0, 9), killed(1, Signal::KILL)];
    let machine = after(2, dies);
    assert_eq!(failed(&machine), (1, How::Signal(Signal::KILL.as_raw())));
}

#[test]
fn a_rank_that_only_lost_its_connection_takes_no_blame() {
    use Event::{Disconnected, Joined};
    let fails = [Joined(0), Joined(1), Disconnected(1), exited(0, 9), Disconnected(0)];
    let mut machine = after(2, fails);
    assert_eq!(machine.cause(), None);
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), (0, How::Exited(9)));

    let mut machine = after(2, [Joined(0), Joined(1), Disconnected(1)]);
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!((machine.cause(), machine.deadline()), (None, None));
}

#[test]
fn a_suspect_that_exits_in_order_leaves_the_blame_to_others() {
    use Event::{Disconnected, Joined};
    let fails = [Joined(0), Joined(1), Disconnected(1), exited(0, 9), Disconnected(0)];
    let mut machine = after(2, fails);
    machine.handle(Event::Signal(Signal::TERM), at(0));
    machine.handle(exited(1, 0), at(1));
    assert_eq!(failed(&machine), (0, How::Exited(9)));
    assert!(machine.finished());
}

fn missed(rank: u32, peer: u32) -> Event {
    Event::Left { rank, failed: false, missed: Some(peer) }
}

#[test]
fn a_rank_that_leaves_early_is_blamed_for_those_that_wait_for_it() {
    use Event::{Disconnected, Joined};
    let start = || [Joined(0), Joined(1), left(1)];
    let early = (1, How::LeftEarly { missed_by: 0 });
    let machine = after(2, start().into_iter().chain([exited(1, 0), missed(0, 1), exited(0, 1)]));
    assert_eq!(failed(&machine), early);
    // Its exit comes later, or never.
    let mut machine = after(2, start().into_iter().chain([missed(0, 1), exited(0, 1)]));
    assert_eq!(machine.cause(), None);
    let mut late = after(2, start().into_iter().chain([missed(0, 1), exited(0, 1), exited(1, 0)]));
    assert_eq!(failed(&late), early);
    assert_eq!(late.poll_action(), None, "no rank is left to be ended");
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), early);
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
    // Its exit is known before its reason.
    for last in [missed(0, 1), Disconnected(0)] {
        let mut machine = after(2, start().into_iter().chain([exited(1, 0), exited(0, 1)]));
        assert!(machine.cause().is_none() && !machine.finished());
        machine.handle(last.clone(), at(1));
        let told = last == missed(0, 1);
        assert_eq!(failed(&machine), if told { early } else { (0, How::Exited(1)) });
    }
    let mut machine = after(2, start().into_iter().chain([exited(1, 0), exited(0, 1)]));
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), (0, How::Exited(1)));
}

#[test]
fn a_rank_that_fails_and_leaves_in_order_is_blamed_and_not_the_one_that_misses_it() {
    use Event::Joined;
    // Rank 2 gave up after its wait timeout, rank 0 missed it, and rank 1 missed rank 0.
    let events = [Joined(0), Joined(1), Joined(2), left(2), missed(0, 2), missed(1, 0)];
    let mut machine = after(3, events.into_iter().chain([exited(1, 1), exited(0, 1)]));
    assert_eq!(machine.cause(), None);
    machine.handle(exited(2, 1), at(1));
    assert_eq!(failed(&machine), (2, How::Exited(1)));
}

/// A rank that is killed is blamed, in whatever order its death, and words and exits of those that
/// miss it, are heard.
#[test]
fn a_rank_that_dies_is_blamed_and_not_those_that_miss_it() {
    use Event::{Disconnected, Joined};
    let fails = |rank, peer| Event::Left { rank, failed: true, missed: Some(peer) };
    let blamed = (0, How::Signal(Signal::KILL.as_raw()));
    // Of rank 0, which is killed, of rank 1, which misses it, and of rank 2, which misses rank 1.
    let lives = [
        vec![killed(0, Signal::KILL), Disconnected(0)],
        vec![fails(1, 0), exited(1, 1), Disconnected(1)],
        vec![fails(2, 1), exited(2, 1), Disconnected(2)],
    ];
    let mut orders = 0;
    interleave(&lives, &mut [0; 3], &mut Vec::new(), &mut |events| {
        let start = [Joined(0), Joined(1), Joined(2)];
        let machine = after(3, start.into_iter().chain(events.iter().cloned()));
        assert_eq!(failed(&machine), blamed, "{events:?}");
        orders += 1;
    });
    assert_eq!(orders, 560);
    // Words that come last, or never.
    let late = [Joined(0), Joined(1), exited(1, 1), fails(1, 0), killed(0, Signal::KILL)];
    assert_eq!(failed(&after(2, late)), blamed);
    let never = [Joined(0), Joined(1), exited(1, 1), Disconnected(1), killed(0, Signal::KILL)];
    assert_eq!(failed(&after(2, never)), (1, How::Exited(1)));
}

/// All orders of events that keep that of each list.
fn interleave(
    lists: &[Vec<Event>; 3],
    at: &mut [usize; 3],
    events: &mut Vec<Event>,
    see: &mut dyn FnMut(&[Event]),
) {
    let mut is_end = true;
    for list in 0..lists.len() {
        let Some(event) = lists[list].get(at[list]) else { continue };
        is_end = false;
        events.push(event.clone());
        at[list] += 1;
        interleave(lists, at, events, see);
        at[list] -= 1;
        events.pop();
    }
    if is_end {
        see(events);
    }
}

#[test]
fn a_rank_that_is_missed_and_exits_with_0_is_judged_by_what_it_said() {
    use Event::{Disconnected, Joined};
    let start = [Joined(0), Joined(1), exited(0, 0), missed(1, 0), exited(1, 1)];
    for (last, how) in [
        (left(0), How::LeftEarly { missed_by: 1 }),
        (Event::Left { rank: 0, failed: true, missed: None }, How::Announced),
        (Disconnected(0), How::NeverLeft),
    ] {
        let mut machine = after(2, start.clone());
        assert_eq!(machine.cause(), None);
        machine.handle(last.clone(), at(1));
        assert_eq!(failed(&machine), (0, how), "{last:?}");
    }
}

/// A rank may outlive the others that took it for dead: those failed by themselves then.
#[test]
fn a_rank_that_goes_on_is_not_blamed() {
    use Event::Joined;
    let fails = Event::Left { rank: 1, failed: true, missed: Some(0) };
    let mut machine = after(2, [Joined(0), Joined(1), fails, exited(1, 7)]);
    assert_eq!(machine.cause(), None);
    let deadline = machine.deadline().unwrap();
    machine.handle(Event::Tick, deadline);
    assert_eq!(failed(&machine), (1, How::Exited(7)));
    assert_eq!(machine.poll_action(), Some(Action::Terminate));
}

#[test]
fn of_ranks_that_miss_each_other_the_first_to_exit_is_blamed() {
    use Event::Joined;
    let fails = |rank, peer| Event::Left { rank, failed: true, missed: Some(peer) };
    let start = [Joined(0), Joined(1), fails(1, 0), exited(1, 1), fails(0, 1)];
    let machine = after(2, start.iter().cloned().chain([exited(0, 1)]));
    assert_eq!(failed(&machine), (1, How::Exited(1)));
    // The other one lingers, and has said so first or last.
    let other = [Joined(0), Joined(1), fails(0, 1), fails(1, 0), exited(1, 1)];
    for events in [start, other] {
        let mut machine = after(2, events);
        assert_eq!(machine.cause(), None);
        let deadline = machine.deadline().unwrap();
        machine.handle(Event::Tick, deadline);
        assert_eq!(failed(&machine), (1, How::Exited(1)));
    }
    // Three in a circle.
    let circle = [fails(1, 0), exited(1, 1), fails(2, 1), fails(0, 2), exited(0, 2), exited(2, 3)];
    let start = [Joined(0), Joined(1), Joined(2)];
    assert_eq!(failed(&after(3, start.into_iter().chain(circle))), (1, How::Exited(1)));
}

#[test]
fn ranks_that_say_nonsense_about_others_are_blamed_themselves() {
    use Event::Joined;
    for peer in [0, 1, 9] {
        let mut machine = after(2, [Joined(0), Joined(1), missed(0, peer), exited(0, 1)]);
        if peer == 1 {
            // It might be dead; it stays, and so it is not.
            assert_eq!(machine.cause(), None);
            let deadline = machine.deadline().unwrap();
            assert_eq!(deadline, SUSPECT_GRACE);
            machine.handle(Event::Tick, deadline);
        }
        assert_eq!(failed(&machine), (0, How::Exited(1)), "{peer}");
    }
    let circle = [Joined(0), Joined(1), missed(0, 1), missed(1, 0), exited(1, 0), exited(0, 1)];
    assert_eq!(failed(&after(2, circle)).0, 0);
}
