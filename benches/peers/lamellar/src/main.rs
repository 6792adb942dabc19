//! What `peerbench` measures of MPI libraries, of the crate lamellar: two ranks of one machine over
//! its backend of shared memory. Each result is a line of JSON, as those of `peerbench`.
//!
//! Started by hand or by `rma-bench` it starts its two ranks, and ends both when one fails or when
//! their time is over.
#![allow(unsafe_code)]
use lamellar::array::prelude::*;
use lamellar::memregion::prelude::*;
use std::env;
use std::fs;
use std::io::Error;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ORIGIN: usize = 0;
const TARGET: usize = 1;
/// By which a process of this program knows that it is a rank, and which.
const RANK: &str = "LAMELLAR_PE_ID";
const SIZES: [usize; 9] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];
const BATCHES: usize = 101;
/// Least length of a batch: short, so that most are not disturbed by threads of lamellar's own.
const BATCH: Duration = Duration::from_micros(200);
/// Of one test, unless five batches take longer.
const BUDGET: Duration = Duration::from_millis(400);

/// `[--timeout-s N] GROUP`
fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let group = words.last().map_or("", String::as_str);
    if let Some(rank) = env::var(RANK).ok().and_then(|rank| rank.parse().ok()) {
        pin_to(rank);
        return match group {
            "lat" => latency(),
            "progress" => busy_target(),
            "atomic" => atomics(),
            _ => return usage(),
        };
    }
    let limit_s = match &words[..] {
        [_] => 600,
        [option, limit_s, _] if option == "--timeout-s" => limit_s.parse().unwrap_or(600),
        _ => return usage(),
    };
    match job(group, Duration::from_secs(limit_s)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peerbench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps this rank on a CPU of its own, as `peerbench` does; threads that it starts stay there too.
fn pin_to(cpu: usize) {
    // SAFETY: a set of CPUs is plain bits, of which none is set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to `set` only, and a machine has fewer CPUs than a set has bits.
    unsafe { libc::CPU_SET(cpu % cpus(), &mut set) };
    // SAFETY: it reads `set`, whose size this is. Where it fails, the rank stays unpinned.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn usage() -> ExitCode {
    eprintln!("peerbench: usage: peerbench-lamellar [--timeout-s N] lat|progress|atomic");
    ExitCode::from(2)
}

/// Starts the two ranks and says whether both ended well.
fn job(group: &str, limit: Duration) -> Result<bool, Error> {
    let program = env::current_exe()?;
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command.env("LAMELLAR_BACKEND", "shmem").env("LAMELLAR_NUM_PES", "2");
        command.env("LAMELLAR_JOB_ID", std::process::id().to_string());
        // More threads would take the CPU of the other rank.
        command.env("LAMELLAR_THREADS", "1").env("LAMELLAR_HEAP_SIZE", (512_u32 << 20).to_string());
        // It writes a file of its settings to where it runs.
        command.current_dir(program.parent().unwrap_or(Path::new(".")));
        command.env(RANK, rank.to_string()).arg(group).spawn()
    };
    let mut ranks: Vec<Child> = Vec::new();
    for rank in [ORIGIN, TARGET] {
        ranks.push(start(rank)?);
    }
    let end = Instant::now() + limit;
    loop {
        let mut running = 0;
        let mut is_well = true;
        for rank in &mut ranks {
            match rank.try_wait()? {
                Some(status) => is_well &= status.success(),
                None => running += 1,
            }
        }
        if !is_well || Instant::now() >= end {
            for rank in &mut ranks {
                // One that has just ended needs no end.
                let _ = rank.kill();
                rank.wait()?;
            }
            eprintln!("peerbench: {}", if is_well { "timed out" } else { "a rank failed" });
            return Ok(false);
        }
        if running == 0 {
            return Ok(true);
        }
        sleep(Duration::from_millis(10));
    }
}

/// What a timed test is called.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    bytes: usize,
}

impl Test {
    fn emit(self, mut micros: Vec<f64>, iterations: u64) {
        micros.sort_by(f64::total_cmp);
        let Self { name, bytes } = self;
        let (min, max, batches) = (micros[0], micros[micros.len() - 1], micros.len());
        let value = micros[batches / 2];
        println!(
            "{{\"test\":\"{name}\",\"bytes\":{bytes},\"value\":{value},\"unit\":\"us\",\
             \"min\":{min},\"max\":{max},\"batches\":{batches},\"iters\":{iterations},\"ranks\":2}}"
        );
    }

    fn fault(self, what: &str) {
        let Self { name, bytes } = self;
        println!(
            "{{\"test\":\"{name}\",\"bytes\":{bytes},\"value\":null,\"unit\":\"fault\",\
             \"fault\":\"{what}\",\"ranks\":2}}"
        );
    }

    /// Times batches of `work`, and prints their median.
    fn measure(self, mut work: impl FnMut()) {
        let mut time = |count: u64| {
            let start = Instant::now();
            (0..count).for_each(|_| work());
            start.elapsed()
        };
        let mut count = 1;
        time(1);
        let mut took = time(1);
        while took < BATCH {
            count *= 2;
            // An interrupted one says nothing.
            took = time(count).min(time(count));
        }
        let fit = BUDGET.as_nanos() / took.as_nanos().max(1);
        let batches = (fit as usize).clamp(5, BATCHES);
        let micros = |_| time(count).as_secs_f64() * 1e6 / count as f64;
        self.emit((0..batches).map(micros).collect(), count);
    }
}

/// The share of its time that this thread was ready to run and had no CPU.
fn waited() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let times: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match times[..] {
        [ran, waited, ..] if ran + waited > 0.0 => waited / (ran + waited),
        _ => 0.0,
    }
}

fn say_waited() {
    let share = waited();
    println!(
        "{{\"test\":\"launch_waited\",\"bytes\":0,\"value\":{share},\"unit\":\"share\",\
         \"ranks\":2}}"
    );
}

/// Puts and gets, each complete. One element is put by `put_blocking`, which returns when it is
/// delivered, and got by `get`; more go from and into registered memory, without a copy, by
/// `put_buffer` and `get_into_buffer`, whose handles are waited for.
fn latency() -> ExitCode {
    let world = LamellarWorldBuilder::new().build();
    let most = SIZES[SIZES.len() - 1] / 8;
    let window: SharedMemoryRegion<u64> = world.alloc_shared_mem_region(most).block();
    let all: OneSidedMemoryRegion<u64> = world.alloc_one_sided_mem_region(most);
    let is_origin = world.my_pe() == ORIGIN;
    for (size, value) in SIZES.into_iter().zip(1_u64..) {
        let buffer = all.sub_region(0..size / 8);
        let put = Test { name: "put_flush/alloc", bytes: size };
        let get = Test { name: "get_flush/alloc", bytes: size };
        // SAFETY: no operation of any rank is under way on this memory of this rank's own.
        unsafe { buffer.as_mut_slice() }.fill(value);
        world.barrier();
        if is_origin && size == 8 {
            // SAFETY: the target is in the barrier below and touches no byte of its part.
            put.measure(|| unsafe { window.put_blocking(TARGET, 0, value) });
        } else if is_origin {
            // SAFETY: as above, and `buffer` is not touched until the handle is done.
            put.measure(|| unsafe { window.put_buffer(TARGET, 0, &buffer) }.block());
        }
        world.barrier();
        // SAFETY: between the barriers no rank writes.
        let part = unsafe { window.as_slice() };
        if !is_origin && part[..size / 8].iter().any(|found| *found != value) {
            put.fault("wrong data at the target");
        }
        // SAFETY: no operation of any rank is under way on this memory of this rank's own.
        unsafe { buffer.as_mut_slice() }.fill(0);
        world.barrier();
        if is_origin {
            let mut one = 0;
            if size == 8 {
                // SAFETY: no rank writes until the barrier below.
                get.measure(|| one = unsafe { window.get(TARGET, 0) }.block());
            } else {
                get.measure(|| {
                    let whole = buffer.clone();
                    // SAFETY: nothing else touches `buffer` until the handle is done.
                    let into = unsafe { LamellarBuffer::from_one_sided_memory_region(whole) };
                    // SAFETY: no rank writes until the barrier below.
                    unsafe { window.get_into_buffer(TARGET, 0, into) }.block();
                });
            }
            // SAFETY: every get is done.
            let got = unsafe { buffer.as_slice() };
            if (size == 8 && one != value) || (size > 8 && got.iter().any(|found| *found != value))
            {
                get.fault("wrong data at the origin");
            }
        }
        world.barrier();
    }
    if is_origin {
        say_waited();
    }
    ExitCode::SUCCESS
}

/// A put while the target computes and calls nothing of lamellar.
fn busy_target() -> ExitCode {
    let world = LamellarWorldBuilder::new().build();
    let most = 1 << 17;
    let window: SharedMemoryRegion<u64> = world.alloc_shared_mem_region(most).block();
    let all: OneSidedMemoryRegion<u64> = world.alloc_one_sided_mem_region(most);
    // SAFETY: no operation of any rank is under way on this memory of this rank's own.
    unsafe { all.as_mut_slice() }.fill(1);
    for size in [8, 1 << 20] {
        let buffer = all.sub_region(0..size / 8);
        let put = || {
            if size == 8 {
                // SAFETY: the target touches no byte of its part.
                unsafe { window.put_blocking(TARGET, 0, 1) };
            } else {
                // SAFETY: as above, and `buffer` is not touched until the handle is done.
                unsafe { window.put_buffer(TARGET, 0, &buffer) }.block();
            }
        };
        world.barrier();
        if world.my_pe() == ORIGIN {
            // The target is past the barrier then, and computes until all is timed.
            sleep(Duration::from_millis(20));
            Test { name: "busy_put/alloc", bytes: size }.measure(put);
        } else {
            compute(2 * BUDGET);
        }
        world.barrier();
    }
    ExitCode::SUCCESS
}

fn compute(time: Duration) {
    let end = Instant::now() + time;
    let mut value = 1.0_f64;
    while Instant::now() < end {
        for _ in 0..1000 {
            value = std::hint::black_box(value * 1.000_000_1);
        }
    }
}

/// Atomics on an element of the target, of an `AtomicArray`: memory regions have none that fetch
/// and add, or compare.
fn atomics() -> ExitCode {
    let world = LamellarWorldBuilder::new().build();
    // Of two elements in blocks, the second is the target's.
    let array = AtomicArray::<i64>::new(&world, 2, Distribution::Block).block();
    world.barrier();
    if world.my_pe() == ORIGIN {
        let add = Test { name: "fetch_op_sum_i64/alloc", bytes: 8 };
        let mut calls = 0;
        add.measure(|| {
            let before = array.fetch_add(TARGET, 1).block();
            assert_eq!(before, calls, "each call adds one");
            calls += 1;
        });
        let swap = Test { name: "cas_i64/alloc", bytes: 8 };
        swap.measure(|| {
            let before = array.compare_exchange(TARGET, calls, calls + 1).block();
            assert_eq!(before, Ok(calls), "nobody else writes");
            calls += 1;
        });
        say_waited();
    }
    world.barrier();
    ExitCode::SUCCESS
}
