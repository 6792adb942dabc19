//! Small operations on a target that only a network reaches.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use rma::{Layout, LockAll, Op};
use rma_transport_ofi::{RawLink, RawMemory};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::thread;
use std::time::Duration;

/// Bytes of what ranks tell each other of their ends: a length and an address, where memory is
/// reached in the same way, a port.
const CARD: usize = 256;
const MEMORY_AT: usize = 128;
const PORT_AT: usize = CARD - 2;

/// Longer than a thread of the target looks for more of what came last, be it rma's or the limit's:
/// it has a core for all of them.
const SETTLE: Duration = Duration::from_millis(2);

/// Bytes of large operations, and of the window.
const LARGE: usize = 1 << 20;

/// Runs of layouts, and 64-bit words in each.
const LAYOUTS: [(u64, u64); 5] = [(2, 1), (16, 1), (16, 1024), (64, 64), (256, 8)];

/// What rank 0 has to measure the limits with: transfers by the same provider without rma, and
/// round trips of messages.
type Ends<'e> = (&'e mut RawLink, &'e mut RawMemory, TcpStream);

/// Single operations.
/// It works in a job of any transport; `rma-run --transport ofi` is meant.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    with_ends(bench, rows)
}

/// Runs of bytes with gaps between them.
pub(super) fn run_layouts(bench: &mut Bench<'_>) -> Result<()> {
    with_ends(bench, layouts)
}

/// Rank 1 has a thread for each of the ends that serves, or sends back what comes.
fn with_ends(
    bench: &mut Bench<'_>,
    rows: fn(&mut Bench<'_>, Option<Ends<'_>>) -> Result<()>,
) -> Result<()> {
    bench.settle(SETTLE);
    let stop = AtomicBool::new(false);
    let mut link = RawLink::open(None, "127.0.0.1")?;
    let mut memory = RawMemory::open(None, "127.0.0.1")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let cards = bench.world().allgather(&card(link.address(), &memory.card(), port))?;
    let (first, second) = cards.split_at(CARD);
    let theirs = if bench.is_first() { second } else { first };
    let (address, far, port) = read(theirs).ok_or("a card that is none")?;
    if !link.connect(address) || !memory.connect(far) {
        return Err("the other rank has another provider".into());
    }
    thread::scope(|scope| {
        let measured = if bench.is_first() {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            rows(bench, Some((&mut link, &mut memory, stream)))
        } else {
            let (stop, mut link) = (&stop, link);
            scope.spawn(move || memory.serve(stop));
            scope.spawn(move || {
                while let Some(len) = link.receive(stop) {
                    if !link.send(len) {
                        break;
                    }
                }
            });
            scope.spawn(move || {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let mut word = [0; 8];
                // Both end when the other rank closes its end.
                _ = stream.set_nodelay(true);
                while stream.read_exact(&mut word).and_then(|()| stream.write_all(&word)).is_ok() {}
            });
            rows(bench, None)
        };
        stop.store(true, Release);
        measured
    })
}

fn card(address: &[u8], memory: &[u8], port: u16) -> [u8; CARD] {
    let mut card = [0; CARD];
    for (at, bytes) in [(0, address), (MEMORY_AT, memory)] {
        card[at] = bytes.len() as u8;
        card[at + 1..][..bytes.len()].copy_from_slice(bytes);
    }
    card[PORT_AT..].copy_from_slice(&port.to_le_bytes());
    card
}

fn read(card: &[u8]) -> Option<(&[u8], &[u8], u16)> {
    let part = |at: usize| {
        let (len, rest) = card.get(at..)?.split_first()?;
        rest.get(..usize::from(*len))
    };
    let port = card.get(PORT_AT..)?.try_into().ok()?;
    Some((part(0)?, part(MEMORY_AT)?, u16::from_le_bytes(port)))
}

fn rows(bench: &mut Bench<'_>, ends: Option<Ends<'_>>) -> Result<()> {
    let window = bench.world().window(LARGE, size_of::<u64>()).allocate()?;
    if let Some((link, memory, stream)) = ends {
        let epoch = window.lock_all()?;
        transfers(bench, &epoch, memory)?;
        messages(bench, &epoch, (link, memory), stream)?;
        epoch.unlock()?;
        atomics(bench, Some(memory))?;
    } else {
        atomics(bench, None)?;
    }
    Ok(window.free()?)
}

/// Runs with a gap of one word behind each, by the way that the window takes. The limits are the
/// two ways that there are: all of it packed into messages, and raw transfers, one for each run.
fn layouts(bench: &mut Bench<'_>, ends: Option<Ends<'_>>) -> Result<()> {
    let builder = || bench.world().window(LARGE, size_of::<u64>());
    let chosen = builder().allocate()?;
    let packed = builder().hint("rma_path", "messages")?.allocate()?;
    if let Some((_, memory, _)) = ends {
        let (epoch, by_messages) = (chosen.lock_all()?, packed.lock_all()?);
        for (runs, words) in LAYOUTS {
            layout(bench, [&epoch, &by_messages], memory, (runs, words))?;
        }
        by_messages.unlock()?;
        epoch.unlock()?;
    }
    packed.free()?;
    Ok(chosen.free()?)
}

fn layout(
    bench: &mut Bench<'_>,
    [epoch, by_messages]: [&LockAll<'_>; 2],
    memory: &mut RawMemory,
    (runs, words): (u64, u64),
) -> Result<()> {
    let word = Layout::element::<u64>();
    let apart = word.vector(runs, words, words as i64 + 1)?;
    let dense = word.times(runs * words);
    let values = vec![1u64; (runs * words) as usize];
    let (bytes, run) = (size_of_val(&values[..]), words as usize * size_of::<u64>());
    let put = |epoch: &LockAll<'_>, n: u64| -> Result<()> {
        for _ in 0..n {
            epoch.put(TARGET, apart.at(0), dense.of(&values))?;
            epoch.flush(TARGET)?;
        }
        Ok(())
    };
    let mut ours = |n: u64| put(epoch, n);
    let mut packed = |n: u64| put(by_messages, n);
    let mut raw = |n: u64| (0..n).try_for_each(|_| done(memory.write(run, runs)));
    let draft = row(format!("put + flush of {runs} runs by libfabric")).bytes(bytes);
    let limits: &mut [(&str, Work<'_>)] =
        &mut [("packed into messages", &mut packed), ("fi_write of each run", &mut raw)];
    bench.alone(draft, &mut ours, limits)?;
    let get = |epoch: &LockAll<'_>, values: &mut [u64], n: u64| -> Result<()> {
        for _ in 0..n {
            epoch.get(TARGET, apart.at(0), dense.of(&mut *values))?;
            black_box(&values);
        }
        Ok(())
    };
    let (mut first, mut second) = (values.clone(), values.clone());
    let mut ours = |n: u64| get(epoch, &mut first, n);
    let mut packed = |n: u64| get(by_messages, &mut second, n);
    let mut raw = |n: u64| (0..n).try_for_each(|_| done(memory.read(run, runs)));
    let draft = row(format!("get of {runs} runs by libfabric")).bytes(bytes);
    let limits: &mut [(&str, Work<'_>)] =
        &mut [("packed into messages", &mut packed), ("fi_read of each run", &mut raw)];
    bench.alone(draft, &mut ours, limits)
}

/// Where the provider combines elements of a window that asks for the device.
fn atomics(bench: &mut Bench<'_>, memory: Option<&mut RawMemory>) -> Result<()> {
    let builder = bench.world().window(1, size_of::<u64>()).hint("rma_path", "device")?;
    let window = builder.allocate()?;
    if let Some(memory) = memory {
        let epoch = window.lock_all()?;
        epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?;
        if window.operation_counts().device > 0 {
            let mut fetch = |n: u64| -> Result<()> {
                for _ in 0..n {
                    black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
                }
                Ok(())
            };
            let mut raw = |n: u64| done(memory.fetch(n));
            let draft = row("fetch_and_op sum by the provider").bytes(8).goal(1.1);
            bench.alone(draft, &mut fetch, &mut [("fi_fetch_atomic", &mut raw)])?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn done(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err("the raw transfer failed".into()) }
}

fn transfers(bench: &mut Bench<'_>, epoch: &LockAll<'_>, memory: &mut RawMemory) -> Result<()> {
    for (bytes, goal) in [(size_of::<u64>(), 1.1), (LARGE, 1.0 / 0.95)] {
        let mut values = vec![1u64; bytes / size_of::<u64>()];
        let mut put = |n: u64| -> Result<()> {
            for _ in 0..n {
                epoch.put(TARGET, 0, &values)?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        };
        let mut write = |n: u64| (0..n).try_for_each(|_| done(memory.write(bytes, 1)));
        let draft = row("put + flush by libfabric").bytes(bytes).goal(goal);
        bench.alone(draft, &mut put, &mut [("fi_write, delivered", &mut write)])?;
        let mut get = |n: u64| -> Result<()> {
            for _ in 0..n {
                epoch.get(TARGET, 0, &mut values)?;
                black_box(&values);
            }
            Ok(())
        };
        let mut read = |n: u64| (0..n).try_for_each(|_| done(memory.read(bytes, 1)));
        let draft = row("get by libfabric").bytes(bytes).goal(goal);
        bench.alone(draft, &mut get, &mut [("fi_read", &mut read)])?;
    }
    let mut puts = |n: u64| -> Result<()> {
        for i in 0..n {
            epoch.put(TARGET, 0, &[i])?;
        }
        Ok(epoch.flush(TARGET)?)
    };
    let mut writes = |n: u64| done(memory.write(size_of::<u64>(), n));
    let draft = row("put by libfabric, of many").bytes(size_of::<u64>()).goal(1.0 / 0.8);
    bench.alone(draft, &mut puts, &mut [("fi_write, of many", &mut writes)])
}

fn messages(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    (link, memory): (&mut RawLink, &mut RawMemory),
    mut stream: TcpStream,
) -> Result<()> {
    let never = AtomicBool::new(false);
    let mut by_link = |n: u64| -> Result<()> {
        for _ in 0..n {
            if !link.send(size_of::<u64>()) || link.receive(&never).is_none() {
                return Err("the raw link is broken".into());
            }
        }
        Ok(())
    };
    let mut by_tcp = |n: u64| -> Result<()> {
        let mut word = [0; 8];
        for _ in 0..n {
            stream.write_all(&word)?;
            stream.read_exact(&mut word)?;
        }
        Ok(())
    };
    let mut fetch = |n: u64| -> Result<()> {
        for _ in 0..n {
            black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
        }
        Ok(())
    };
    let fetches = memory.fetches();
    let mut by_provider = |n: u64| done(memory.fetch(n));
    let mut limits: Vec<(&str, Work<'_>)> =
        vec![("round trip of fi_send", &mut by_link), ("round trip of TCP", &mut by_tcp)];
    if fetches {
        limits.push(("fi_fetch_atomic", &mut by_provider));
    }
    bench.alone(row("fetch_and_op sum by libfabric").bytes(8), &mut fetch, &mut limits)
}
