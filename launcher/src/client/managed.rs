//! A rank whose job a launcher of others has started.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{Client, HELLO_TIMEOUT, end_with_parent};
use crate::pmi::{Card, Managed, Session};
use crate::serve::{Door, GRACE};
use crate::start::{Secret, Settings, StartError};
use crate::wire::{RANKS_MAX, Refusal};

/// How long an address of rank 0 may take to answer while there are others: a network may swallow
/// what is sent there.
const REACHED_IN: Duration = Duration::from_secs(3);
/// Letters of a reason why there is no job: launchers take short values.
const REASON_MAX: usize = 300;

/// A CPU is a bit.
type Cpus = [u8; CpuSet::MAX_CPU / 8];

/// The session with a launcher of others, and whether this rank has left its job.
#[derive(Debug)]
pub(super) struct Guarded {
    session: Mutex<Session>,
    left: Mutex<bool>,
    leaves: Condvar,
}

impl Guarded {
    pub(super) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leave(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.leaves.notify_all();
    }

    /// Rank 0 is lost, which serves: has the launcher end the job, unless this rank leaves by
    /// itself.
    pub(super) fn end_soon(&self) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.leaves.wait_timeout_while(left, GRACE, |left| !*left);
        if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
            self.session().abort();
        }
    }
}

impl Client {
    /// Joins a job that a launcher of others has started: ranks find each other by it.
    /// **Collective** over the job.
    ///
    /// A thread of rank 0 does then what `rma-run` does for the bootstrap of its ranks; dropped,
    /// the client of rank 0 waits until all ranks have left. When a rank is lost, or fails, the
    /// launcher is told to end the job a second later.
    ///
    /// # Errors
    ///
    /// When the launcher does not do its part, and when its ranks cannot be one job.
    pub fn join(managed: &Managed) -> Result<Client, StartError> {
        end_with_parent()?;
        let mut session = managed.open()?;
        let (rank, size) = session.place();
        let launcher = session.launcher();
        if size > RANKS_MAX {
            let why = format!("{size} ranks are more than {RANKS_MAX}");
            return Err(StartError::NoJob { launcher, why });
        }
        let (door, mine) = open_door(&mut session)?;
        let Card { addresses, secret, refusal } = session.share(mine.as_ref())?;
        if let Some(why) = refusal {
            session.finish();
            return Err(StartError::NoJob { launcher, why });
        }
        let guarded = Arc::new(Guarded {
            session: Mutex::new(session),
            left: Mutex::new(false),
            leaves: Condvar::new(),
        });
        let mut addresses: Vec<SocketAddr> =
            addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let mut served = None;
        if let Some(door) = door {
            let system = |call| move |source| StartError::System { call, source };
            addresses = vec![door.address().map_err(system("listening for ranks"))?];
            let guarded = Arc::clone(&guarded);
            let abort = move || guarded.session().abort();
            served = Some(door.serve(Box::new(abort)).map_err(system("starting a thread"))?);
        }
        let at = |bootstrap| Settings { bootstrap, rank, secret: Secret(secret), bulletin: None };
        let places: Vec<_> = addresses.into_iter().map(at).collect();
        let mut client = reach(&places, launcher, &guarded)?;
        client.served = served;
        if client.job.size != size {
            let counted = client.job.size;
            let why = format!("rank 0 counts {counted} ranks, and {launcher} {size}");
            return Err(StartError::NoJob { launcher, why });
        }
        client.count_cpus()?;
        Ok(client)
    }

    /// **Collective.** Counts the CPUs that ranks of this host may run on: a launcher may have
    /// bound each to a few.
    fn count_cpus(&mut self) -> Result<(), StartError> {
        let system = |source: io::Error| StartError::System { call: "sched_getaffinity", source };
        let set = sched_getaffinity(None).map_err(|errno| system(errno.into()))?;
        let mut mine: Cpus = [0; _];
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
            mine[cpu / 8] |= 1 << (cpu % 8);
        }
        let here = self.job.here();
        let (mut first, mut all): (u32, Cpus) = (0, [0; _]);
        for (count, theirs) in self.all_gather(&mine)? {
            let end = first.saturating_add(count);
            if first < here.end && end > here.start {
                all.iter_mut().zip(theirs).for_each(|(all, theirs)| *all |= theirs);
            }
            first = end;
        }
        self.job.cores = all.iter().map(|byte| byte.count_ones()).sum();
        Ok(())
    }
}

/// At rank 0, a door for all ranks, and what they are told: where it is, or why there is none.
fn open_door(session: &mut Session) -> Result<(Option<Door>, Option<Card>), StartError> {
    let Some(nodes) = session.nodes()? else { return Ok((None, None)) };
    let open = |nodes| {
        let door = Door::open(nodes)?;
        let card = Card { addresses: door.addresses()?, secret: door.secret(), refusal: None };
        io::Result::Ok((door, card))
    };
    let opened = nodes.and_then(|nodes| {
        open(nodes).map_err(|error| format!("rank 0 cannot listen for the others: {error}"))
    });
    Ok(match opened {
        Ok((door, card)) => (Some(door), Some(card)),
        Err(why) => {
            let refusal = Some(why.chars().take(REASON_MAX).collect());
            (None, Some(Card { addresses: Vec::new(), secret: [0; 32], refusal }))
        }
    })
}

/// Joins at the first of these places where rank 0 of this job is; if it is at none, says what
/// failed at the first, which other hosts should reach.
fn reach(
    places: &[Settings],
    launcher: &'static str,
    guarded: &Arc<Guarded>,
) -> Result<Client, StartError> {
    let (mut failed, deadline) = (None, Instant::now() + HELLO_TIMEOUT);
    for (settings, left) in places.iter().zip((0..places.len()).rev()) {
        let reached_in = if left > 0 { REACHED_IN } else { HELLO_TIMEOUT };
        match Client::greeted_with(settings, Some(guarded), reached_in, deadline) {
            Ok(client) => return Ok(client),
            Err(error @ StartError::Refused { .. }) => return Err(of_rank_0(error, launcher)),
            Err(error) => failed = failed.or(Some(error)),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    let nowhere = || StartError::NoJob { launcher, why: "rank 0 has no address".to_owned() };
    Err(failed.map_or_else(nowhere, |error| of_rank_0(error, launcher)))
}

/// What a rank is told that rank 0 does not let in: `rma-run`, and the variables that it sets, have
/// no part in such a job.
fn of_rank_0(error: StartError, launcher: &'static str) -> StartError {
    let why = match error {
        StartError::Unknown { rank, address } => {
            format!("rank 0 at {address} refused rank {rank}: its secret is that of another job")
        }
        StartError::NotTheLauncher(address) => {
            format!("whoever listens at {address} is not rank 0 of this job")
        }
        StartError::Refused { rank, why: Refusal::RankTaken } => format!(
            "rank 0 refused rank {rank}: another process is this rank already; a program that a \
             rank starts is no rank: start it without what the launcher has set"
        ),
        StartError::Refused { rank, why } => format!("rank 0 refused rank {rank}: {why}"),
        other => return other,
    };
    StartError::NoJob { launcher, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rank_0_refuses_names_no_variable_of_rma_run() {
        let address: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        for error in [
            StartError::Unknown { rank: 1, address },
            StartError::NotTheLauncher(address),
            StartError::Refused { rank: 1, why: Refusal::RankTaken },
        ] {
            let text = of_rank_0(error, "srun").to_string();
            assert!(text.contains("srun") && text.contains("rank 0"), "{text}");
            assert!(!text.contains("RMA_"), "{text}");
        }
    }
}
