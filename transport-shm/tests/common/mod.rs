//! Ranks for the tests: threads of one process, or child processes of the test.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses a part
#![allow(unsafe_code)] // room: views a mapping as an atomic word

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rma_core::transport::{Mapped, Messages, Sleep, SubmitError, WorldRank};
use rma_transport_shm::{JoinError, Said, Shm, ShmConfig};

/// An all-gather between threads.
pub struct AllGather {
    /// What each rank has said, one exchange after the other.
    said: Mutex<Vec<Vec<Vec<u8>>>>,
    posted: Condvar,
}

impl AllGather {
    pub fn new(size: u32) -> Arc<Self> {
        let said = Mutex::new(vec![Vec::new(); size as usize]);
        Arc::new(Self { said, posted: Condvar::new() })
    }

    pub fn exchange(&self, rank: u32, bytes: &[u8]) -> Said {
        let mut said = self.said.lock().unwrap();
        let round = said[rank as usize].len();
        said[rank as usize].push(bytes.to_vec());
        self.posted.notify_all();
        let waits = |said: &mut Vec<Vec<Vec<u8>>>| said.iter().any(|said| said.len() <= round);
        let said = self.posted.wait_while(said, waits).unwrap();
        said.iter().map(|said| (1, said[round].clone())).collect()
    }
}

/// Joins `size` ranks from as many threads.
pub fn ranks(size: u32, cores: u32) -> Vec<Shm> {
    let gather = AllGather::new(size);
    std::thread::scope(|scope| {
        let joining: Vec<_> = (0..size)
            .map(|rank| {
                let gather = gather.clone();
                scope.spawn(move || {
                    let config =
                        ShmConfig { rank: WorldRank(rank), size, nodes: 1, cores, naps: false };
                    let exchange = |card: &[u8]| Ok::<_, Infallible>(gather.exchange(rank, card));
                    // SAFETY: each rank joins once, and gets the cards of all.
                    unsafe { Shm::join(config, exchange) }.unwrap()
                })
            })
            .collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// For the test that hangs, not for the machine.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Waits as the core does.
pub fn wait_until(shm: &Shm, mut condition: impl FnMut() -> bool) {
    let started = shm.now();
    let mut round = 0;
    while !condition() {
        if shm.relax(round) {
            round += 1;
            continue;
        }
        let ticket = shm.arm();
        if condition() {
            shm.disarm(ticket);
            return;
        }
        shm.park(ticket, Some(WATCHDOG));
        // Also if the condition holds by now: a ring was forgotten then.
        assert!(shm.now() - started < WATCHDOG, "no peer rang rank {}", shm.rank());
        round = 0;
    }
}

/// The first word of a mapping, as a counter that ranks share.
pub fn word<M: Mapped + ?Sized>(mapped: &M) -> &std::sync::atomic::AtomicU64 {
    let mapping = mapped.mapping();
    assert!(mapping.len >= 8);
    // SAFETY: mapped, aligned to 64 bytes, at least 8 long, and only used as this atomic.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(mapping.base.cast()) }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len() / 2).map(|i| digit(2 * i)).collect()
}

/// Marks a line of a child's output as meant for the parent: the test harness prints there too.
const MARK: &str = "@rma ";

/// Runs a test function of this binary as `size` processes that all-gather over their pipes.
pub struct Children(pub Vec<(Child, BufReader<std::process::ChildStdout>)>);

impl Children {
    pub fn start(test: &str, size: u32) -> Self {
        let program = std::env::current_exe().unwrap();
        let start = |rank| {
            let mut child = Command::new(&program)
                .args(["--exact", test, "--nocapture", "--test-threads=1"])
                .env("RMA_SHM_CHILD", format!("{rank} {size}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            (child, output)
        };
        Self((0..size).map(start).collect())
    }

    /// The next line that child `rank` says to its parent.
    pub fn hear(&mut self, rank: usize) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.0[rank].1.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "rank {rank} ended early");
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    pub fn tell(&mut self, rank: usize, line: &str) {
        writeln!(self.0[rank].0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Passes what all say to all, twice.
    pub fn join(&mut self) {
        for _ in 0..2 {
            let said: Vec<_> = (0..self.0.len()).map(|rank| self.hear(rank)).collect();
            for rank in 0..self.0.len() {
                self.tell(rank, &said.join(" "));
            }
        }
    }

    pub fn expect_success(mut self) {
        for (rank, (child, output)) in self.0.iter_mut().enumerate() {
            let mut rest = String::new();
            std::io::Read::read_to_string(output, &mut rest).unwrap();
            assert!(child.wait().unwrap().success(), "rank {rank} failed:\n{rest}");
            assert!(rest.contains("1 passed"), "rank {rank} ran nothing:\n{rest}");
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // Both fail for a child that has ended, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Rank and size, if this process is a child of [`Children`].
pub fn child() -> Option<(u32, u32)> {
    let text = std::env::var("RMA_SHM_CHILD").ok()?;
    let (rank, size) = text.split_once(' ')?;
    Some((rank.parse().unwrap(), size.parse().unwrap()))
}

pub fn say(line: &str) {
    println!("{MARK}{line}");
}

pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

pub fn join_as_child((rank, size): (u32, u32)) -> Shm {
    // A process that is killed rings no rank.
    let config = ShmConfig { rank: WorldRank(rank), size, nodes: 1, cores: 2, naps: true };
    let exchange = |card: &[u8]| {
        // With something in front: an exchange may be of no bytes.
        say(&format!("={}", hex(card)));
        let read = |said: &str| (1, unhex(said.strip_prefix('=').unwrap()));
        Ok::<_, Infallible>(listen().split(' ').map(read).collect())
    };
    // SAFETY: the parent starts each rank once, and gives it the cards of all.
    unsafe { Shm::join(config, exchange) }.unwrap()
}

/// Sends a message.
#[allow(unsafe_code)]
pub fn submit(shm: &Shm, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
    // SAFETY: no core receives it.
    unsafe { shm.send(to, head, body) }
}

/// A job of one rank, or none.
pub fn join(
    config: ShmConfig,
    exchange: fn(&[u8]) -> Result<Said, String>,
) -> Result<Shm, JoinError<String>> {
    // SAFETY: no other rank is in it.
    unsafe { Shm::join(config, exchange) }
}
