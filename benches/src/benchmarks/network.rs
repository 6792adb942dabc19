//! Small operations on a target that only a network reaches.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use rma::{LockAll, Op};
use rma_transport_ofi::RawLink;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::thread;

/// Bytes of what ranks tell each other of their ends: a length, an address, a port.
const CARD: usize = 128;
const PORT_AT: usize = CARD - 2;

/// The limits are round trips of messages: rank 1 has a thread for each that sends back what comes.
/// It works in a job of any transport; `rma-run --transport ofi` is meant.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let stop = AtomicBool::new(false);
    let mut link = RawLink::open(None, "127.0.0.1")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let cards = bench.world().allgather(&card(link.address(), listener.local_addr()?.port()))?;
    let (first, second) = cards.split_at(CARD);
    let theirs = if bench.is_first() { second } else { first };
    let (address, port) = read(theirs).ok_or("a card that is none")?;
    if !link.connect(address) {
        return Err("the other rank has another provider".into());
    }
    thread::scope(|scope| {
        let measured = if bench.is_first() {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            rows(bench, Some((&mut link, stream)))
        } else {
            let (stop, mut link) = (&stop, link);
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

fn card(address: &[u8], port: u16) -> [u8; CARD] {
    let mut card = [0; CARD];
    card[0] = address.len() as u8;
    card[1..=address.len()].copy_from_slice(address);
    card[PORT_AT..].copy_from_slice(&port.to_le_bytes());
    card
}

fn read(card: &[u8]) -> Option<(&[u8], u16)> {
    let (len, rest) = card.split_first()?;
    let port = card.get(PORT_AT..)?.try_into().ok()?;
    Some((rest.get(..usize::from(*len))?, u16::from_le_bytes(port)))
}

fn rows(bench: &mut Bench<'_>, ends: Option<(&mut RawLink, TcpStream)>) -> Result<()> {
    let window = bench.world().window(64, size_of::<u64>()).allocate()?;
    if let Some((link, stream)) = ends {
        let epoch = window.lock_all()?;
        measure(bench, &epoch, link, stream)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Does so many operations.
type Work<'w> = &'w mut dyn FnMut(u64) -> Result<()>;

fn measure(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    link: &mut RawLink,
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
    let mut value = [0u64];
    let mut put = |n: u64| -> Result<()> {
        for i in 0..n {
            epoch.put(TARGET, 0, &[i])?;
            epoch.flush(TARGET)?;
        }
        Ok(())
    };
    let mut get = |n: u64| -> Result<()> {
        for _ in 0..n {
            epoch.get(TARGET, 0, &mut value)?;
            black_box(&value);
        }
        Ok(())
    };
    let mut fetch = |n: u64| -> Result<()> {
        for _ in 0..n {
            black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
        }
        Ok(())
    };
    let works: [(&str, Work<'_>); 3] = [
        ("put + flush by libfabric", &mut put),
        ("get by libfabric", &mut get),
        ("fetch_and_op sum by libfabric", &mut fetch),
    ];
    for (name, ours) in works {
        bench.alone(
            row(name).bytes(8),
            ours,
            &mut [("round trip of fi_send", &mut by_link), ("round trip of TCP", &mut by_tcp)],
        )?;
    }
    Ok(())
}
