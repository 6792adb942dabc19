//! What calls cost, as far as it can be counted. The data path of a near target makes no system
//! call and allocates nothing; an operation by messages is one message and one answer.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, Draft, row};
use crate::counting::{Counting, allocations};
use crate::measure::Work;
use crate::record::Unit;
use rma::{Assert, Layout, LockAll, LockKind, Op, Rank, Window};
use std::hint::black_box;

const PATHS: [&str; 2] = ["load_store", "messages"];
/// How often each is done, and a large one: what comes once is not seen.
const TIMES: u64 = 1000;
const TIMES_LARGE: u64 = 100;
/// Of what another process counts, which takes 10 us for a step.
const TRACED: u64 = 4;
/// Of a put, get and fetch_and_op of 8 B to a near target, with the loop around it.
const INSTRUCTIONS: f64 = 32.0;
/// Of one element by a request that is waited for, by a scope, by layouts, and combined by layouts
/// under the lock of its stripe; of an array of [`SOME`] elements, in vectors of 32 bytes.
const REQUEST: f64 = 80.0;
const SCOPE: f64 = 90.0;
const LAYOUT: f64 = 400.0;
const LAYOUT_SUM: f64 = 680.0;
const ARRAY: f64 = 320.0;
const ARRAY_WIDE: f64 = 280.0;
/// Of a lock that is free and given back with nothing done. Three are the look whether this thread
/// goes on without a lock of another node, four whether there is a table of locked targets.
const LOCK: f64 = 130.0;
/// Elements of an array that a level of caches holds beside much else.
const SOME: usize = 64;
/// Elements of a large operation, and of one that is not counted step by step.
const ELEMENTS: usize = 1 << 10;
const LARGE: usize = 1 << 17;

/// What may not be exceeded, for each operation.
#[derive(Clone, Copy, Default)]
struct Budget {
    instructions: Option<f64>,
    system_calls: Option<f64>,
    allocations: Option<f64>,
    /// That it sends and receives.
    messages: [Option<f64>; 2],
}

const NOTHING: Budget = Budget {
    instructions: None,
    system_calls: Some(0.0),
    allocations: Some(0.0),
    messages: [Some(0.0); 2],
};

/// The target waits in a barrier, and so serves.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let mut found = Found::default();
    let mut counting = bench.is_first().then(Counting::start);
    for path in PATHS {
        let window = bench.world().window(LARGE, 8).hint("rma_path", path)?.allocate()?;
        let mut counts = Counts { bench, counting: counting.as_mut(), path, found: &mut found };
        if counts.bench.is_first() {
            if path == PATHS[0] {
                counts.control()?;
            }
            let epoch = window.lock_all()?;
            counts.transfers(&epoch)?;
            if path == PATHS[0] {
                counts.flushes(&epoch)?;
            }
            counts.atomics(&epoch)?;
            counts.requests(&epoch)?;
            counts.scopes(&epoch)?;
            counts.layouts(&epoch)?;
            epoch.unlock()?;
            counts.epochs(&window)?;
        }
        counts.bench.world().barrier()?;
        counts.fences(&window)?;
        window.free()?;
    }
    if bench.is_first() {
        by_device(&mut found)?;
    }
    let all = [found.instructions, found.calls, found.fences, found.allocations, found.messages];
    for (draft, count) in all.into_iter().flatten() {
        bench.note(draft, Unit::Count, &[count])?;
    }
    Ok(())
}

/// What a device moves costs no message. All else is the simulator's here, and not counted.
fn by_device(found: &mut Found) -> Result<()> {
    let messages = rma::simulate_rdma(2, 0, |universe| -> std::result::Result<_, rma::Error> {
        let window = universe.world().window(1, 8).allocate()?;
        let dynamic = universe.world().window(0, 1).create_dynamic()?;
        let attached = dynamic.attach(vec![0u64; 1]).map_err(|refused| refused.error)?;
        let at = universe.world().allgather(&[attached.address()])?[1];
        let (epoch, mut rows) = (window.lock_all()?, Vec::new());
        let regions = dynamic.lock_all()?;
        // Rank 0 answers the other's requests for locks before it counts.
        universe.world().barrier()?;
        if universe.world().rank() == Rank(0) {
            let put_flush = || epoch.put(TARGET, 0, &[1u64]).and_then(|()| epoch.flush(TARGET));
            let get = || epoch.get(TARGET, 0, &mut [0u64]);
            let fetch = || epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64).map(drop);
            let put = || regions.put(TARGET, at, &[1u64]).and_then(|()| regions.flush(TARGET));
            let calls: [(_, &dyn Fn() -> _); 4] = [
                ("put + flush", &put_flush),
                ("get", &get),
                ("fetch_and_op", &fetch),
                ("put + flush, attached memory", &put),
            ];
            for (name, operation) in calls {
                operation()?;
                let sent = || universe.counters().messages_sent();
                let before = sent();
                (0..TIMES).try_for_each(|_| operation())?;
                rows.push((name, (sent() - before) as f64 / TIMES as f64));
            }
        }
        epoch.unlock()?;
        regions.unlock()?;
        dynamic.free()?;
        window.free()?;
        Ok(rows)
    });
    for rows in messages? {
        for (name, sent) in rows? {
            let call = call(name, 8);
            let draft = call.draft("messages sent", "simulated device", Some(0.0));
            found.messages.push((draft, sent));
        }
    }
    Ok(())
}

type Rows = Vec<(Draft, f64)>;

/// Rows by what is counted.
#[derive(Default)]
struct Found {
    instructions: Rows,
    calls: Rows,
    fences: Rows,
    allocations: Rows,
    messages: Rows,
}

struct Counts<'a, 'u> {
    bench: &'a mut Bench<'u>,
    counting: Option<&'a mut Counting>,
    path: &'static str,
    found: &'a mut Found,
}

/// An operation whose costs are counted.
struct Call {
    name: &'static str,
    bytes: Option<usize>,
    budget: Budget,
}

fn call(name: &'static str, bytes: impl Into<Option<usize>>) -> Call {
    Call { name, bytes: bytes.into(), budget: Budget::default() }
}

impl Call {
    /// An operation on the data path: near, it costs nothing of the system; by messages, one
    /// message and one answer.
    fn on_path(self, path: &str) -> Self {
        self.with_messages(path, [1.0; 2])
    }

    /// By other ways than load and store, so many messages sent and received.
    fn with_messages(self, path: &str, messages: [f64; 2]) -> Self {
        let far = Budget { messages: messages.map(Some), ..Budget::default() };
        Self { budget: if path == "load_store" { NOTHING } else { far }, ..self }
    }

    /// As [`on_path`](Self::on_path); by messages, as many as it takes.
    fn on_near_path(self, path: &str) -> Self {
        let budget = if path == "load_store" { NOTHING } else { Budget::default() };
        Self { budget, ..self }
    }

    /// Near, with few instructions.
    fn short(self, path: &str) -> Self {
        self.at_most(INSTRUCTIONS, path)
    }

    /// Near, with so many instructions.
    fn at_most(self, instructions: f64, path: &str) -> Self {
        let instructions = (path == "load_store").then_some(instructions);
        Self { budget: Budget { instructions, ..self.budget }, ..self }
    }

    fn draft(&self, what: &str, path: &str, most: Option<f64>) -> Draft {
        let draft = row(format!("{what}: {}, {path}", self.name));
        let draft = self.bytes.into_iter().fold(draft, Draft::bytes);
        most.into_iter().fold(draft, Draft::goal)
    }
}

/// The budget of an array: kernels have vectors of 64 bytes on CPUs with these parts of AVX-512.
fn of_array() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512fp16") {
        return ARRAY_WIDE;
    }
    ARRAY
}

/// To the hundredth: a message that is on its way when the counting starts, or a grant that comes
/// while its origin is preempted, is received within it.
fn hundredth(count: f64) -> f64 {
    (count * 100.0).round() / 100.0
}

impl Counts<'_, '_> {
    /// Counts all of `operation`, and of what comes behind the last of many.
    fn of(
        &mut self,
        call: &Call,
        mut operation: impl FnMut() -> Result<()>,
        end: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut work = |n| {
            for _ in 0..n {
                operation()?;
            }
            end()
        };
        work(1)?;
        self.allocations_and_messages(call, &mut work)?;
        let most = if self.path == "messages" { 8 } else { 8 * ELEMENTS };
        let is_long = call.bytes.is_some_and(|bytes| bytes > most);
        let Some(counting) = self.counting.as_mut() else { return Ok(()) };
        let (n, more) = if self.bench.is_smoke() { (1, 10) } else { (TRACED, 100) };
        let (path, budget) = (self.path, call.budget);
        if !is_long && let Some(count) = counting.instructions(n, &mut work)? {
            let what = format!("instructions {}", counting.how());
            self.found.instructions.push((call.draft(&what, path, budget.instructions), count));
        }
        if let Some(count) = counting.system_calls(more, &mut work)? {
            self.found.calls.push((call.draft("system calls", path, budget.system_calls), count));
        }
        Ok(())
    }

    fn allocations_and_messages(&mut self, call: &Call, work: Work<'_>) -> Result<()> {
        let is_large = call.bytes.is_some_and(|bytes| bytes > 8 * ELEMENTS);
        let times = if is_large { TIMES_LARGE } else { TIMES };
        let ([sent, received], allocated) = (self.bench.messages(), allocations());
        work(times)?;
        let (allocated_after, [sent_after, received_after]) =
            (allocations(), self.bench.messages());
        let each = |after: u64, before: u64| (after - before) as f64 / times as f64;
        let (path, budget) = (self.path, call.budget);
        let draft = |what, most| call.draft(what, path, most);
        let found = &mut self.found;
        let allocated = each(allocated_after, allocated);
        found.allocations.push((draft("allocations", budget.allocations), allocated));
        let there = hundredth(each(sent_after, sent));
        let back = hundredth(each(received_after, received));
        let [sent, received] = budget.messages;
        found.messages.push((draft("messages sent", sent), there));
        found.messages.push((draft("messages received", received), back));
        Ok(())
    }

    /// Checks the counters themselves.
    fn control(&mut self) -> Result<()> {
        let mut work = |n| {
            for _ in 0..n {
                drop(black_box(Box::new(1u64)));
                std::thread::yield_now();
            }
            Ok(())
        };
        let before = allocations();
        work(1)?;
        if allocations() - before != 1 {
            return Err("an allocation was not counted".into());
        }
        let Some(counting) = self.counting.as_mut() else { return Ok(()) };
        if counting.system_calls(TRACED, &mut work)?.is_some_and(|calls| calls != 1.0) {
            return Err("a system call was not counted".into());
        }
        if counting.instructions(TRACED, &mut work)?.is_some_and(|count| count < 10.0) {
            return Err("instructions were not counted".into());
        }
        Ok(())
    }

    fn transfers(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let path = self.path;
        let flush = || Ok(epoch.flush(TARGET)?);
        let put = || Ok(epoch.put(TARGET, 0, &[black_box(1u64)])?);
        self.of(&call("put", 8).on_path(path).short(path), put, flush)?;
        let put_flush = || {
            epoch.put(TARGET, 0, &[black_box(1u64)])?;
            flush()
        };
        self.of(&call("put + flush", 8).on_path(path), put_flush, flush)?;
        let get = || Ok(epoch.get(TARGET, 0, black_box(&mut [0u64]))?);
        self.of(&call("get", 8).on_path(path).short(path), get, flush)?;
        for elements in [ELEMENTS, LARGE] {
            let mut buffer = vec![1u64; elements];
            let bytes = size_of_val(&buffer[..]);
            let put = || Ok(epoch.put(TARGET, 0, black_box(&buffer[..]))?);
            self.of(&call("put", bytes).on_near_path(path), put, flush)?;
            let get = || Ok(epoch.get(TARGET, 0, black_box(&mut buffer[..]))?);
            self.of(&call("get", bytes).on_near_path(path), get, flush)?;
        }
        let nothing = |name| Call { budget: NOTHING, ..call(name, None) };
        self.of(&nothing("flush, nothing outstanding"), flush, flush)?;
        let flush_all = || Ok(epoch.flush_all()?);
        self.of(&nothing("flush_all, nothing outstanding"), flush_all, flush)
    }

    /// A flush is a fence after stores, and only then (ADR 9); nothing else shows on x86-64, where
    /// a fence that is missing is seldom missed. Near only.
    fn flushes(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let flush = || Ok(epoch.flush(TARGET)?);
        let flush_all = || Ok(epoch.flush_all()?);
        let put = || Ok(epoch.put(TARGET, 0, &[black_box(1u64)])?);
        let put_large = || Ok(epoch.put(TARGET, 0, black_box(&[1u64; 16]))?);
        let get = || Ok(epoch.get(TARGET, 0, black_box(&mut [0u64]))?);
        self.store_fences("flush, nothing outstanding", 0.0, &flush)?;
        self.store_fences("put", 0.0, &put)?;
        self.store_fences("put + flush", 1.0, &|| put().and_then(|()| flush()))?;
        self.store_fences("put of 128 B + flush", 1.0, &|| put_large().and_then(|()| flush()))?;
        self.store_fences("put + flush_all", 1.0, &|| put().and_then(|()| flush_all()))?;
        self.store_fences("get + flush", 0.0, &|| get().and_then(|()| flush()))?;
        flush()
    }

    fn store_fences(
        &mut self,
        name: &'static str,
        due: f64,
        operation: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(counting) = self.counting.as_mut() else { return Ok(()) };
        let mut work = |n| (0..n).try_for_each(|_| operation());
        let Some(count) = counting.fences(TRACED, &mut work)? else { return Ok(()) };
        if count < due {
            return Err(format!("{name}: {count} fences, and {due} due").into());
        }
        self.found.fences.push((call(name, None).draft("fences", self.path, Some(due)), count));
        Ok(())
    }

    fn atomics(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let path = self.path;
        let flush = || Ok(epoch.flush(TARGET)?);
        let fetch = || {
            black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, black_box(1u64))?);
            Ok(())
        };
        self.of(&call("fetch_and_op", 8).on_path(path).short(path), fetch, flush)?;
        let swap = || {
            black_box(epoch.compare_and_swap(TARGET, 0, black_box(1u64), 2)?);
            Ok(())
        };
        self.of(&call("compare_and_swap", 8).on_path(path), swap, flush)?;
        let accumulate = || Ok(epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1u64)])?);
        self.of(&call("accumulate", 8).on_path(path), accumulate, flush)?;
        let get_accumulate = || {
            let (one, mut before) = ([black_box(1u64)], [0u64]);
            epoch.get_accumulate(TARGET, 0, Op::Sum, &one, &mut before)?;
            black_box(&before);
            Ok(())
        };
        self.of(&call("get_accumulate", 8).on_path(path), get_accumulate, flush)?;
        let many = vec![1.0f64; ELEMENTS];
        let accumulate = || Ok(epoch.accumulate(TARGET, 0, Op::Sum, black_box(&many))?);
        self.of(&call("accumulate", 8 * ELEMENTS).on_near_path(path), accumulate, flush)?;
        let some = &many[..SOME];
        let accumulate = || Ok(epoch.accumulate(TARGET, 0, Op::Sum, black_box(some))?);
        let call = call("accumulate", size_of_val(some)).on_path(path).at_most(of_array(), path);
        self.of(&call, accumulate, flush)
    }

    /// One element by a scope, which costs little more than by itself.
    fn scopes(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let path = self.path;
        let flush = || Ok(epoch.flush(TARGET)?);
        let call = |name| call(name, 8).on_path(path).at_most(SCOPE, path);
        let value = [black_box(1u64)];
        let put = || Ok(epoch.ops(|ops| ops.put(TARGET, 0, black_box(&value)))?);
        self.of(&call("put in ops"), put, flush)?;
        let mut value = [0u64];
        let get = || Ok(epoch.ops(|ops| ops.get(TARGET, 0, black_box(&mut value)))?);
        self.of(&call("get in ops"), get, flush)?;
        let value = [black_box(1u64)];
        let sum = || Ok(epoch.ops(|ops| ops.accumulate(TARGET, 0, Op::Sum, black_box(&value)))?);
        self.of(&call("accumulate in ops"), sum, flush)
    }

    /// One element by layouts, which are looked at.
    fn layouts(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let path = self.path;
        let flush = || Ok(epoch.flush(TARGET)?);
        let call = |name, most| call(name, 8).on_path(path).at_most(most, path);
        let (word, real) = (Layout::element::<u64>(), Layout::element::<f64>());
        let value = [black_box(1u64)];
        let put = || Ok(epoch.put(TARGET, word.at(0), word.of(black_box(&value)))?);
        self.of(&call("put of a layout", LAYOUT), put, flush)?;
        let mut value = [0u64];
        let get = || Ok(epoch.get(TARGET, word.at(0), word.of(black_box(&mut value)))?);
        self.of(&call("get of a layout", LAYOUT), get, flush)?;
        let value = [black_box(1.0f64)];
        let sum =
            || Ok(epoch.accumulate(TARGET, real.at(0), Op::Sum, real.of(black_box(&value)))?);
        self.of(&call("accumulate of a layout", LAYOUT_SUM), sum, flush)
    }

    /// A request owns its buffer and gives it back: the same goes round.
    fn requests(&mut self, epoch: &LockAll<'_>) -> Result<()> {
        let path = self.path;
        let flush = || Ok(epoch.flush(TARGET)?);
        let mut buffer = vec![1u64];
        let rput = || {
            let origin = black_box(std::mem::take(&mut buffer));
            buffer = epoch.rput(TARGET, 0, origin)?.wait()?;
            Ok(())
        };
        let call = |name| call(name, 8).on_path(path).at_most(REQUEST, path);
        self.of(&call("rput + wait"), rput, flush)?;
        let rget = || {
            let origin = black_box(std::mem::take(&mut buffer));
            buffer = epoch.rget(TARGET, 0, origin)?.wait()?;
            Ok(())
        };
        self.of(&call("rget + wait"), rget, flush)?;
        let raccumulate = || {
            let origin = black_box(std::mem::take(&mut buffer));
            buffer = epoch.raccumulate(TARGET, 0, Op::Sum, origin)?.wait()?;
            Ok(())
        };
        self.of(&call("raccumulate + wait"), raccumulate, flush)
    }

    fn epochs(&mut self, window: &Window) -> Result<()> {
        let path = self.path;
        let kinds = [
            (
                "lock + unlock exclusive, empty",
                "lock + put + unlock exclusive",
                LockKind::Exclusive,
            ),
            ("lock + unlock shared, empty", "lock + put + unlock shared", LockKind::Shared),
        ];
        for (empty, with_put, kind) in kinds {
            let pair = || Ok(window.lock(TARGET, kind)?.unlock()?);
            let empty = call(empty, None).with_messages(path, [2.0, 1.0]);
            self.of(&empty.at_most(LOCK, path), pair, || Ok(()))?;
            let put = || {
                let epoch = window.lock(TARGET, kind)?;
                epoch.put(0, &[black_box(1u64)])?;
                Ok(epoch.unlock()?)
            };
            self.of(&call(with_put, 8).with_messages(path, [3.0, 2.0]), put, || Ok(()))?;
        }
        self.lock_alone(window)?;
        let pair = || Ok(window.lock_all()?.unlock()?);
        // This rank keeps that lock itself: it sends the answer, too.
        let call = call("lock_all + unlock_all, empty", None).with_messages(path, [3.0; 2]);
        self.of(&call, pair, || Ok(()))
    }

    /// The call of `lock` alone. A far one returns before the grant, which is a message (ADR 16):
    /// it sends its request and receives nothing, unless the thread loses its CPU in between.
    fn lock_alone(&mut self, window: &Window) -> Result<()> {
        let (call, mut messages) = (call("lock, by itself", None), [0; 2]);
        let due = if self.path == PATHS[0] { [0.0; 2] } else { [1.0, 0.5] };
        for _ in 0..TIMES {
            let before = self.bench.messages();
            let epoch = window.lock(TARGET, LockKind::Exclusive)?;
            let after = self.bench.messages();
            epoch.unlock()?;
            (0..2).for_each(|way| messages[way] += after[way] - before[way]);
        }
        for (way, what) in ["messages sent", "messages received"].into_iter().enumerate() {
            let draft = call.draft(what, self.path, Some(due[way]));
            let each = hundredth(messages[way] as f64 / TIMES as f64);
            self.found.messages.push((draft, each));
        }
        Ok(())
    }

    /// Steps and system calls would be those of ranks that wait for each other. **Collective.**
    fn fences(&mut self, window: &Window) -> Result<()> {
        let mut open = Some(window.fence(Assert::NONE)?);
        let mut fences = |n| {
            for _ in 0..n {
                open = open.take().map(|epoch| epoch.next(Assert::NONE)).transpose()?;
            }
            Ok(())
        };
        fences(1)?;
        self.allocations_and_messages(&call("fence", None), &mut fences)?;
        Ok(open.map_or(Ok(()), |epoch| epoch.end())?)
    }
}
