//! What operations cost, as far as it can be counted: no clock, no noise. `cargo xtask perf-gate`
//! runs it; it fails when a count is above its budget.
//!
//! The data path of a near target makes no system call and allocates nothing; an operation by
//! messages is one message and one answer.
#![allow(unsafe_code)]

use rma::{Config, LockAll, Op, Rank, RmaError, Universe};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
/// What an operation returns.
type Done<T> = std::result::Result<T, RmaError>;

const TARGET: Rank = Rank(1);
const TIMES: u64 = 1000;
/// Words of the window, and of the large operations.
const WORDS: usize = 1024;
/// Asks this program to do one operation without system calls.
const CONFINED: &str = "--confined";
/// What it says by its exit code where the kernel confines nobody.
const NOT_HERE: i32 = 77;

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Not there any more in a thread that ends: nothing is measured then.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to `System` as it came; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from `System`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; the block came from `System`.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An operation whose costs are counted.
struct Operation {
    name: &'static str,
    run: fn(&LockAll<'_>) -> Done<()>,
    /// By messages: sent and received for one of it, or none if that is not counted here.
    messages: Option<(u64, u64)>,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "put of 8 B",
        run: |epoch| epoch.put(TARGET, 0, &[black_box(1u64)]),
        messages: Some((1, 1)),
    },
    Operation {
        name: "get of 8 B",
        run: |epoch| epoch.get(TARGET, 0, black_box(&mut [0u64])),
        messages: Some((1, 1)),
    },
    Operation {
        name: "fetch_and_op of 8 B",
        run: |epoch| epoch.fetch_and_op(TARGET, 0, Op::Sum, black_box(1u64)).map(drop),
        messages: Some((1, 1)),
    },
    Operation {
        name: "compare_and_swap of 8 B",
        run: |epoch| epoch.compare_and_swap(TARGET, 0, black_box(1u64), 2).map(drop),
        messages: Some((1, 1)),
    },
    Operation {
        name: "accumulate of 8 B",
        run: |epoch| epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1u64)]),
        messages: Some((1, 1)),
    },
    Operation {
        name: "put of 8 KiB",
        run: |epoch| epoch.put(TARGET, 0, black_box(&[1u64; WORDS])),
        messages: None,
    },
    Operation {
        name: "get of 8 KiB",
        run: |epoch| epoch.get(TARGET, 0, black_box(&mut [1u64; WORDS])),
        messages: None,
    },
    Operation {
        name: "accumulate of 8 KiB",
        run: |epoch| epoch.accumulate(TARGET, 0, Op::Sum, black_box(&[1.0f64; WORDS])),
        messages: None,
    },
    Operation { name: "flush", run: |epoch| epoch.flush(TARGET), messages: Some((0, 0)) },
    Operation { name: "flush_all", run: |epoch| epoch.flush_all(), messages: Some((0, 0)) },
];

/// Does what the others must not: if that is not seen, nothing is counted.
const CONTROL: Operation = Operation {
    name: "control",
    run: |_| {
        drop(black_box(Box::new(1u64)));
        std::thread::yield_now();
        Ok(())
    },
    messages: None,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [] => all(),
        [option, name] if option == CONFINED => confined(name),
        _ => Err("counts takes no arguments".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts everything, prints it, and fails if something is above its budget.
fn all() -> Result<()> {
    let allocations = on_rank_0(Config::default(), |_, epoch, operation| {
        let before = ALLOCATIONS.get();
        repeat(operation, epoch)?;
        Ok(ALLOCATIONS.get() - before)
    })?;
    let mut by_messages = Config::default();
    by_messages.hint("rma_path", "messages")?;
    let messages = on_rank_0(by_messages, |universe, epoch, operation| {
        let counters = universe.counters();
        let before = (counters.messages_sent(), counters.messages_received());
        repeat(operation, epoch)?;
        epoch.flush(TARGET)?;
        Ok((counters.messages_sent() - before.0, counters.messages_received() - before.1))
    })?;
    let mut failures = Vec::new();
    control()?;
    println!("{TIMES} of each{:<18} allocations  system calls  messages sent, received", "");
    for (index, operation) in OPERATIONS.iter().enumerate() {
        let (allocated, (sent, received)) = (allocations[index], messages[index]);
        let calls = system_calls(operation)?;
        let name = operation.name;
        let said = match calls {
            Some(true) => "some",
            Some(false) => "0",
            None => "SKIPPED",
        };
        println!("{name:<25} {allocated:>11}  {said:>12}  {sent:>13}, {received}");
        if allocated > 0 {
            failures.push(format!("{name}: {allocated} allocations in {TIMES}, none is allowed"));
        }
        if calls == Some(true) {
            failures.push(format!("{name}: it makes system calls, none is allowed"));
        }
        if let Some(budget) = operation.messages
            && (sent > budget.0 * TIMES || received > budget.1 * TIMES)
        {
            failures.push(format!(
                "{name}: {sent} messages sent and {received} received in {TIMES}, {} and {} each \
                 are allowed",
                budget.0, budget.1
            ));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Checks the counters themselves.
fn control() -> Result<()> {
    let before = ALLOCATIONS.get();
    drop(black_box(Box::new(1u64)));
    if ALLOCATIONS.get() - before != 1 {
        return Err("an allocation was not counted".into());
    }
    match system_calls(&CONTROL)? {
        Some(false) => Err("a system call was not seen".into()),
        _ => Ok(()),
    }
}

fn repeat(operation: &Operation, epoch: &LockAll<'_>) -> Done<()> {
    (0..TIMES).try_for_each(|_| (operation.run)(epoch))
}

/// What `measure` finds of each operation on rank 0 of two, after its first uses.
fn on_rank_0<R: Send>(
    config: Config,
    measure: impl Fn(&Universe, &LockAll<'_>, &Operation) -> Done<R> + Sync,
) -> Result<Vec<R>> {
    let ranks = rma::local_with(config, 2, |universe| -> std::result::Result<_, String> {
        let world = universe.world();
        let say = |error: &dyn Error| error.to_string();
        let window = world.window(WORDS, 8).allocate().map_err(|error| say(&error))?;
        let mut found = Vec::new();
        if world.rank() == Rank(0) {
            let epoch = window.lock_all().map_err(|error| say(&error))?;
            for operation in OPERATIONS {
                (operation.run)(&epoch).map_err(|error| say(&error))?;
                epoch.flush(TARGET).map_err(|error| say(&error))?;
                found.push(measure(&universe, &epoch, operation).map_err(|error| say(&error))?);
            }
            epoch.unlock().map_err(|error| say(&error))?;
        }
        world.barrier().map_err(|error| say(&error))?;
        window.free().map_err(|error| say(&error))?;
        universe.finalize().map_err(|error| say(&error))?;
        Ok(found)
    })?;
    let first = ranks.into_iter().next().ok_or("no rank ran")?;
    Ok(first?)
}

/// Whether the operation makes system calls; none if the kernel cannot tell.
fn system_calls(operation: &Operation) -> Result<Option<bool>> {
    let status =
        Command::new(std::env::current_exe()?).args([CONFINED, operation.name]).status()?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(Some(false)),
        (Some(NOT_HERE), _) => Ok(None),
        (_, Some(libc::SIGSYS)) => Ok(Some(true)),
        _ => Err(format!("{}, confined: {status}", operation.name).into()),
    }
}

/// Does one operation in a thread that is ended by its first system call, then ends the process.
fn confined(name: &str) -> Result<()> {
    let mut known = OPERATIONS.iter().chain([&CONTROL]);
    let operation = known.find(|operation| operation.name == name);
    let operation = operation.ok_or_else(|| format!("no operation `{name}`"))?;
    // The first uses of all of them are over before the last is measured.
    let last = OPERATIONS.len() - 1;
    on_rank_0(Config::default(), |_, epoch, other| {
        if other.name == OPERATIONS[last].name {
            if let Err(error) = confine() {
                eprintln!("system calls are not counted here: {error}");
                exit(NOT_HERE);
            }
            exit(i32::from(repeat(operation, epoch).is_err()));
        }
        Ok(())
    })?;
    Err("rank 0 did not come to the operation".into())
}

/// Ends the process at once, whatever its other threads do.
fn exit(code: i32) -> ! {
    // SAFETY: ends the process; nothing is run that could be in a bad state.
    unsafe { libc::_exit(code) }
}

/// From now on, a system call of this thread other than the one of [`exit`] ends the process.
fn confine() -> io::Result<()> {
    io::stderr().flush()?;
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let mut program = [
        // The number is the first word of what a filter sees.
        statement(load, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit_group as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes plain numbers.
    let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if unprivileged != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the filter and its program live during the call, which copies them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
