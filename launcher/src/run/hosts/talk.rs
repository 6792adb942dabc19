//! What a launcher and the agent of a host say to each other: sealed frames of the bootstrap's
//! form, over the agent's standard input and output, or the connection by which it has joined.

use std::time::Duration;

use super::super::query::Seen;
use super::super::spec::{Bind, MapBy, Readers};
use crate::Job;
use crate::client::Fate;
use crate::codec::{wire_enum, wire_struct};
use crate::pmi::server::{Offer, Pairs, Told};
use crate::wire::{self, RANKS_MAX};

/// Changes whenever a message does.
pub(super) const VERSION: u32 = 11;
/// First line of an agent; what a login shell prints before it is skipped.
pub(super) const GREETING: &str = "rma-run agent 11";
/// What an agent of any version begins with.
pub(super) const ANY_GREETING: &str = "rma-run agent ";
/// How often each side says that it is there.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// Bytes of one stream of a rank that are on their way at most.
pub(super) const WINDOW: u32 = 64 << 10;
/// Largest frame, in bytes: it may hold the largest of the bootstrap, and name all ranks that it is
/// for.
pub(super) const FRAME_MAX: usize = wire::FRAME_MAX + RANKS_MAX as usize * size_of::<u32>() + 64;
/// Bytes of output in one message.
pub(super) const PIECE: usize = 16 << 10;

/// What a file holds, to tell builds apart: its length, and a checksum. No protection against an
/// attacker, who has the host already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Print {
    pub(in super::super) len: u64,
    pub(in super::super) sum: u64,
}

/// The part of a job that a host has. Names of files and variables are bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    /// The job's name on that host.
    pub(super) name: String,
    /// All hosts, as the user calls them.
    pub(super) hosts: Vec<String>,
    /// Which of them this is.
    pub(super) host: u32,
    pub(super) first: u32,
    pub(super) ranks: u32,
    pub(super) job: Job,
    /// Those that have ranks there, in the order of these; at least one.
    pub(super) programs: Vec<TaskProgram>,
    pub(super) bind: Bind,
    pub(super) map_by: MapBy,
    pub(super) kill_after: Duration,
    /// Silence after which the other side is taken for gone.
    pub(super) silence: Duration,
    /// Ranks that read what the launcher sends, if it does; perhaps on other hosts.
    pub(super) input: Option<Readers>,
    /// What the launcher's own file is.
    pub(super) launcher_print: Print,
    /// Programs that are not there, or of another build, are to be copied.
    pub(super) copies: bool,
    /// What ranks that speak PMI-1 are told, if that is served.
    pub(super) pmi: Option<Offer>,
}

/// A program, and what its ranks get.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TaskProgram {
    /// Its first rank in the job; perhaps on another host.
    pub(super) first: u32,
    /// Its absolute path, and what the user calls it.
    pub(super) program: Vec<u8>,
    pub(super) called: Vec<u8>,
    pub(super) args: Vec<Vec<u8>>,
    pub(super) dir: Vec<u8>,
    pub(super) env: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// What the launcher's own file is.
    pub(super) print: Print,
}

/// To an agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Order {
    /// Look whether that can be done. The first one.
    Prepare { task: Box<Task> },
    /// Start the ranks.
    Start,
    /// Start no more of them.
    Hold,
    /// Pass that signal to all ranks, or one.
    Signal { rank: Option<u32>, number: u32 },
    /// For those ranks, from the launcher.
    Answer { ranks: Vec<u32>, message: Vec<u8> },
    /// So much of a rank's output was taken.
    Taken { rank: u32, is_err: bool, bytes: u32 },
    /// For the standard input of ranks that read; nothing is its end.
    Input { bytes: Vec<u8> },
    /// I am here.
    Beat,
    /// I am about to be stopped, and say nothing until I go on; how often I was.
    Pause { number: u32 },
    /// I go on.
    Resume,
    /// Say what is seen of ranks, and so that you are there; how often that was asked.
    Look { number: u32 },
    /// Ranks of all hosts that speak PMI-1 have met, and have put that.
    Met { pairs: Pairs },
    /// That rank comes to no barrier of PMI-1 any more.
    Broken { rank: u32 },
    /// Kill what is left, but for ranks that even that does not end; and end.
    End { stuck: Vec<u32> },
    /// Start the agent of that host by that command, which is a remote shell, and pass on what it
    /// prints.
    Open { host: u32, command: Vec<Vec<u8>> },
    /// For the standard input of that remote shell.
    Pass { host: u32, bytes: Vec<u8> },
    /// Kill that remote shell.
    Shut { host: u32 },
    /// The piece of a program that was asked for; nothing if there is none.
    Piece { bytes: Vec<u8> },
}

/// From an agent.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Word {
    /// It can be done; so many CPUs, and an address that other hosts reach.
    Ready {
        cpus: u32,
        address: String,
    },
    Started {
        rank: u32,
    },
    /// It cannot be done, or a rank not be started, and what rma-run is to exit with.
    NotStarted {
        why: String,
        code: u8,
    },
    StartEnded,
    Joined {
        rank: u32,
    },
    Part {
        rank: u32,
        mine: Vec<u8>,
    },
    /// Where it is reached.
    Card {
        rank: u32,
        card: Vec<u8>,
    },
    /// It asks where that rank is.
    Query {
        rank: u32,
        of: u32,
    },
    Left {
        rank: u32,
        failed: bool,
        missed: Option<u32>,
    },
    Departed {
        rank: u32,
        fate: Fate,
    },
    Disconnected {
        rank: u32,
    },
    /// With a status, or by a signal.
    Exited {
        rank: u32,
        status: u32,
        by_signal: bool,
    },
    CoreDumped {
        rank: u32,
    },
    OutOfMemory {
        rank: u32,
    },
    Output {
        rank: u32,
        is_err: bool,
        bytes: Vec<u8>,
    },
    OutputEnded {
        rank: u32,
        is_err: bool,
    },
    /// It has taken so much of its input.
    InputTaken {
        rank: u32,
        bytes: u64,
    },
    /// It takes no more of it.
    InputEnded {
        rank: u32,
    },
    Note {
        text: String,
    },
    /// What ranks do that speak PMI-1.
    Pmi {
        told: Told,
    },
    /// A caller at the port of the host was refused.
    Stranger {
        why: String,
    },
    Beat,
    /// Ranks are stopped, and silence is no failure from now on; the answer to that `Pause`.
    Paused {
        number: u32,
    },
    /// Of all ranks here, in order; the answer to that `Look`.
    Looked {
        number: u32,
        ranks: Vec<Seen>,
    },
    /// The remote shell to that host has printed this; nothing is the end.
    Passed {
        host: u32,
        is_err: bool,
        bytes: Vec<u8>,
    },
    /// It could not be started.
    Unopened {
        host: u32,
        why: String,
    },
    /// It has ended with that status, as the kernel tells it.
    Shut {
        host: u32,
        status: u32,
    },
    /// Give me the piece of the program with that first rank that begins there.
    Lacks {
        first: u32,
        at: u64,
    },
}

wire_struct!(Print { len, sum });
wire_struct!(Task {
    name,
    hosts,
    host,
    first,
    ranks,
    job,
    programs,
    bind,
    map_by,
    kill_after,
    silence,
    input,
    launcher_print,
    copies,
    pmi,
});
wire_struct!(TaskProgram { first, program, called, args, dir, env, print });
wire_enum!(Order {
    0 = Prepare { task: task },
    1 = Start {},
    2 = Hold {},
    3 = Signal { rank: rank, number: number },
    4 = Answer { ranks: ranks, message: message },
    5 = Taken { rank: rank, is_err: is_err, bytes: bytes },
    6 = Input { bytes: bytes },
    7 = Beat {},
    8 = Pause { number: number },
    9 = End { stuck: stuck },
    10 = Resume {},
    11 = Look { number: number },
    12 = Met { pairs: pairs },
    13 = Broken { rank: rank },
    14 = Open { host: host, command: command },
    15 = Pass { host: host, bytes: bytes },
    16 = Shut { host: host },
    17 = Piece { bytes: bytes },
});
wire_enum!(Word {
    0 = Ready { cpus: cpus, address: address },
    1 = Started { rank: rank },
    2 = NotStarted { why: why, code: code },
    3 = StartEnded {},
    4 = Joined { rank: rank },
    5 = Part { rank: rank, mine: mine },
    6 = Left { rank: rank, failed: failed, missed: missed },
    7 = Departed { rank: rank, fate: fate },
    8 = Disconnected { rank: rank },
    9 = Exited { rank: rank, status: status, by_signal: by_signal },
    10 = CoreDumped { rank: rank },
    11 = OutOfMemory { rank: rank },
    12 = Output { rank: rank, is_err: is_err, bytes: bytes },
    13 = OutputEnded { rank: rank, is_err: is_err },
    14 = InputTaken { rank: rank, bytes: bytes },
    15 = Note { text: text },
    16 = Stranger { why: why },
    17 = Beat {},
    18 = Paused { number: number },
    19 = Looked { number: number, ranks: ranks },
    20 = Pmi { told: told },
    21 = Card { rank: rank, card: card },
    22 = Query { rank: rank, of: of },
    23 = Passed { host: host, is_err: is_err, bytes: bytes },
    24 = Unopened { host: host, why: why },
    25 = Shut { host: host, status: status },
    26 = Lacks { first: first, at: at },
    27 = InputEnded { rank: rank },
});

impl Task {
    /// What the user calls this host.
    pub(super) fn host_name(&self) -> &str {
        self.hosts.get(self.host as usize).map_or("", String::as_str)
    }
}

impl Print {
    /// Of a file, read to its end.
    pub(in super::super) fn of(path: &std::path::Path) -> std::io::Result<Print> {
        use std::io::Read;
        let mut file = std::fs::File::open(path)?;
        let (mut len, mut sum) = (0u64, 0xcbf2_9ce4_8422_2325_u64);
        let mut block = vec![0; 1 << 20];
        let mut filled = 0;
        loop {
            let count = file.read(&mut block[filled..])?;
            filled += count;
            if count > 0 && filled < block.len() {
                continue;
            }
            len += filled as u64;
            block[filled..].fill(0);
            let (words, _) = block[..filled.next_multiple_of(8)].as_chunks::<8>();
            for word in words {
                let mixed = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                sum = mixed ^ (mixed >> 29);
            }
            if count == 0 {
                return Ok(Print { len, sum });
            }
            filled = 0;
        }
    }
}

/// Prints of files, each of which is read once.
#[derive(Debug, Default)]
pub(super) struct Prints(std::collections::HashMap<std::path::PathBuf, Print>);

impl Prints {
    /// Of a file.
    pub(super) fn of(&mut self, path: &std::path::Path) -> std::io::Result<Print> {
        if let Some(known) = self.0.get(path) {
            return Ok(*known);
        }
        let print = Print::of(path)?;
        self.0.insert(path.to_owned(), print);
        Ok(print)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::SharedFrame;
    use crate::wire::{FromLauncher, encode_within};

    #[test]
    fn an_agent_says_its_version() {
        assert_eq!(GREETING, format!("{ANY_GREETING}{VERSION}"));
    }

    #[test]
    fn a_changed_byte_is_another_build() {
        let dir = tempfile::tempdir().unwrap();
        let print = |bytes: &[u8]| {
            let path = dir.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            Print::of(&path).unwrap()
        };
        let bytes = vec![7; (1 << 20) + 13];
        let whole = print(&bytes);
        assert_eq!(whole.len, bytes.len() as u64);
        for at in [0, 1 << 19, (1 << 20) - 1, 1 << 20, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(print(&other), whole, "byte {at}");
        }
        assert_ne!(print(&bytes[1..]), whole);
        assert_eq!(print(&bytes), whole);
    }

    #[test]
    fn the_largest_frame_of_the_bootstrap_is_passed_on_to_all_ranks() {
        let gathered = |len| FromLauncher::Gathered { runs: vec![(RANKS_MAX, vec![0; len])] };
        let besides = wire::encode(&gathered(0)).unwrap().len() - 4;
        let largest = SharedFrame::of(&gathered(wire::FRAME_MAX - besides)).unwrap();
        let message = largest.message().to_vec();
        let answer = Order::Answer { ranks: (0..RANKS_MAX).collect(), message };
        assert!(encode_within(&answer, FRAME_MAX).is_ok());
        let part = Word::Part { rank: RANKS_MAX, mine: vec![0; wire::FRAME_MAX] };
        assert!(encode_within(&part, FRAME_MAX).is_ok());
    }

    #[test]
    fn words_and_orders_travel() {
        let orders = [Order::Start, Order::Beat, Order::Input { bytes: vec![1] }];
        for order in orders {
            let frame = wire::encode(&order).unwrap();
            assert_eq!(wire::decode::<Order>(&frame[4..]).unwrap(), order);
        }
        let words =
            [Word::Paused { number: 3 }, Word::Exited { rank: 1, status: 2, by_signal: true }];
        for word in words {
            let frame = wire::encode(&word).unwrap();
            assert_eq!(wire::decode::<Word>(&frame[4..]).unwrap(), word);
        }
    }
}
