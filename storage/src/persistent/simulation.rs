//! Jobs of several ranks on simulated storage, all in one thread: their steps come in any order,
//! and any of them ends at any step.
use super::transaction::{Marks, Requested, Transaction, open};
use super::{PersistentError, PersistentHints, Ranks};
use crate::store::{Key, Medium, State, key_of, simulated::*, work_file};
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use rma_core::transport::FileId;
use std::rc::Rc;

pub(super) type Result<T> = std::result::Result<T, PersistentError>;
/// Of each rank, what its call returned; nothing of one that has ended.
pub(super) type Outcomes<T> = Vec<Option<Result<T>>>;

/// What happens to a rank in a call of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// It ends in its change of storage of that number.
    AtChange(usize, u64),
    /// It ends when it has told its words for that time; others may hear them, each for itself.
    Told(usize, usize),
    /// It gives up at that time, while the others hear what it has told.
    Deaf(usize, usize),
}

/// What ranks of one call have told each other.
struct Meeting {
    /// By time and rank.
    told: RefCell<Vec<Vec<Option<Vec<u64>>>>>,
    /// Ranks that will tell nothing more.
    over: RefCell<Vec<bool>>,
    fault: Fault,
    /// Which ranks hear one that has ended.
    coins: u64,
}

impl Meeting {
    fn tell(&self, rank: usize, time: usize, words: &[u64]) {
        let (mut told, ranks) = (self.told.borrow_mut(), self.over.borrow().len());
        if told.len() <= time {
            told.resize(time + 1, vec![None; ranks]);
        }
        told[time][rank] = Some(words.to_vec());
    }

    /// What `rank` hears, once it is known whether it does.
    fn hear(&self, rank: usize, time: usize) -> Poll<Option<Vec<u64>>> {
        let told = &self.told.borrow()[time];
        let missing = |(words, over): (&Option<Vec<u64>>, &bool)| words.is_none() && *over;
        let is_lost = match self.fault {
            Fault::Deaf(deaf, when) => (deaf, when) == (rank, time),
            Fault::Told(ended, when) => {
                when == time && told[ended].is_some() && self.coins >> rank & 1 == 0
            }
            Fault::None | Fault::AtChange(..) => false,
        };
        if is_lost || told.iter().zip(&*self.over.borrow()).any(missing) {
            return Poll::Ready(None);
        }
        let all: Option<Vec<_>> = told.iter().cloned().collect();
        all.map_or(Poll::Pending, |all| Poll::Ready(Some(all.concat())))
    }
}

/// A rank in a call.
struct Member {
    rank: usize,
    meeting: Rc<Meeting>,
    time: Cell<usize>,
    medium: Simulated,
}

impl Ranks for Member {
    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn size(&self) -> u32 {
        self.meeting.over.borrow().len() as u32
    }

    async fn gather(&self, what: &'static str, words: &[u64]) -> Result<Vec<u64>> {
        let time = self.time.replace(self.time.get() + 1);
        if !self.medium.is_over() {
            self.meeting.tell(self.rank, time, words);
        }
        if self.meeting.fault == Fault::Told(self.rank, time) {
            self.medium.end();
        }
        let heard = poll_fn(|_| match self.medium.is_over() {
            true => Poll::Pending,
            false => self.meeting.hear(self.rank, time),
        });
        heard.await.ok_or(PersistentError::Unheard { what })
    }
}

type Task<'t, T> = Pin<Box<dyn Future<Output = Result<T>> + 't>>;

/// Has all ranks make a call, step by step, whichever comes next.
fn together<'t, T>(
    processes: &[Simulated],
    fault: Fault,
    order: &mut Random,
    call: impl FnOnce(Vec<Member>) -> Vec<Task<'t, T>>,
) -> Outcomes<T> {
    let over = RefCell::new(vec![false; processes.len()]);
    let (told, coins) = (RefCell::default(), order.next());
    let meeting = Rc::new(Meeting { told, over, fault, coins });
    if let Fault::AtChange(rank, changes) = fault {
        processes[rank].end_after(changes);
    }
    let member = |(rank, medium): (usize, &Simulated)| {
        let (meeting, medium) = (meeting.clone(), medium.clone());
        Member { rank, meeting, time: Cell::new(0), medium }
    };
    let members = processes.iter().enumerate().map(member).collect();
    let mut tasks: Vec<_> = call(members).into_iter().map(Some).collect();
    let mut outcomes: Outcomes<T> = tasks.iter().map(|_| None).collect();
    let mut idle = 0;
    while tasks.iter().any(Option::is_some) {
        let rank = order.below(tasks.len());
        let Some(task) = &mut tasks[rank] else { continue };
        let before = meeting.told.borrow().concat().iter().flatten().count();
        let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let is_over = processes[rank].is_over();
        if is_over || polled.is_ready() {
            tasks[rank] = None;
            meeting.over.borrow_mut()[rank] = true;
        }
        let moved = meeting.told.borrow().concat().iter().flatten().count() > before;
        idle = if moved || tasks[rank].is_none() { 0 } else { idle + 1 };
        assert!(idle < 1000, "the ranks wait for each other");
        if let (Poll::Ready(outcome), false) = (polled, is_over) {
            outcomes[rank] = Some(outcome);
        }
    }
    outcomes
}

/// What all have returned, if they have.
pub(super) fn all_of<T>(outcomes: Outcomes<T>) -> Result<Vec<T>> {
    let ended = || Err(PersistentError::Unheard { what: "a rank has ended" });
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(ended)).collect()
}

/// Marks that the test knows of.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Ranks tell each other of them.
    pub(super) tells: bool,
    pub(super) stored: Option<Vec<bool>>,
}

impl Marks for Known {
    fn begin(&mut self, _: Vec<FileId>) {}

    async fn stored(&mut self, ranks: &impl Ranks) -> Result<Option<Vec<bool>>> {
        if self.tells {
            ranks.gather("a commit", &[0]).await?;
        }
        Ok(self.stored.take())
    }

    fn committed(&mut self, _: usize) {}
}

/// The key of the root; another one if it is made anew.
pub(super) fn key(medium: &Simulated) -> Result<Key> {
    let (name, files) = ("root".to_owned(), medium.files().len() as u8);
    let key = key_of::<_, PersistentError>(medium, || Ok([files; 32]))?;
    key.ok_or(PersistentError::Arg { name, what: "no key" })
}

/// A window that ranks have open.
pub(super) struct Job {
    pub(super) medium: Simulated,
    /// Storage as each rank has it, until that ends.
    pub(super) processes: Vec<Simulated>,
    pub(super) transactions: Vec<Transaction<Simulated>>,
    pub(super) marks: Known,
    /// Of each rank, the version that all have asked for.
    pub(super) requested: Vec<Requested>,
    hints: PersistentHints,
    sizes: Vec<u64>,
}

impl Job {
    pub(super) fn open(
        medium: &Simulated,
        hints: &PersistentHints,
        sizes: &[u64],
        fault: Fault,
        order: &mut Random,
    ) -> Result<Self> {
        let key = key(medium)?;
        let processes: Vec<_> = sizes.iter().map(|_| medium.process()).collect();
        let call = |members: Vec<Member>| {
            let task = |(member, size): (Member, &u64)| -> Task<'_, _> {
                let (size, hints) = (*size, hints.clone());
                Box::pin(async move {
                    let (checked, mut marks) = (Ok(0), Known::default());
                    let file = FileId { device: 0, inode: member.rank as u64 };
                    let root = (&member.medium, &key);
                    let make = || Ok(((), file));
                    open(root, &member, &hints, size, checked, &mut marks, make).await
                })
            };
            members.into_iter().zip(sizes).map(task).collect()
        };
        let opened = all_of(together(&processes, fault, order, call))?;
        let transactions = opened.into_iter().map(|(transaction, ())| transaction).collect();
        let (medium, marks, requested) = (medium.clone(), Known::default(), Vec::new());
        let (hints, sizes) = (hints.clone(), sizes.to_vec());
        Ok(Self { medium, processes, transactions, marks, requested, hints, sizes })
    }

    /// Of all ranks; by the blocks of each that were stored to, or by comparison.
    pub(super) fn commit(
        &mut self,
        stored: Option<&[Vec<bool>]>,
        fault: Fault,
        order: &mut Random,
    ) -> Outcomes<u64> {
        let (keep, tells) = (self.hints.keep_all, self.marks.tells);
        let transactions = &mut self.transactions;
        let call = |members: Vec<Member>| {
            let task = |(member, transaction)| -> Task<'_, u64> {
                let (member, transaction): (Member, &mut Transaction<_>) = (member, transaction);
                let stored = stored.map(|stored| stored[member.rank].clone());
                Box::pin(async move {
                    let mut marks = Known { tells, stored };
                    transaction.commit(&member, &mut marks, State::Kept, keep, None).await
                })
            };
            members.into_iter().zip(transactions).map(task).collect()
        };
        together(&self.processes, fault, order, call)
    }

    /// Of all ranks, with copies of so many bytes; as soon as a rank goes on, it stores what comes
    /// `next` to the part of the one to its right.
    pub(super) fn request(
        &mut self,
        stored: Option<&[Vec<bool>]>,
        room: usize,
        next: &[Vec<u8>],
        fault: Fault,
        order: &mut Random,
    ) -> Outcomes<Requested> {
        let (keep, tells, name) = (self.hints.keep_all, self.marks.tells, &self.hints.name);
        let transactions = &mut self.transactions;
        let call = |members: Vec<Member>| {
            let task = |(member, transaction)| -> Task<'_, Requested> {
                let (member, transaction): (Member, &mut Transaction<_>) = (member, transaction);
                let stored = stored.map(|stored| stored[member.rank].clone());
                Box::pin(async move {
                    let mut marks = Known { tells, stored };
                    let asked = transaction.request(&member, &mut marks, keep, None, room).await;
                    let (requested, _) = asked?;
                    let right = (member.rank + 1) % next.len();
                    write(&member.medium, name, right, &next[right])?;
                    Ok(requested)
                })
            };
            members.into_iter().zip(transactions).map(task).collect()
        };
        together(&self.processes, fault, order, call)
    }

    /// Of all ranks: what they have asked for is written, and decided.
    pub(super) fn conclude(&mut self, fault: Fault, order: &mut Random) -> Outcomes<u64> {
        let requested = core::mem::take(&mut self.requested);
        let transactions = self.transactions.iter_mut().zip(&requested);
        let call = |members: Vec<Member>| {
            let task = |(member, of)| -> Task<'_, u64> {
                let (transaction, requested): (&mut Transaction<_>, &Requested) = of;
                Box::pin(async move {
                    let prepared = transaction.write(requested);
                    let mut marks = Known::default();
                    transaction.conclude(&member, &mut marks, requested, prepared).await
                })
            };
            members.into_iter().zip(transactions).map(task).collect()
        };
        together(&self.processes, fault, order, call)
    }

    /// Of all ranks: without transactions from now on.
    pub(super) fn end(&mut self, fault: Fault, order: &mut Random) -> Outcomes<()> {
        let (keep, transactions) = (self.hints.keep_all, &mut self.transactions);
        let call = |members: Vec<Member>| {
            let task = |(member, transaction)| -> Task<'_, ()> {
                let (member, transaction): (Member, &mut Transaction<_>) = (member, transaction);
                Box::pin(async move { transaction.end(&member, &mut Known::default(), keep).await })
            };
            members.into_iter().zip(transactions).map(task).collect()
        };
        together(&self.processes, fault, order, call)
    }

    /// Of one rank.
    pub(super) fn commit_alone(&mut self, rank: usize) -> Result<u64> {
        self.transactions[rank].commit_alone(self.hints.keep_all)
    }

    /// What the parts have, whose files may be longer.
    pub(super) fn bytes(&self) -> Result<Vec<Vec<u8>>> {
        let part = |(rank, size): (u32, &u64)| {
            let mut bytes = self.medium.read(&work_file(&self.hints.name, rank))?;
            let bytes = bytes.get_or_insert_default();
            bytes.truncate(*size as usize);
            Ok(core::mem::take(bytes))
        };
        (0..).zip(&self.sizes).map(part).collect()
    }

    /// Stores what the parts lie on, as operations do.
    pub(super) fn write(&self, rank: usize, bytes: &[u8]) -> Result<()> {
        write(&self.medium, &self.hints.name, rank, bytes)
    }
}

fn write(medium: &Simulated, name: &str, rank: usize, bytes: &[u8]) -> Result<()> {
    let file = medium.open(&work_file(name, rank as u32))?;
    Ok(medium.write_at(&file.expect("made when it was opened"), bytes, 0)?)
}
