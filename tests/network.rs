//! Jobs of processes over libfabric: what they are told that cannot have it, and ranks that die.
//! In each test, the process that `cargo test` started is the launcher; its ranks run the test once
//! more. Where no libfabric is, each says so and passes.
use rma::testing::processes_with;
use rma::{Config, Lock, LockKind, Path, Rank, initialize_with};
use rma_launcher::run::{OnFailure, Output, Report, Spec, run};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

mod libfabric;
mod stopped;

use stopped::stop;

fn config(provider: &str) -> Config {
    let mut config = Config::default();
    config.set("transport", "ofi").unwrap();
    config.set("provider", provider).unwrap();
    config
}

/// A put to the other rank, by the device.
fn put(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let universe = initialize_with(config)?;
    let world = universe.world();
    let window = world.window(1, 8).allocate()?;
    let lock = window.lock(Rank(1 - world.rank().0), LockKind::Shared)?;
    lock.put(0, &[1u64])?;
    lock.unlock()?;
    world.barrier()?;
    Ok(window.free()?)
}

/// What two ranks say that start with that provider and these variables of libfabric, and put.
fn refusal(test: &str, provider: &str, variables: &[(&str, &str)]) -> Option<String> {
    if rma_launcher::is_launched() {
        let mut config = config(provider);
        config.wait_timeout = Some(Duration::from_secs(60));
        match put(config) {
            Err(error) => eprintln!("refused: {error}"),
            Ok(()) => eprintln!("has put"),
        }
        return None;
    }
    let mut spec = Spec::new(std::env::current_exe().unwrap(), 2);
    spec.args = ["--exact", test, "--nocapture"].map(Into::into).to_vec();
    spec.env = vec![("FI_PROVIDER".into(), None)];
    let set = |(name, value): &(&str, &str)| (name.into(), Some(value.into()));
    spec.env.extend(variables.iter().map(set));
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(Duration::from_secs(120));
    // The other one has its say, too.
    spec.on_failure = OnFailure::Continue;
    let Report { output, .. } = run(&spec).unwrap();
    let said = output.iter().map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    Some(said.collect())
}

#[test]
fn a_provider_that_is_not_there() {
    if !libfabric::is_here() {
        return;
    }
    let Some(said) = refusal("a_provider_that_is_not_there", "cxi", &[]) else { return };
    let text = "joining by libfabric: there is no provider \"cxi\" on this host: libfabric offers";
    assert_eq!(said.matches(text).count(), 2, "{said}");
}

#[test]
fn a_variable_that_hides_the_provider() {
    if !libfabric::is_here() {
        return;
    }
    let test = "a_variable_that_hides_the_provider";
    let Some(said) = refusal(test, "tcp", &[("FI_PROVIDER", "shm")]) else { return };
    let text = "FI_PROVIDER=\"shm\" hides provider \"tcp\", which was asked for: unset FI_PROVIDER";
    assert_eq!(said.matches(text).count(), 2, "{said}");
}

/// Each rank has a port, and none for the endpoint that it puts by; or one rank has none.
#[test]
fn a_range_of_ports_that_is_too_small() {
    if !libfabric::is_here() {
        return;
    }
    let test = "a_range_of_ports_that_is_too_small";
    let remedy = "widen the range from FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE";
    for (more, what) in [(1, "no further endpoint"), (0, "cannot be opened")] {
        // Others may have these ports, and then a rank has none to begin with.
        let mut heard = Vec::new();
        let is_told = (0..8).any(|again| {
            let first = 20_000 + 2 * ((std::process::id() + 997 * again) % 5_000);
            let [low, high] = [first, first + more].map(|port| port.to_string());
            let range = [("FI_TCP_PORT_LOW_RANGE", &*low), ("FI_TCP_PORT_HIGH_RANGE", &*high)];
            heard.extend(refusal(test, "tcp", &range));
            let Some(said) = heard.last() else { return true };
            said.lines().any(|line| line.contains(what) && line.contains(remedy))
        });
        assert!(is_told, "{what}: {heard:?}");
    }
}

/// What libfabric itself overlooks keeps no rank from another.
#[test]
fn variables_that_mean_nothing() {
    if !libfabric::is_here() {
        return;
    }
    let variables = [
        ("FI_TCP_IFACE", "none0"),
        ("FI_TCP_PORT_LOW_RANGE", "7010"),
        ("FI_TCP_PORT_HIGH_RANGE", "7000"),
        ("FI_UNIVERSE_SIZE", "1"),
        ("FI_OFI_RXM_BUFFER_SIZE", "1"),
        ("FI_OFI_RXM_TX_SIZE", "many"),
    ];
    let Some(said) = refusal("variables_that_mean_nothing", "tcp", &variables) else { return };
    assert_eq!(said.matches("has put").count(), 2, "{said}");
}

/// The others do not wait for it for ever, whatever they do.
#[test]
fn a_rank_that_is_killed() {
    if !libfabric::is_here() {
        return;
    }
    let job = || {
        processes_with(config("tcp"), "a_rank_that_is_killed", 3, |universe| {
            let world = universe.world();
            let window = world.window(8, 8).allocate().unwrap();
            world.barrier().unwrap();
            if world.rank() == Rank(1) {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            let lock = window.lock(Rank(1), LockKind::Shared);
            let mut word = [0u64];
            let wait = |lock: &Lock<'_>, word: &mut [u64]| lock.get(0, word).is_ok();
            while lock.as_ref().is_ok_and(|lock| wait(lock, &mut word)) {}
            _ = world.barrier();
        });
    };
    if rma_launcher::is_launched() {
        return job();
    }
    let panic = catch_unwind(AssertUnwindSafe(job)).expect_err("a job that fails");
    let message = panic.downcast_ref::<String>().expect("a message");
    for part in ["rank 1 failed", "signal 9 (SIGKILL)"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Bytes of what is put to and got from a rank that stops, whose part has one more.
const LARGE: usize = 4 << 20;

/// Two ranks: the first has a lock of the other and knows its process, which does nothing but make
/// progress until `origin` returns. A wait of its own would end while it is stopped.
fn beside_one_that_stops(test: &str, timeout: Duration, origin: impl Fn(&Lock<'_>, Pid)) {
    if !libfabric::is_here() {
        return;
    }
    let mut config = config("tcp");
    config.wait_timeout = Some(timeout);
    processes_with(config, test, 2, |universe| {
        let world = universe.world();
        let window = world.window(LARGE + 1, 1).allocate().unwrap();
        assert_eq!(window.path(Rank(1 - world.rank().0)), Some(Path::Device));
        let pids = world.allgather(&[getpid().as_raw_nonzero().get()]).unwrap();
        if world.rank() == Rank(0) {
            let epoch = window.lock(Rank(1), LockKind::Shared).unwrap();
            origin(&epoch, Pid::from_raw(pids[1]).unwrap());
            epoch.put(LARGE, &[4u8]).unwrap();
            epoch.unlock().unwrap();
        } else {
            while window.local().load::<u8>(LARGE).unwrap() != 4 {
                universe.progress();
            }
        }
        world.barrier().unwrap();
        window.free().unwrap();
    });
}

/// A large put to a rank that is stopped ends at its deadline. Its buffer is the caller's again
/// then: what is written there later does not reach the rank, and what is put later does.
#[test]
fn a_put_that_is_given_up_is_cut_off() {
    let test = "a_put_that_is_given_up_is_cut_off";
    beside_one_that_stops(test, Duration::from_secs(2), |epoch, other| {
        // The device is connected, and the target's part is known.
        epoch.put(0, &vec![1u8; LARGE]).unwrap();
        epoch.flush().unwrap();
        stop(other);
        let mut buffer = vec![2u8; LARGE];
        let refused = epoch.put(0, &buffer).unwrap_err();
        assert!(refused.to_string().contains("within the wait timeout"), "{refused}");
        buffer.fill(3);
        drop(buffer);
        kill_process(other, Signal::CONT).unwrap();
        let mut got = vec![0u8; LARGE];
        epoch.get(0, &mut got).unwrap();
        assert!(got.iter().all(|byte| [1, 2].contains(byte)), "nothing of later bytes");
    });
}

/// Gets of a rank that stops again and again are given up, each in the middle, and leave their
/// endpoints; once there are too many, the error says so. Memory of the caller is its own, and what
/// needs no further endpoint goes on.
#[test]
fn gets_that_are_given_up_leave_few_endpoints() {
    let test = "gets_that_are_given_up_leave_few_endpoints";
    beside_one_that_stops(test, Duration::from_secs(1), |epoch, other| {
        let get = |is_given_up: bool| {
            let mut got = vec![5u8; LARGE];
            let Err(error) = epoch.get(0, &mut got) else {
                assert!(!is_given_up && got.iter().all(|byte| *byte == 0));
                return None;
            };
            // The caller's: nothing comes any more.
            got.fill(6);
            let error = error.to_string();
            error.contains("gets that were given up in the middle").then_some(error)
        };
        let refused = (0..100).find_map(|_| {
            // It is connected now, unless the machine is too busy.
            get(false).or_else(|| {
                stop(other);
                let refused = get(true);
                kill_process(other, Signal::CONT).unwrap();
                refused
            })
        });
        let refused = refused.expect("no end");
        assert!(refused.contains("rma_path=messages"), "{refused}");
    });
}

/// Puts that are tried to a rank that is stopped are taken as far as there is room, and refused by
/// name from then on; once it goes on, those that were taken arrive, and nothing of the others.
#[test]
fn puts_that_are_tried_do_not_wait_for_a_rank_that_is_stopped() {
    let test = "puts_that_are_tried_do_not_wait_for_a_rank_that_is_stopped";
    beside_one_that_stops(test, Duration::from_secs(60), |epoch, other| {
        // The device is connected, and the target's part is known.
        epoch.put(0, &[1u8]).unwrap();
        epoch.flush().unwrap();
        stop(other);
        let tried = |at: usize| match epoch.try_put(at, &[2u8]) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.shortage().is_some(), "{error}");
                false
            }
        };
        let taken: Vec<bool> = (0..10_000).map(tried).collect();
        kill_process(other, Signal::CONT).unwrap();
        epoch.flush().unwrap();
        let mut got = vec![0u8; taken.len()];
        epoch.get(0, &mut got).unwrap();
        assert!(taken.contains(&true) && taken.contains(&false));
        let expected = taken.iter().enumerate().map(|(at, taken)| match taken {
            true => 2,
            false => u8::from(at == 0),
        });
        assert!(expected.eq(got), "what was taken, and nothing else");
    });
}

/// What a rank sends right before it leaves arrives, also at a rank that knew nothing of it.
#[test]
fn what_is_sent_before_leaving_arrives() {
    if !libfabric::is_here() {
        return;
    }
    processes_with(config("tcp"), "what_is_sent_before_leaving_arrives", 3, |universe| {
        let world = universe.world();
        let window = world.window(512, 8).allocate().unwrap();
        let done = world.rank() != Rank(2);
        if done {
            // Of the target only: other ranks may have left.
            let lock = window.lock(Rank(2), LockKind::Shared).unwrap();
            lock.accumulate(usize::from(world.rank()), rma::Op::Sum, &[7u64]).unwrap();
            lock.unlock().unwrap();
            // Its part stays until the job ends; the rank does not wait for the others.
            return;
        }
        let view = window.local();
        for rank in 0..2 {
            view.wait_until(rank, |word: u64| word == 7).unwrap();
        }
    });
}

/// A target that computes, and calls nothing of rma, gets puts, gets and what goes by messages all
/// the same: its transport's thread is there for it. A lock, a put and an unlock are at most two
/// messages of the origin, and none of its waits is for more than one answer: two round trips.
#[test]
fn a_target_that_computes_is_reached_in_two_round_trips() {
    if !libfabric::is_here() {
        return;
    }
    let test = "a_target_that_computes_is_reached_in_two_round_trips";
    let mut config = config("tcp");
    config.wait_timeout = Some(Duration::from_secs(60));
    processes_with(config, test, 2, |universe| {
        let world = universe.world();
        let window = world.window(64, 8).allocate().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let of = |kind, is_flushed: bool| {
                let counts = || (universe.counters().messages_sent(), window.operation_counts());
                let before = counts();
                let lock = window.lock(Rank(1), kind).unwrap();
                lock.put(1, &[7u64]).unwrap();
                if is_flushed {
                    lock.flush().unwrap();
                }
                lock.unlock().unwrap();
                let now = counts();
                (now.0 - before.0, now.1.device - before.1.device)
            };
            for kind in [LockKind::Exclusive, LockKind::Shared] {
                // Addresses and keys are known from the first on.
                of(kind, false);
                for is_flushed in [false, true] {
                    // The request and the release: the put is a transfer of the device.
                    assert_eq!(of(kind, is_flushed), (2, 1), "{kind:?} {is_flushed}");
                }
            }
            let lock = window.lock(Rank(1), LockKind::Shared).unwrap();
            let mut got = [0u64];
            lock.get(1, &mut got).unwrap();
            assert_eq!(got, [7]);
            assert_eq!(lock.fetch_and_op(2, rma::Op::Sum, 5u64).unwrap(), 0);
            // All of that has happened, and nothing of the target's own did it.
            lock.put(0, &[1u64]).unwrap();
            lock.unlock().unwrap();
        } else {
            let view = window.local();
            while view.load::<u64>(0).unwrap() == 0 {
                std::hint::spin_loop();
            }
            assert_eq!(view.load::<u64>(2).unwrap(), 5);
        }
        world.barrier().unwrap();
        window.free().unwrap();
    });
}
