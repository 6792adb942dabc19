//! Arrays of integers, which a CPU that has transactions combines in them (ADR 97). Builds with
//! little optimization cannot do that, so CI runs these tests in a release build as well
//! (`cargo test --release -p rma-bench --test arrays`).
use rma::{
    BasicElement, Config, Layout, LockAll, Op, Rank, Universe, Window, initialize, local_with,
};
use rma_launcher::run::{Output, Spec, run};
use std::ops::BitXor;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const RANKS: u32 = 3;
const HOME: Rank = Rank(0);
const WATCHDOG: Duration = Duration::from_secs(300);

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Whether arrays are combined in transactions here; says so if not.
fn has_transactions() -> bool {
    let has = std::is_x86_feature_detected!("rtm");
    if !has {
        println!("SKIPPED: this CPU has no transactions (rtm); arrays are combined by atomics");
    } else if cfg!(debug_assertions) {
        println!("SKIPPED: kernels of a debug build cannot be a transaction");
    }
    has && !cfg!(debug_assertions)
}

/// Nearly all pieces of an array go by transactions, whatever the operation, the length and where
/// it begins; what they make is what a plain loop makes.
#[test]
fn arrays_are_combined_in_transactions() {
    let expects = has_transactions();
    local_with(Config::default(), 2, |universe| {
        of_type(&universe, expects, |op, a, b| plainly(op, a, b, u64::wrapping_add));
        of_type(&universe, expects, |op, a, b| plainly(op, a, b, i32::wrapping_add));
    })
    .unwrap();
}

fn plainly<E: Ord + BitXor<Output = E>>(op: Op, old: E, operand: E, sum: fn(E, E) -> E) -> E {
    match op {
        Op::Sum => sum(old, operand),
        Op::Max => old.max(operand),
        Op::BitXor => old ^ operand,
        Op::Replace => operand,
        _ => unreachable!("not among those that are tried"),
    }
}

fn of_type<E: BasicElement + From<bool> + PartialEq>(
    universe: &Universe,
    mut expects: bool,
    combine: impl Fn(Op, E, E) -> E,
) {
    const TIMES: usize = 500;
    let most = (16 << 10) / size_of::<E>();
    let window = universe.world().window(most, size_of::<E>());
    let window = window.hint("rma_count", "true").unwrap().allocate().unwrap();
    let target = Rank(1);
    let epoch = window.lock_all().unwrap();
    // What one thread combines alone is no transaction.
    epoch.fetch_and_op(target, 0, Op::NoOp, E::from(false)).unwrap();
    universe.world().barrier().unwrap();
    if universe.world().rank() == HOME {
        let mut plain = vec![E::from(false); most];
        epoch.put(target, 0, &plain).unwrap();
        for op in [Op::Sum, Op::Max, Op::BitXor, Op::Replace] {
            for (at, bytes) in [(0, 64), (1, 512), (3, 4 << 10), (1, 12 << 10)] {
                let len = bytes / size_of::<E>();
                let operands: Vec<E> = (0..len).map(|i| E::from(i % 3 == 0)).collect();
                let before = window.operation_counts().combined_at_once.unwrap();
                for _ in 0..TIMES {
                    epoch.accumulate(target, at, op, &operands).unwrap();
                    for (value, operand) in plain[at..].iter_mut().zip(&operands) {
                        *value = combine(op, *value, *operand);
                    }
                }
                let done = window.operation_counts().combined_at_once.unwrap() - before;
                let pieces = (TIMES * bytes.div_ceil(4 << 10)) as u64;
                let what = format!("{} of {bytes} bytes: {done} of {pieces}", op.name());
                assert!(done <= pieces, "{what}");
                if expects && op == Op::Sum && at == 0 && done == 0 {
                    // That no kernel ends its own is read from the assembly (`cargo xtask asm`).
                    println!("SKIPPED: firmware or hypervisor has all transactions fail");
                    expects = false;
                }
                // Interrupts, and threads of other tests on this CPU, end some.
                assert!(!expects || done >= pieces / 2, "{what} were transactions");
                println!("{what} were transactions");
            }
        }
        let mut there = vec![E::from(false); most];
        epoch.get(target, 0, &mut there).unwrap();
        assert!(there == plain);
    }
    epoch.unlock().unwrap();
    universe.world().barrier().unwrap();
    window.free().unwrap();
}

/// Three processes combine arrays at overlapping places of one part, of all lengths and
/// alignments, in fresh pages and to its last element, and single elements of them, while their
/// pages become a child's as well: nothing is lost, and nothing that is fetched goes back.
#[test]
fn nothing_is_lost_between_processes() {
    if rma_launcher::is_launched() {
        return play(&initialize().unwrap(), 40, true);
    }
    let mut spec = Spec::new(std::env::current_exe().unwrap(), RANKS);
    spec.args =
        ["--exact", "nothing_is_lost_between_processes", "--nocapture"].map(Into::into).into();
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(WATCHDOG);
    let report = run(&spec).unwrap();
    assert!(report.failure().is_none(), "{report:?}");
}

/// As between processes.
#[test]
fn nothing_is_lost_between_threads() {
    local_with(Config::default(), RANKS, |universe| play(&universe, 40, false)).unwrap();
}

/// Each round has a window of its own, whose pages no rank has touched.
fn play(universe: &Universe, rounds: usize, forks: bool) {
    for round in 0..rounds {
        // Several pages, and an end that is none of a page or of a line.
        let words = 3 * 512 + round % 8;
        let window = universe.world().window(words, 8).allocate().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            if forks && universe.world().rank() == HOME {
                // With an id it is a fork, and not a call that shares the memory.
                let id = rustix::process::getuid().as_raw();
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Relaxed) {
                        assert!(Command::new("true").uid(id).status().unwrap().success());
                    }
                });
            }
            // Also if an assertion fails: the scope waits for the thread.
            let forking = Ends(&over);
            let added = contend(&window, words, round);
            universe.world().barrier().unwrap();
            drop(forking);
            let all = universe.world().allreduce(&added, Op::Sum).unwrap();
            let mut there = vec![0u64; words];
            let epoch = window.lock_all().unwrap();
            epoch.get(HOME, 0, &mut there).unwrap();
            epoch.unlock().unwrap();
            assert!(there == all, "round {round}: {:?}", first_difference(&there, &all));
        });
        window.free().unwrap();
    }
}

/// Sets it when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn first_difference(there: &[u64], all: &[u64]) -> Option<(usize, u64, u64)> {
    (0..).zip(there.iter().zip(all)).find(|(_, (a, b))| a != b).map(|(i, (a, b))| (i, *a, *b))
}

/// Adds to the part of [`HOME`] in all ways; gives what this rank has added to each element.
fn contend(window: &Window, words: usize, round: usize) -> Vec<u64> {
    const TIMES: usize = 400;
    let (mut added, mut seen) = (vec![0u64; words], vec![0u64; words]);
    let seed = 1 + u64::from(window.rank().0) + 64 * round as u64;
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let epoch = window.lock_all().unwrap();
    for time in 0..TIMES {
        let len = 1 + numbers.below([8, 64, 600, words][time % 4]);
        // Every fourth ends with the part.
        let last = words - len;
        let at = if time % 4 == 3 { last } else { numbers.below(last + 1) };
        let operands: Vec<u64> = (0..len).map(|_| numbers.below(1 << 20) as u64).collect();
        let here = at..at + len;
        match time % 5 {
            0 | 1 => epoch.accumulate(HOME, at, Op::Sum, &operands).unwrap(),
            2 => {
                let mut old = vec![0; len];
                epoch.get_accumulate(HOME, at, Op::Sum, &operands, &mut old).unwrap();
                goes_on(&mut seen[here.clone()], &old, &operands);
            }
            3 => {
                for (i, operand) in operands.iter().take(64).enumerate() {
                    let old = epoch.fetch_and_op(HOME, at + i, Op::Sum, *operand).unwrap();
                    goes_on(&mut seen[at + i..=at + i], &[old], &[*operand]);
                    added[at + i] += operand;
                }
                continue;
            }
            _ => {
                blocks(&epoch, &operands, words, &mut added);
                continue;
            }
        }
        added[here].iter_mut().zip(&operands).for_each(|(sum, operand)| *sum += operand);
    }
    epoch.unlock().unwrap();
    added
}

/// Adds blocks of 32 elements, with as many between.
fn blocks(epoch: &LockAll<'_>, operands: &[u64], words: usize, added: &mut [u64]) {
    let count = (operands.len() / 32).min(words / 64);
    if count == 0 {
        return epoch.accumulate(HOME, 0, Op::Sum, &[0u64]).unwrap();
    }
    let layout = Layout::element::<u64>().vector(count, 32, 64).unwrap();
    epoch.accumulate(HOME, layout.at(0), Op::Sum, &operands[..count * 32]).unwrap();
    for (i, operand) in operands[..count * 32].iter().enumerate() {
        added[i / 32 * 64 + i % 32] += operand;
    }
}

/// What was fetched is no less than what this rank knows to be there.
fn goes_on(seen: &mut [u64], old: &[u64], operands: &[u64]) {
    for ((seen, old), operand) in seen.iter_mut().zip(old).zip(operands) {
        assert!(old >= seen, "{old} after {seen}");
        *seen = old + operand;
    }
}
