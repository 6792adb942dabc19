//! Small operations on a target that only a network reaches.
use super::TARGET;
use super::target::process_of_target;
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::record::Unit;
use crate::stopped::stop;
use rma::{Layout, LockAll, LockKind, Op, Window};
use rma_transport_ofi::{RawLink, RawMemory};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of what ranks tell each other of their ends: a length and an address, where memory is
/// reached in the same way, a port.
const CARD: usize = 512;
const MEMORY_AT: usize = 160;
const HOST_AT: usize = 400;
const PORT_AT: usize = CARD - 2;

/// Longer than a thread of the target looks for more of what came last, be it rma's or the limit's:
/// it has a core for all of them.
const SETTLE: Duration = Duration::from_millis(2);

/// So long an end of TCP looks for what comes.
const SPIN: Duration = Duration::from_millis(1);

/// Bytes of large operations, and of the window.
const LARGE: usize = 1 << 20;

/// Puts before a flush, in the row of many: each has a word of its own.
const MANY: u64 = 10_000;
const MANY_ROUNDS: usize = 101;

/// Bytes of a `fetch_and_op` of a word, and of its answer: a header with a tag, one of the core,
/// and the word.
const REQUEST: usize = 24 + 40 + 8;

/// So long a target is stopped.
const STOP: Duration = Duration::from_millis(300);

/// Runs of layouts, and 64-bit words in each.
const LAYOUTS: [(u64, u64); 5] = [(2, 1), (16, 1), (16, 1024), (64, 64), (256, 8)];

/// What rank 0 has to measure the limits with: transfers by the same provider without rma, and
/// round trips of messages.
pub(super) type Ends<'e> = (&'e mut RawLink, &'e mut RawMemory, TcpStream);

/// Single operations.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    with_ends(bench, rows)
}

/// Runs of bytes with gaps between them.
pub(super) fn run_layouts(bench: &mut Bench<'_>) -> Result<()> {
    with_ends(bench, layouts)
}

/// Rank 1 has a thread for each of the ends that serves, or sends back what comes.
pub(super) fn with_ends(
    bench: &mut Bench<'_>,
    rows: fn(&mut Bench<'_>, Option<Ends<'_>>) -> Result<()>,
) -> Result<()> {
    bench.needs_far(TARGET)?;
    bench.settle(SETTLE);
    let stop = AtomicBool::new(false);
    let explained = bench.universe().explain();
    let host = host_of(&explained);
    let provider =
        provider_of(&explained).ok_or("no provider is named by what explains this job")?;
    let mut link = RawLink::open(Some(provider), &host.to_string())?;
    let mut memory = RawMemory::open(Some(provider), &host.to_string())?;
    let listener = TcpListener::bind((host, 0))?;
    let port = listener.local_addr()?.port();
    let mine = card([link.address(), &memory.card(), host.to_string().as_bytes()], port);
    let cards = bench.world().allgather(&mine)?;
    let (first, second) = cards.split_at(CARD);
    let theirs = if bench.is_first() { second } else { first };
    let (address, far, there) = read(theirs).ok_or("a card that is none")?;
    if !link.connect(address) || !memory.connect(far) {
        return Err("the other rank has another provider".into());
    }
    thread::scope(|scope| {
        let measured = if bench.is_first() {
            let stream = TcpStream::connect(there)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
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
                _ = stream.set_nodelay(true);
                _ = stream.set_nonblocking(true);
                // It ends when the other rank closes its end.
                while receive(&mut stream, &mut word).is_ok() && stream.write_all(&word).is_ok() {}
            });
            rows(bench, None)
        };
        stop.store(true, Release);
        measured
    })
}

/// The provider that this job has, by whatever choice: the limits are of the same.
fn provider_of(explained: &str) -> Option<&str> {
    let (_, named) = explained.split_once("ofi: provider ")?;
    named.split_whitespace().next()
}

/// The address that the provider has been opened at, if it is one of IP.
fn host_of(explained: &str) -> IpAddr {
    let named = explained.split_whitespace().find_map(|word| {
        let (_, address) = word.split_once("://")?;
        let (host, _) = address.rsplit_once(':')?;
        host.trim_matches(['[', ']']).parse().ok()
    });
    named.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn card([address, memory, host]: [&[u8]; 3], port: u16) -> [u8; CARD] {
    let mut card = [0; CARD];
    for (at, bytes) in [(0, address), (MEMORY_AT, memory), (HOST_AT, host)] {
        card[at] = bytes.len() as u8;
        card[at + 1..][..bytes.len()].copy_from_slice(bytes);
    }
    card[PORT_AT..].copy_from_slice(&port.to_le_bytes());
    card
}

fn read(card: &[u8]) -> Option<(&[u8], &[u8], SocketAddr)> {
    let part = |at: usize| {
        let (len, rest) = card.get(at..)?.split_first()?;
        rest.get(..usize::from(*len))
    };
    let port = card.get(PORT_AT..)?.try_into().ok()?;
    let host = std::str::from_utf8(part(HOST_AT)?).ok()?.parse().ok()?;
    Some((part(0)?, part(MEMORY_AT)?, SocketAddr::new(host, u16::from_le_bytes(port))))
}

fn rows(bench: &mut Bench<'_>, ends: Option<Ends<'_>>) -> Result<()> {
    let window = bench.world().window(LARGE, size_of::<u64>()).allocate()?;
    let target = process_of_target(bench)?;
    if let Some((link, memory, mut stream)) = ends {
        let epoch = window.lock_all()?;
        transfers(bench, &epoch, memory, &mut stream)?;
        messages(bench, &epoch, (link, memory), stream)?;
        epoch.unlock()?;
        locks(bench, &window, link)?;
        of_many(bench, &window, memory)?;
        if let Some(target) = target {
            stopped(bench, &window, target)?;
        }
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

pub(super) fn done(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err("the raw transfer failed".into()) }
}

/// Of a word.
fn round_trips(stream: &mut TcpStream, n: u64) -> Result<()> {
    let mut word = [0; 8];
    for _ in 0..n {
        stream.write_all(&word)?;
        receive(stream, &mut word)?;
    }
    Ok(())
}

/// Looks for a word as long as the ends of libfabric look, and sleeps then.
fn receive(stream: &mut TcpStream, word: &mut [u8; 8]) -> std::io::Result<()> {
    let (start, mut filled) = (Instant::now(), 0);
    while filled < word.len() {
        match stream.read(&mut word[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => filled += more,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if start.elapsed() > SPIN => {
                _ = poll(&mut [PollFd::new(stream, PollFlags::IN)], None)?
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// A put is complete at its target when a flush returns: not while that is stopped.
fn stopped(bench: &mut Bench<'_>, window: &Window, target: Pid) -> Result<()> {
    let time = if bench.is_smoke() { STOP / 10 } else { STOP };
    let epoch = window.lock_all()?;
    epoch.put(TARGET, 0, &[0u64])?;
    epoch.flush(TARGET)?;
    let start = Instant::now();
    stop(target);
    let took = thread::scope(|scope| -> Result<Duration> {
        let over = scope.spawn(move || {
            thread::sleep(time);
            kill_process(target, Signal::CONT)
        });
        let put = epoch.put(TARGET, 0, &[1u64]).and_then(|()| epoch.flush(TARGET));
        let took = start.elapsed();
        over.join().map_err(|_| "the thread that lets the target go on panicked")??;
        put?;
        Ok(took)
    })?;
    epoch.unlock()?;
    if took < time {
        return Err(format!("a flush returned after {took:?}, its target stopped").into());
    }
    let name = format!("put + flush, target stopped for {time:?}");
    bench.note(row(name).bytes(8), Unit::Nanoseconds, &[took.as_nanos() as f64])
}

fn transfers(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    memory: &mut RawMemory,
    stream: &mut TcpStream,
) -> Result<()> {
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
        let limits: &mut [(&str, Work<'_>)] = &mut [
            ("fi_write, delivered", &mut write),
            ("round trip of TCP", &mut |n| round_trips(stream, n)),
        ];
        // Of a word: it says nothing of large ones.
        let some = if bytes == LARGE { 1 } else { 2 };
        bench.alone(draft, &mut put, &mut limits[..some])?;
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
    let link = RefCell::new(link);
    let trips = |bytes: usize, n: u64| -> Result<()> {
        let mut link = link.borrow_mut();
        for _ in 0..n {
            if !link.send(bytes) || link.receive(&never).is_none() {
                return Err("the raw link is broken".into());
            }
        }
        Ok(())
    };
    let mut by_link = |n: u64| trips(size_of::<u64>(), n);
    // What a message of ours has to be, and no more: as long, and with a tag.
    let mut by_request = |n: u64| trips(REQUEST, n);
    let mut by_tcp = |n: u64| round_trips(&mut stream, n);
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
    limits.push(("round trip of fi_send, as long and with tags", &mut by_request));
    if fetches {
        limits.push(("fi_fetch_atomic", &mut by_provider));
    }
    let draft = row("fetch_and_op sum by libfabric").bytes(8).goal(1.1);
    bench.alone(draft, &mut fetch, &mut limits)?;
    bench.alone(row("round trip of TCP, without rma").bytes(8), &mut by_tcp, &mut [])
}

/// A lock and an unlock are a message each, and the put is a transfer between them: two round
/// trips.
fn locks(bench: &mut Bench<'_>, window: &Window, link: &mut RawLink) -> Result<()> {
    let never = AtomicBool::new(false);
    let mut locked = |n: u64| -> Result<()> {
        for i in 0..n {
            let epoch = window.lock(TARGET, LockKind::Exclusive)?;
            epoch.put(0, &[i])?;
            epoch.unlock()?;
        }
        Ok(())
    };
    let mut trips = |n: u64| -> Result<()> {
        for _ in 0..2 * n {
            if !link.send(size_of::<u64>()) || link.receive(&never).is_none() {
                return Err("the raw link is broken".into());
            }
        }
        Ok(())
    };
    let draft = row("lock + put + unlock by libfabric").bytes(8);
    bench.alone(draft, &mut locked, &mut [("2 round trips of fi_send", &mut trips)])
}

/// With a flush behind so many that it does not count.
fn of_many(bench: &mut Bench<'_>, window: &Window, memory: &mut RawMemory) -> Result<()> {
    let epoch = window.lock_all()?;
    let mut puts = || -> Result<()> {
        (0..MANY).try_for_each(|i| epoch.put(TARGET, i, &[i]))?;
        Ok(epoch.flush(TARGET)?)
    };
    let mut writes = || done(memory.write_along(size_of::<u64>(), MANY));
    let rounds = if bench.is_smoke() { 1 } else { MANY_ROUNDS };
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        raw.push(each_of_many(&mut writes)?);
        ours.push(each_of_many(&mut puts)?);
    }
    let draft = row("put by libfabric, 10,000 before a flush").bytes(8).goal(1.0 / 0.8);
    bench.note_beside(draft, Unit::Nanoseconds, &ours, &[("fi_write, 10,000", &raw)])?;
    Ok(epoch.unlock()?)
}

/// Nanoseconds, behind as many that are not timed: threads that look for more of what came before
/// have stopped by then.
fn each_of_many(work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64 / MANY as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_provider_is_found_in_what_is_said_of_it() {
        let said =
            "ofi: provider tcp;ofi_rxm of libfabric 1.17 at fi_sockaddr_in://10.0.0.2:37, up";
        assert_eq!(host_of(said), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(provider_of(said), Some("tcp;ofi_rxm"));
        assert_eq!(provider_of("shm: 2 ranks"), None);
        assert_eq!(host_of("at fi_sockaddr_in6://[::1]:9, x").to_string(), "::1");
        assert_eq!(host_of("at fi_shm://123:0:fi_shm_7"), IpAddr::from([127, 0, 0, 1]));
    }

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let card = card([b"abc", &[7; 40], b"127.0.0.1"], 4711);
        let (address, memory, there) = read(&card).unwrap();
        assert_eq!((address, memory), (&b"abc"[..], &[7; 40][..]));
        assert_eq!(there.to_string(), "127.0.0.1:4711");
        assert!(read(&card[..MEMORY_AT]).is_none());
    }
}
