//! Two pretended hosts, namespaces of the network, and what is between them: a relay that delays
//! packets, loses some, lets some overtake others, and cuts the way for good when it is told to
//! (what becomes of a packet is drawn from a seed); or a cable, which can be pulled and put back.
#![allow(unsafe_code)] // room: names the end of a tunnel

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Updater, ioctl};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Addresses of the hosts.
pub(crate) const HOSTS: [&str; 2] = ["10.98.0.1", "10.98.0.2"];

/// How long each packet takes, and how much longer those that others overtake.
const DELAY: Duration = Duration::from_millis(1);
const OVERTAKEN: Duration = Duration::from_millis(2);
/// Of so many packets one is lost, and one is overtaken.
const ONE_LOST_OF: u64 = 100;
const ONE_OVERTAKEN_OF: u64 = 20;
/// Bytes of the largest packet.
const PACKET: usize = 2048;
/// So long it sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(20);

/// What becomes of packets.
#[derive(Default)]
pub(crate) struct Packets {
    pub(crate) passed: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) overtaken: AtomicU64,
}

/// What is between the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Relay,
    /// Nothing is lost.
    Cable,
    /// It carries 100 Mbit/s each way.
    SlowCable,
}

impl Wire {
    /// As `RMA_TESTS_WIRE` says; otherwise it is a relay.
    pub(crate) fn told() -> Wire {
        match std::env::var("RMA_TESTS_WIRE").as_deref() {
            Err(_) | Ok("relay") => Wire::Relay,
            Ok("cable") => Wire::Cable,
            Ok("slow") => Wire::SlowCable,
            Ok(other) => panic!("RMA_TESTS_WIRE={other:?}: pass relay, cable or slow"),
        }
    }
}

#[derive(Default)]
struct Orders {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    packets: Packets,
}

/// The hosts, and what is between them, as long as this lives.
pub(crate) struct Link {
    namespaces: [String; 2],
    orders: Arc<Orders>,
    /// That of the relay.
    thread: Option<JoinHandle<()>>,
}

/// What a command of the network says; an error is why it failed.
fn call(line: &str) -> Result<String, String> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let [said, text] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(said) } else { Err(format!("{line}: {text}")) }
}

fn ip(line: &str) -> Result<String, String> {
    call(&format!("ip {line}"))
}

/// `struct ifreq` of a tunnel.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// `TUNSETIFF`, which is declared for an `int` and takes a `struct ifreq`.
const NAME_TUNNEL: rustix::ioctl::Opcode = 0x4004_54ca;
/// `IFF_TUN | IFF_NO_PI`: whole packets of IP, and nothing before them.
const PACKETS_ONLY: u16 = 0x1001;

/// The end of a tunnel of that name.
fn tunnel(name: &str) -> Result<File, String> {
    let failed = |what: &str, why: String| format!("{what} of tunnel {name}: {why}");
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file =
        options.open("/dev/net/tun").map_err(|why| failed("/dev/net/tun", why.to_string()))?;
    let mut request = Request { name: [0; 16], flags: PACKETS_ONLY, rest: [0; 22] };
    let room = request.name.get_mut(..name.len()).ok_or_else(|| failed("length", "16".into()))?;
    room.copy_from_slice(name.as_bytes());
    // SAFETY: the call reads and writes a `struct ifreq`, which has 40 bytes.
    let naming = unsafe { Updater::<NAME_TUNNEL, Request>::new(&mut request) };
    // SAFETY: as above.
    let named = unsafe { ioctl(&file, naming) };
    named.map_err(|why| failed("TUNSETIFF", why.to_string()))?;
    Ok(file)
}

impl Link {
    /// Lays a way between two new hosts; an error is why there is none.
    pub(crate) fn lay(wire: Wire, seed: u64) -> Result<Link, String> {
        static LAID: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), LAID.fetch_add(1, Relaxed));
        let names = ["a", "b"].map(|end| format!("r{process:x}-{number}{end}"));
        let orders = Arc::<Orders>::default();
        // Dropping it removes what has been made.
        let mut link = Link { namespaces: names.clone(), orders: orders.clone(), thread: None };
        let mut ends = Vec::new();
        for name in &names {
            ip(&format!("netns add {name}"))?;
        }
        if wire == Wire::Relay {
            for name in &names {
                ends.push(tunnel(name)?);
                ip(&format!("link set {name} netns {name}"))?;
            }
        } else {
            let [a, b] = &names;
            ip(&format!("link add {a} netns {a} type veth peer name {b} netns {b}"))?;
        }
        for (name, host) in names.iter().zip(HOSTS) {
            ip(&format!("-n {name} addr add {host}/24 dev {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {name} up"))?;
            if wire == Wire::SlowCable {
                let rate = "rate 100mbit burst 32kb latency 50ms";
                call(&format!("tc -n {name} qdisc add dev {name} root tbf {rate}"))?;
            }
        }
        if wire == Wire::Relay {
            let thread = std::thread::Builder::new().name("relay".into());
            let thread = thread.spawn(move || carry(&ends, seed, &orders));
            link.thread = Some(thread.map_err(|why| why.to_string())?);
        }
        Ok(link)
    }

    /// Pulls the cable.
    pub(crate) fn pull(&self) {
        let name = &self.namespaces[1];
        ip(&format!("-n {name} link set {name} down")).unwrap();
    }

    /// Puts it back.
    pub(crate) fn put_back(&self) {
        let name = &self.namespaces[1];
        ip(&format!("-n {name} link set {name} up")).unwrap();
    }

    /// From now on the second host drops what comes by TCP, as a firewall does.
    pub(crate) fn shield(&self) {
        let name = &self.namespaces[1];
        // Behind the first rule, which finds what is for the host itself.
        for rule in [
            "add pref 1 lookup local".to_owned(),
            "del pref 0".to_owned(),
            format!("add pref 0 iif {name} ipproto tcp blackhole"),
        ] {
            ip(&format!("-n {name} rule {rule}")).unwrap();
        }
    }

    /// How many segments of TCP the first host has had to send again.
    pub(crate) fn sent_again(&self) -> u64 {
        let name = &self.namespaces[0];
        let text = ip(&format!("netns exec {name} cat /proc/net/snmp")).unwrap();
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let mut next = || lines.next().expect("names and numbers").split(' ');
        let (names, numbers) = (next(), next());
        let mut found = names.zip(numbers).filter(|(name, _)| *name == "RetransSegs");
        found.next().expect("RetransSegs").1.parse().unwrap()
    }

    /// How many bytes have come to the second host.
    pub(crate) fn carried(&self) -> u64 {
        let name = &self.namespaces[1];
        let file = format!("/sys/class/net/{name}/statistics/rx_bytes");
        ip(&format!("netns exec {name} cat {file}")).unwrap().trim().parse().unwrap()
    }

    /// A remote shell that runs a command on the host of an address. Each host has a CPU of its own
    /// if there are two: ranks then know that they share it, and none looks for long in the time of
    /// the others, of the relay, and of what carries packets in the system.
    pub(crate) fn shell(&self) -> String {
        let [first, second] = &self.namespaces;
        let all = sched_getaffinity(None).expect("CPUs of this process");
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let [one, other] = [cpus[0], cpus[cpus.len() - 1]];
        format!(
            "#!/bin/sh\ncase $1 in\n{}) on={first} cpu={one};;\n{}) on={second} cpu={other};;\n\
             esac\nexec taskset -c $cpu setsid --wait ip netns exec $on sh -c \"exec $2\"\n",
            HOSTS[0], HOSTS[1]
        )
    }

    /// From now on no packet passes.
    pub(crate) fn cut(&self) {
        self.orders.is_cut.store(true, Release);
    }

    pub(crate) fn packets(&self) -> &Packets {
        &self.orders.packets
    }

    /// Processes that run on either host.
    pub(crate) fn processes(&self) -> String {
        self.namespaces.iter().map(|name| ip(&format!("netns pids {name}")).unwrap()).collect()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.orders.is_over.store(true, Release);
        // It has said what went wrong, if it panicked.
        _ = self.thread.take().map(JoinHandle::join);
        // One that could not be made is none to be removed.
        self.namespaces.iter().for_each(|name| _ = ip(&format!("netns delete {name}")));
    }
}

/// The next number of a seed (splitmix64).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// When it is due, its number, to which end, and its bytes.
type Packet = (Instant, u64, usize, Vec<u8>);

/// Carries packets from either end to the other.
fn carry(ends: &[File], mut seed: u64, orders: &Orders) {
    let Orders { is_cut, is_over, packets } = orders;
    // By when they are due, and those of one time in their order.
    let mut waiting = BinaryHeap::<Reverse<Packet>>::new();
    let mut number = 0;
    while !is_over.load(Acquire) {
        let now = Instant::now();
        while waiting.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((_, _, to, packet))) = waiting.pop() else { break };
            // An end that is full loses it, as any network does.
            if !is_cut.load(Acquire) && (&ends[to]).write(&packet).is_ok() {
                packets.passed.fetch_add(1, Relaxed);
            }
        }
        let next = waiting.peek().map(|Reverse((due, ..))| due.saturating_duration_since(now));
        let pause = Timespec::try_from(next.unwrap_or(NAP).min(NAP)).ok();
        let mut files: Vec<_> = ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
        // An interrupted sleep is one that has ended.
        _ = poll(&mut files, pause.as_ref());
        for (from, mut end) in ends.iter().enumerate() {
            let mut packet = vec![0; PACKET];
            loop {
                match end.read(&mut packet) {
                    Ok(len @ 1..) => {
                        number += 1;
                        let lot = draw(&mut seed);
                        if lot.is_multiple_of(ONE_LOST_OF) {
                            packets.lost.fetch_add(1, Relaxed);
                            continue;
                        }
                        let mut due = Instant::now() + DELAY;
                        if (lot / ONE_LOST_OF).is_multiple_of(ONE_OVERTAKEN_OF) {
                            packets.overtaken.fetch_add(1, Relaxed);
                            due += OVERTAKEN;
                        }
                        waiting.push(Reverse((due, number, 1 - from, packet[..len].to_vec())));
                    }
                    Err(why) if why.kind() == ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
        }
    }
}
