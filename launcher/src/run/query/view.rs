//! What there is to see of a job that runs: taken by its launcher, which knows the ranks and reads
//! what they tell.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rma_core::transport::{About, Bulletin, SomeRanks, ToldWait, Whom};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::time::{ClockId, clock_gettime};

use crate::bulletin;
use crate::codec::{wire_enum, wire_struct};
use crate::run::cpus;

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobView {
    /// The process of `rma-run`.
    pub launcher: u32,
    /// What `--name` says.
    pub name: Option<String>,
    /// The program; several with " : " between them.
    pub program: String,
    /// The machine's name.
    pub host: String,
    /// Since when it runs.
    pub age: Duration,
    /// Its ranks, in order.
    pub ranks: Vec<RankView>,
}

/// A rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankView {
    /// How far it has come.
    pub stage: Stage,
    /// The host that it is on; `None` if that is the launcher's.
    pub host: Option<String>,
    /// Its process on that host, once there is one: the one that joined the job, or the one that
    /// was started.
    pub process: Option<u32>,
    /// What the system says of the process.
    pub usage: Option<Usage>,
    /// What it tells, once it has joined.
    pub told: Option<Told>,
}

/// How far a rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is not started yet.
    Waiting,
    /// It runs, and has not joined the job.
    Started,
    /// It joins the job, for which it waits for all.
    Meeting,
    /// It takes part.
    Joined,
    /// It has left the job, and still runs.
    Left,
    /// It is over.
    Ended,
}

/// What a process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The letter that `ps` shows: `R` runs, `S` sleeps, `D` waits for a device, `T` is stopped.
    pub state: u8,
    /// Time of CPUs so far.
    pub cpu: Duration,
    /// Bytes in memory, those that it shares with others included.
    pub resident: u64,
}

/// What a rank tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What its threads wait for.
    pub waits: Vec<WaitView>,
    /// Windows that are not freed.
    pub windows: u64,
    /// See [`Counters::operations`](rma_core::Counters::operations).
    pub operations: u64,
    /// Messages sent and received.
    pub messages: u64,
    /// Times that a thread went to sleep in a wait.
    pub parked: u64,
}

/// What is seen of a rank on its own host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Seen {
    pub(in super::super) process: Option<u32>,
    pub(in super::super) usage: Option<Usage>,
    pub(in super::super) told: Option<Told>,
}

/// A wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    /// What for, as errors say it.
    pub what: String,
    /// Which window or communicator it is about.
    pub at: String,
    /// On which ranks.
    pub whom: WhomView,
    /// How long.
    pub age: Duration,
}

/// Ranks that a wait is on; of a group, its first ranks, and how many it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhomView {
    /// No rank in particular.
    Unknown,
    /// That rank.
    Rank(u32),
    /// All of these.
    All(Vec<(u32, u32)>, u32),
    /// Those of these that hold a lock; of that rank's part, if that is far.
    Holders(Vec<(u32, u32)>, u32, Option<u32>),
    /// Any of these.
    Any(Vec<(u32, u32)>, u32),
}

wire_struct!(JobView { launcher, name, program, host, age, ranks });
wire_struct!(RankView { stage, host, process, usage, told });
wire_enum!(Stage {
    0 = Waiting {},
    1 = Started {},
    2 = Meeting {},
    3 = Joined {},
    4 = Left {},
    5 = Ended {},
});
wire_struct!(Usage { state, cpu, resident });
wire_struct!(Seen { process, usage, told });
wire_struct!(Told { waits, windows, operations, messages, parked });
wire_struct!(WaitView { what, at, whom, age });
wire_enum!(WhomView {
    0 = Unknown {},
    1 = Rank { 0: rank },
    2 = All { 0: ranks, 1: size },
    3 = Holders { 0: ranks, 1: size, 2: home },
    4 = Any { 0: ranks, 1: size },
});

impl JobView {
    /// Whether waits are on ranks of the job only, and each on no more than there are: what is
    /// worked out of a view takes no longer than its ranks make it.
    pub(super) fn is_consistent(&self) -> bool {
        let ranks = self.ranks.len() as u64;
        let told = self.ranks.iter().filter_map(|rank| rank.told.as_ref());
        told.flat_map(|told| &told.waits).all(|wait| wait.whom.is_within(ranks))
    }
}

impl WhomView {
    fn is_within(&self, ranks: u64) -> bool {
        let is_rank = |rank: &u32| u64::from(*rank) < ranks;
        let is_group = |runs: &[(u32, u32)]| {
            let count = |(first, last): &(u32, u32)| u64::from(last.saturating_sub(*first)) + 1;
            runs.iter().all(|(first, last)| first <= last && is_rank(last))
                && runs.iter().map(count).sum::<u64>() <= ranks
        };
        match self {
            WhomView::Unknown => true,
            WhomView::Rank(rank) => is_rank(rank),
            WhomView::All(runs, _) | WhomView::Any(runs, _) => is_group(runs),
            WhomView::Holders(runs, _, home) => is_group(runs) && home.iter().all(is_rank),
        }
    }
}

impl Usage {
    /// Of a process; `None` if there is none.
    fn of(process: u32) -> Option<Usage> {
        parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }
}

/// What the kernel says of a process.
fn parse(stat: &str) -> Option<Usage> {
    // The name, in brackets, may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(11)?.saturating_add(number(12)?);
    Some(Usage {
        state: *fields.first()?.as_bytes().first()?,
        cpu: Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64),
        resident: number(21)?.saturating_mul(page_size() as u64),
    })
}

/// These ranks of a job of `size`, which are on this host and write to that bulletin.
pub(in super::super) fn see(
    bulletin: Option<BorrowedFd<'_>>,
    size: u32,
    ranks: Range<u32>,
    process: impl Fn(u32) -> Option<u32>,
) -> Vec<Seen> {
    let mut told = bulletin.map(|file| read(file, size)).unwrap_or_default();
    let see = |rank: u32| {
        let process = process(rank);
        let told = told.get_mut(rank as usize).and_then(Option::take);
        Seen { process, usage: process.and_then(Usage::of), told }
    };
    ranks.map(see).collect()
}

/// What all ranks tell, in order; `None` for those that tell nothing.
fn read(file: BorrowedFd<'_>, ranks: u32) -> Vec<Option<Told>> {
    let bytes = bulletin::BYTES * ranks as usize;
    let copies = [(); 3].map(|()| {
        let mut copy = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match rustix::io::pread(file, &mut copy[done..], done as u64) {
                Ok(0) | Err(_) => break,
                Ok(count) => done += count,
            }
        }
        copy
    });
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let of = |rank: u32| {
        let words = copies.each_ref().map(|copy| words(copy, rank));
        let told = Bulletin::read(words.each_ref())?;
        Some(Told {
            waits: told.waits.into_iter().map(|wait| seen(wait, now, ranks)).collect(),
            windows: told.windows,
            operations: told.operations,
            messages: told.sent.saturating_add(told.received),
            parked: told.parked,
        })
    };
    (0..ranks).map(of).collect()
}

fn words(copy: &[u8], rank: u32) -> [u64; Bulletin::WORDS] {
    let (words, _) = copy[rank as usize * bulletin::BYTES..].as_chunks::<8>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

fn seen(wait: ToldWait, now: Duration, ranks: u32) -> WaitView {
    let runs = |some: SomeRanks| (cpus::runs(some.members(ranks)), some.size);
    let known = |rank: &u32| *rank < ranks;
    let whom = match wait.whom {
        Whom::Rank(rank) if known(&rank) => WhomView::Rank(rank),
        Whom::All(some) => {
            let (runs, size) = runs(some);
            WhomView::All(runs, size)
        }
        Whom::Holders(some, home) => {
            let (runs, size) = runs(some);
            WhomView::Holders(runs, size, home.filter(known))
        }
        Whom::Any(some) => {
            let (runs, size) = runs(some);
            WhomView::Any(runs, size)
        }
        _ => WhomView::Unknown,
    };
    let at = match wait.about {
        About::Rank => String::new(),
        about => about.to_string(),
    };
    WaitView { what: wait.what, at, whom, age: now.saturating_sub(wait.since) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn a_process_may_be_called_anything() {
        let numbers = (4..=50).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        let usage = parse(&format!("17 (a) R (b) S {numbers}\n")).unwrap();
        assert_eq!((usage.state, usage.resident), (b'S', 24 * page_size() as u64));
        let ticks = f64::from(14 + 15) / clock_ticks_per_second() as f64;
        assert_eq!(usage.cpu, Duration::from_secs_f64(ticks));
        assert_eq!(parse("17 (a) S 1 2"), None);
        let own = Usage::of(std::process::id()).unwrap();
        assert!(own.resident > 0);
    }

    #[test]
    fn what_a_rank_must_not_write_is_read_all_the_same() {
        let (file, name) = bulletin::create(2).unwrap();
        let words = bulletin::map(name.as_ref(), 1).unwrap();
        let _ = Bulletin::new(words);
        // All but the mark: counts as large as they can be, waits on a rank that there is not.
        words[1..16].iter().for_each(|word| word.store(u64::MAX, SeqCst));
        for (slot, kind) in words[16..].chunks_exact(12).zip([0, 2]) {
            let slot_words = [2, 0, kind, u64::from(u32::MAX) - 1];
            slot.iter().zip(slot_words).for_each(|(word, value)| word.store(value, SeqCst));
        }
        let told = read(file.as_fd(), 2);
        assert_eq!(told[0], None);
        let told = told[1].as_ref().unwrap();
        assert_eq!((told.messages, told.windows), (u64::MAX, u64::MAX));
        let whoms: Vec<_> = told.waits.iter().map(|wait| &wait.whom).collect();
        assert_eq!(whoms, [&WhomView::Unknown, &WhomView::Holders(Vec::new(), 0, None)]);
    }

    #[test]
    fn waits_are_on_ranks_of_the_job() {
        let on = |whom| {
            let mut view = super::super::why::tests::view();
            view.ranks[0].told.as_mut().unwrap().waits[0].whom = whom;
            view.is_consistent()
        };
        // Of four ranks.
        for right in [
            WhomView::Unknown,
            WhomView::Rank(3),
            WhomView::All(vec![(2, 3), (0, 0)], 9),
            WhomView::Any(vec![], 0),
            WhomView::Holders(vec![(0, 3)], 4, Some(3)),
        ] {
            assert!(on(right.clone()), "{right:?}");
        }
        for wrong in [
            WhomView::Rank(4),
            WhomView::All(vec![(0, u32::MAX)], 4),
            WhomView::All(vec![(3, 2)], 4),
            WhomView::Any(vec![(0, 3), (0, 3)], 4),
            WhomView::Holders(vec![(0, 3)], 4, Some(4)),
        ] {
            assert!(!on(wrong.clone()), "{wrong:?}");
        }
    }
}
