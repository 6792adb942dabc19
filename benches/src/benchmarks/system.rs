//! What the system itself needs for what messages, sleep and storage are made of. No library here.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::hop::Flags;
use crate::raw::Raw;
use rma::Rank;
use rustix::io::Errno;
use rustix::thread::futex;
use std::fs::{self, File};
use std::hint::spin_loop;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU32;

const ROUNDS: usize = 101;
const BLOCK: usize = 4096;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    if bench.world().size() != 2 {
        return Err("this benchmark is for 2 ranks".into());
    }
    bench.set_rounds(ROUNDS);
    wake(bench)?;
    tcp(bench)?;
    if bench.is_first() {
        storage(bench)?;
    }
    Ok(bench.world().barrier()?)
}

/// Two ranks that sleep in turn, and wake each other.
fn wake(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(Flags::BYTES, 1).allocate()?;
    let part = Raw::new(&window.shared_query(Rank(0))?);
    let (request, reply) = (part.word32(0), part.word32(Flags::BYTES / 2));
    let (mine, other) = if bench.is_first() { (request, reply) } else { (reply, request) };
    let is_first = bench.is_first();
    world.barrier()?;
    bench.together(
        row("futex wake of a sleeping rank, and back"),
        &mut |n| {
            for _ in 0..n {
                if is_first {
                    wake_up(mine)?;
                }
                sleep(other)?;
                if !is_first {
                    wake_up(mine)?;
                }
            }
            Ok(())
        },
        &mut [],
    )?;
    Ok(window.free()?)
}

/// Wakes the rank that sleeps there. It comes to that soon, if it does not sleep yet: a wake that
/// no rank needed would take no time.
fn wake_up(word: &AtomicU32) -> Result<()> {
    // Between processes: without the flag PRIVATE.
    while futex::wake(word, futex::Flags::empty(), 1)? == 0 {
        spin_loop();
    }
    Ok(())
}

/// Until it is woken. The word never changes.
fn sleep(word: &AtomicU32) -> Result<()> {
    while let Err(error) = futex::wait(word, futex::Flags::empty(), 0, None) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Eight bytes there and back over the loopback device.
fn tcp(bench: &mut Bench<'_>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ports = bench.world().allgather(&[listener.local_addr()?.port()])?;
    let mut stream = if bench.is_first() {
        TcpStream::connect((Ipv4Addr::LOCALHOST, ports[usize::from(TARGET)]))?
    } else {
        listener.accept()?.0
    };
    stream.set_nodelay(true)?;
    let is_first = bench.is_first();
    let mut message = [7u8; 8];
    bench.together(
        row("TCP, there and back").bytes(message.len()),
        &mut |n| {
            for _ in 0..n {
                if is_first {
                    stream.write_all(&message)?;
                }
                stream.read_exact(&mut message)?;
                if !is_first {
                    stream.write_all(&message)?;
                }
            }
            Ok(())
        },
        &mut [],
    )
}

/// A block of a file, until the device says that it keeps it.
fn storage(bench: &mut Bench<'_>) -> Result<()> {
    let exe = std::env::current_exe()?;
    let path = exe.with_file_name(format!("rma-bench-{}.tmp", std::process::id()));
    // Where programs are started from there need not be room for files.
    let Ok(file) = File::create_new(&path) else { return Ok(()) };
    fs::remove_file(&path)?;
    let block = [7u8; BLOCK];
    bench.alone(
        row("pwrite + fdatasync").bytes(BLOCK),
        &mut |n| {
            for _ in 0..n {
                file.write_all_at(&block, 0)?;
                file.sync_data()?;
            }
            Ok(())
        },
        &mut [],
    )
}
