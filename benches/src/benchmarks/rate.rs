//! How many operations a second, with many under way: a flush or a wait comes behind a batch or a
//! round of them.
use super::TARGET;
use crate::Result;
use crate::aligned::{Aligned, Line};
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::raw::Raw;
use rma::{Element, LockAll, Op, Refused, Request, RmaError};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

/// Operations go round these many places, one behind the other; so many requests are under way.
const PLACES: u64 = 64;
/// Bytes of an operation; 8 besides.
const SIZES: [usize; 3] = [512, 4 << 10, 16 << 10];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// Bytes of a part.
const PART: usize = LARGEST * PLACES as usize;

/// By messages: some rounds of two processes that wait for each other.
const BATCH: Duration = Duration::from_millis(1);
const ROUNDS: usize = 101;

/// What an operation returns.
type Done<T> = std::result::Result<T, RmaError>;

pub(super) fn puts(bench: &mut Bench<'_>) -> Result<()> {
    let Some(direct) = bench.direct()? else { return Ok(()) };
    by(bench, direct, |rates| {
        let (epoch, words) = (rates.epoch, rates.words);
        let put = move |i: u64| epoch.put(TARGET, i % PLACES, &[i]);
        let store = move |i: u64| word(words, i).store(i, Relaxed);
        rates.flushed("put", 8, put, ("store", store))?;
        SIZES.iter().try_for_each(|bytes| rates.puts(*bytes))
    })
}

pub(super) fn others(bench: &mut Bench<'_>) -> Result<()> {
    if let Some(direct) = bench.direct()? {
        by(bench, direct, |rates| {
            rates.get()?;
            SIZES.iter().try_for_each(|bytes| rates.gets(*bytes))?;
            all_but_put_and_get(rates)
        })?;
    }
    bench.set_rounds(ROUNDS);
    bench.set_batch(BATCH);
    by(bench, "messages", |rates| {
        [8].iter().chain(&SIZES).try_for_each(|bytes| rates.puts(*bytes))?;
        all_but_put_and_get(rates)
    })
}

fn all_but_put_and_get(rates: &mut Rates<'_, '_, '_>) -> Result<()> {
    [8].iter().chain(&SIZES).try_for_each(|bytes| rates.requests(*bytes))?;
    rates.accumulates()?;
    rates.fetches()
}

/// Runs `rows` on rank 0, with a window whose target is reached that way.
fn by(
    bench: &mut Bench<'_>,
    path: &str,
    rows: impl FnOnce(&mut Rates<'_, '_, '_>) -> Result<()>,
) -> Result<()> {
    let window = bench.world().window(PART / 8, 8).hint("rma_path", path)?.allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let words: Vec<_> = (0..PLACES as usize).map(|i| part.word64(i * 8)).collect();
        let epoch = window.lock_all()?;
        let by_messages = path == "messages";
        rows(&mut Rates { bench, epoch: &epoch, part: &part, words: &words, by_messages })?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

struct Rates<'a, 'u, 'w> {
    bench: &'a mut Bench<'u>,
    epoch: &'a LockAll<'w>,
    part: &'a Raw<'w>,
    words: &'a [&'w AtomicU64],
    /// Which are made of nothing smaller: there is no limit.
    by_messages: bool,
}

fn word<'w>(words: &[&'w AtomicU64], i: u64) -> &'w AtomicU64 {
    words[(i % PLACES) as usize]
}

/// Where an operation of so many bytes goes: offset, and displacement in words.
fn place(i: u64, bytes: usize) -> (usize, u64) {
    let offset = (i % PLACES) as usize * bytes;
    (offset, offset as u64 / 8)
}

impl Rates<'_, '_, '_> {
    /// One after the other, and a flush behind the last.
    fn flushed(
        &mut self,
        name: &str,
        bytes: usize,
        mut operation: impl FnMut(u64) -> Done<()>,
        (what, mut limit): (&str, impl FnMut(u64)),
    ) -> Result<()> {
        let epoch = self.epoch;
        // Each owns what it works with: a step less on the way to it in every turn.
        let mut ours = move |n| {
            for i in 0..n {
                operation(i)?;
            }
            Ok(epoch.flush(TARGET)?)
        };
        let mut raw = move |n| {
            for i in 0..n {
                limit(i);
            }
            fence(SeqCst);
            Ok(())
        };
        self.measure(name, bytes, &mut ours, (what, &mut raw))
    }

    fn measure(
        &mut self,
        name: &str,
        bytes: usize,
        ours: Work<'_>,
        limit: (&str, Work<'_>),
    ) -> Result<()> {
        if self.by_messages {
            return self.bench.alone(
                row(format!("by messages, {name}")).bytes(bytes),
                ours,
                &mut [],
            );
        }
        self.bench.alone(row(name).bytes(bytes), ours, &mut [limit])
    }

    fn puts(&mut self, bytes: usize) -> Result<()> {
        let (epoch, part) = (self.epoch, self.part);
        let origin = Aligned::new(7u8, PART);
        let put = |i| {
            let (at, disp) = place(i, bytes);
            epoch.put(TARGET, disp, black_box(&origin[at..at + bytes]))
        };
        let copy = |i| {
            let (at, _) = place(i, bytes);
            part.write_memcpy_at(at, black_box(&origin[at..at + bytes]));
        };
        self.flushed("put", bytes, put, ("memcpy", copy))
    }

    /// Its loop is written out: a closure around it takes a fifth of its time.
    fn get(&mut self) -> Result<()> {
        let (epoch, words) = (self.epoch, self.words);
        let mut value = [0u64];
        let mut get = |n| {
            for i in 0..n {
                epoch.get(TARGET, i % PLACES, &mut value)?;
                black_box(&value);
            }
            Ok(epoch.flush(TARGET)?)
        };
        let mut load = |n| {
            for i in 0..n {
                black_box(&[word(words, i).load(Relaxed)]);
            }
            fence(SeqCst);
            Ok(())
        };
        self.measure("get", 8, &mut get, ("load", &mut load))
    }

    fn gets(&mut self, bytes: usize) -> Result<()> {
        let (epoch, part) = (self.epoch, self.part);
        let buffer = RefCell::new(Aligned::new(7u8, PART));
        let get = |i| {
            let (at, disp) = place(i, bytes);
            epoch.get(TARGET, disp, black_box(&mut buffer.borrow_mut()[at..at + bytes]))
        };
        let copy = |i| {
            let (at, _) = place(i, bytes);
            part.read_memcpy_at(at, black_box(&mut buffer.borrow_mut()[at..at + bytes]));
        };
        self.flushed("get", bytes, get, ("memcpy", copy))
    }

    /// Rounds of requests: all are made, and then all are waited for.
    fn requests(&mut self, bytes: usize) -> Result<()> {
        let lines = || vec![Line([7; 64]); bytes / size_of::<Line>()];
        if bytes == 8 { self.requests_of(|| vec![7u64]) } else { self.requests_of(lines) }
    }

    fn requests_of<E: Element>(&mut self, buffer: impl Fn() -> Vec<E>) -> Result<()> {
        let (epoch, part, bytes) = (self.epoch, self.part, size_of_val(&buffer()[..]));
        let other = RefCell::new(Aligned::new(7u8, PART));
        let mut buffers: Vec<_> = (0..PLACES).map(|_| buffer()).collect();
        let mut rput = |n| {
            rounds(n, &mut buffers, |i, buffer| epoch.rput(TARGET, place(i, bytes).1, buffer))?;
            Ok(epoch.flush(TARGET)?)
        };
        let mut write = |n| {
            let other = other.borrow();
            for i in 0..n {
                let (at, _) = place(i, bytes);
                part.write_memcpy_at(at, black_box(&other[at..at + bytes]));
            }
            Ok(())
        };
        self.measure("rput, 64 and a wait for all", bytes, &mut rput, ("memcpy", &mut write))?;
        let mut rget =
            |n| rounds(n, &mut buffers, |i, buffer| epoch.rget(TARGET, place(i, bytes).1, buffer));
        let mut read = |n| {
            let mut other = other.borrow_mut();
            for i in 0..n {
                let (at, _) = place(i, bytes);
                part.read_memcpy_at(at, black_box(&mut other[at..at + bytes]));
            }
            Ok(())
        };
        self.measure("rget, 64 and a wait for all", bytes, &mut rget, ("memcpy", &mut read))
    }

    fn accumulates(&mut self) -> Result<()> {
        let (epoch, words) = (self.epoch, self.words);
        let add = move |i: u64| _ = black_box(word(words, i).fetch_add(black_box(1), SeqCst));
        let accumulate =
            move |i: u64| epoch.accumulate(TARGET, i % PLACES, Op::Sum, &[black_box(1i64)]);
        self.flushed("accumulate i64 sum", 8, accumulate, ("fetch_add", add))?;
        let mut before = [0i64];
        let get_accumulate = move |i: u64| {
            let one = [black_box(1i64)];
            epoch.get_accumulate(TARGET, i % PLACES, Op::Sum, &one, &mut before)?;
            black_box(&before);
            Ok(())
        };
        self.flushed("get_accumulate i64 sum", 8, get_accumulate, ("fetch_add", add))
    }

    fn fetches(&mut self) -> Result<()> {
        let (epoch, words) = (self.epoch, self.words);
        let fetch = move |i: u64| {
            black_box(epoch.fetch_and_op(TARGET, i % PLACES, Op::Sum, 1u64)?);
            Ok(())
        };
        let add = move |i: u64| _ = black_box(word(words, i).fetch_add(1, SeqCst));
        self.flushed("fetch_and_op sum", 8, fetch, ("fetch_add", add))?;
        // Whether it swaps is all the same: the instruction is the same.
        let swap = move |i: u64| {
            black_box(epoch.compare_and_swap(TARGET, i % PLACES, 0u64, 0)?);
            Ok(())
        };
        let exchange =
            move |i: u64| _ = black_box(word(words, i).compare_exchange(0, 0, SeqCst, SeqCst));
        self.flushed("compare_and_swap", 8, swap, ("compare_exchange", exchange))
    }
}

/// Makes `n` requests by `make`, [`PLACES`] at a time; a request owns its buffer and gives it back.
fn rounds<'w, E: Element>(
    n: u64,
    buffers: &mut Vec<Vec<E>>,
    make: impl Fn(u64, Vec<E>) -> std::result::Result<Request<'w, Vec<E>>, Refused<Vec<E>>>,
) -> Result<()> {
    let mut under_way = Vec::with_capacity(buffers.len());
    let mut left = n;
    while left > 0 {
        let round = left.min(PLACES);
        left -= round;
        for (i, buffer) in (0..round).zip(buffers.drain(..round as usize)) {
            under_way.push(make(i, black_box(buffer))?);
        }
        for request in under_way.drain(..) {
            buffers.push(request.wait()?);
        }
    }
    Ok(())
}
