//! How a rank joins the others of its job over libfabric.
#![allow(unsafe_code)] // room: composes transports, declares what a caller promises

use crate::book::{self, Book, Directory};
use crate::device::{Device, Memory};
use crate::objects::{Doze, Line, Membership};
use crate::port::{MESSAGE_MAX, Port, RECEIVES, SENDS, SLOT_BYTES, SLOTS};
use crate::profile::{Profile, Seed};
use crate::seal::{JobKey, JobSecret};
use crate::sys::{Atomics, Caps, Endpoint, Opened, Passive, Slot};
use crate::watcher::{Bell, FAREWELL};
use crate::{Libfabric, Offer, OfiError, Wanted, choose};
use rma_core::transport::{Network, Parts, Remote, Transport, Waker, WorldRank};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a rank must know before it joins.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfiConfig<'a> {
    /// The provider, by its name or that of its core (`tcp`); the best there is if none is named.
    pub provider: Option<&'a str>,
    /// `FI_PROVIDER`, which libfabric obeys by itself.
    pub filter: Option<&'a str>,
    /// Whether libfabric was told to touch memory without a call, too.
    pub acts_by_itself: bool,
    /// How long a wait may last. A target that does not say for as long whether it has a key is
    /// unreachable. A rank that leaves waits so long for peers to confirm what it sent them; 10 s
    /// at most, and if `None`.
    pub wait_timeout: Option<Duration>,
    /// What the tags of messages are keyed with.
    pub secret: JobSecret,
    /// The address of this host that peers reach; given to providers whose addresses are those of
    /// the internet.
    pub host: &'a str,
}

/// Why a rank could not join.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OfiJoinError<E> {
    /// This rank has no network.
    #[error(transparent)]
    Here(#[from] OfiError),
    /// Another rank has none.
    #[error("rank {rank} has no network: {why}")]
    There {
        /// That rank.
        rank: WorldRank,
        /// What it says.
        why: String,
    },
    /// The bootstrap failed.
    #[error("the exchange of addresses failed: {0}")]
    Exchange(E),
    /// Another rank sent something else than what it has.
    #[error(
        "what rank {rank} says of its network cannot be used: run the same build of the program on \
         every rank"
    )]
    Profile {
        /// That rank.
        rank: WorldRank,
    },
    /// The bootstrap returned another number of profiles than there are ranks.
    #[error(
        "the exchange returned {got} profiles for {size} ranks; start all ranks of a job with \
         the same launcher and size"
    )]
    Count {
        /// Profiles returned.
        got: usize,
        /// The number of ranks.
        size: u32,
    },
    /// Ranks have different providers, which do not reach each other.
    #[error(
        "rank {rank} uses provider {theirs:?}, this one {mine:?}: name one that all hosts have \
         (rma-run --provider NAME), and see whether FI_PROVIDER differs"
    )]
    Differs {
        /// That rank.
        rank: WorldRank,
        /// Its provider.
        theirs: String,
        /// This rank's.
        mine: String,
    },
    /// The system refused something that the watching thread takes.
    #[error("the operating system refused {what} (os error {errno})")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Error number.
        errno: i32,
    },
}

rma_core::debug_as_display!(OfiJoinError<E: core::fmt::Display>);

/// Cores whose addresses are those of the internet.
const BY_IP: &[&str] = &["tcp", "net", "sockets", "udp"];

/// The address to open a provider at, if its addresses are of that kind.
pub(crate) fn host_of<'h>(offer: &Offer, host: &'h str) -> Option<&'h str> {
    BY_IP.contains(&offer.core()).then_some(host)
}

/// Of the provider that was chosen.
struct Found {
    opened: Opened,
    ends: (Arc<Passive>, Vec<Slot>),
    /// Why memory of peers is not reached, if it is not.
    no_memory: Option<OfiError>,
    max_message: usize,
    provider: String,
    version: (u32, u32),
}

fn open(config: &OfiConfig<'_>) -> Result<Found, OfiError> {
    let library = Libfabric::load()?;
    let offers = library.offers()?;
    let OfiConfig { provider, filter, host, .. } = *config;
    let offer = choose(&offers, &Wanted { provider, needs_rma: false, filter })?;
    let host = host_of(offer, host);
    if offer.max_message < SLOT_BYTES {
        let why = "takes no messages as large as rma's";
        return Err(OfiError::Unfit { provider: offer.provider.clone(), why });
    }
    let caps = Caps::of(offer.has_rma, offer.has_own_atomics());
    let mut opened = match Opened::open(&library, offer, host, caps) {
        // Perhaps not for threads that share endpoints.
        Err(_) if caps == Caps::Atomics => Opened::open(&library, offer, host, Caps::Memory)?,
        opened => opened?,
    };
    opened.acts_by_itself = config.acts_by_itself;
    let ends = opened.endpoint((SLOTS, SLOT_BYTES));
    let (endpoint, slots) = ends.map_err(|failed| opened.failed(failed))?;
    let no_memory = opened.check_memory(caps).err();
    let (provider, version) = (offer.provider.clone(), library.version());
    let ends = (Arc::new(Passive::new(&opened, endpoint)), slots);
    Ok(Found { opened, ends, no_memory, max_message: offer.max_message, provider, version })
}

/// Has `near` reach the ranks that are not near by messages over libfabric. **Collective** over
/// the ranks of the job: `exchange` is the bootstrap's all-gather, which gives every rank the bytes
/// of all, as how many in a row said the same, and what. It is called once, and most ranks say the
/// same: where each is reached is told by the directory, when a peer is first talked to.
///
/// # Errors
///
/// See [`OfiJoinError`]. A rank that has no network tells the others, which fail, too.
///
/// # Safety
///
/// `exchange` gives what the ranks of this job gave to theirs, by rank, and each rank joins once.
pub unsafe fn join<D: Directory>(
    near: Transport,
    config: &OfiConfig<'_>,
    directory: Arc<D>,
    exchange: impl FnOnce(&[u8]) -> Result<Vec<(u32, Vec<u8>)>, D::Error>,
) -> Result<Transport, OfiJoinError<D::Error>> {
    let Parts { job, messages, sleep, members, shared, cma, remote, agent, views } =
        near.into_parts();
    let (rank, size) = (job.rank, job.size);
    let (mine, opened) = introduce(rank, config);
    let waker = Arc::new(OnceLock::new());
    // Before the exchange: a peer whose query comes behind it gets an answer.
    let opened = match opened {
        Ok(opened) => {
            let of_job = ((rank, size), waker.clone());
            let book = publish(directory, opened.ends.0.address(), of_job)?;
            Ok((opened, book))
        }
        Err(error) => Err(error),
    };
    let said = exchange(&mine.to_bytes()).map_err(OfiJoinError::Exchange)?;
    let (found, book) = opened?;
    let Found { opened, ends, no_memory, max_message, provider, version } = found;
    let told = read(&said, job.size, &provider, ends.0.address().len())?;
    let mut what = describe(&ends.0, opened.progresses(), &provider, version);
    let bell = Bell::new().map_err(|errno| refused("an eventfd", errno.raw_os_error()))?;
    let bell = Arc::new(bell);
    let bells = (bell.clone(), waker);
    // All ranks have one, or none: they agree on its use when they make windows.
    let device = match (no_memory, told.without_memory) {
        (None, None) => {
            let ends = (ends.0.clone(), book.clone());
            let its = (&*provider, max_message, told.atomics);
            let device =
                Device::new(opened, its, ends, config.wait_timeout, members.clone(), bells.clone());
            let device = device.map_err(|errno| refused("an epoll", errno.raw_os_error()))?;
            Some(Arc::new(device))
        }
        (Some(why), _) => {
            what += &format!("; no device: {why}");
            None
        }
        (None, Some(rank)) => {
            what += &format!("; no device, as rank {rank} has none");
            None
        }
    };
    let its = (job.rank, JobKey::new(&config.secret, &told.seed));
    let farewell = config.wait_timeout.unwrap_or(FAREWELL).min(FAREWELL);
    let port = Port::new(ends, its, book, members, bells, (device, farewell));
    let port = Arc::new(port);
    let membership = Arc::new(Membership(port.clone()));
    let is_crowded = sleep.is_crowded();
    let near = Parts {
        job,
        messages,
        sleep: Arc::new(Doze { sleep, bell }),
        members: membership.clone(),
        shared,
        cma,
        remote,
        agent,
        views,
    };
    // SAFETY: those of `near`, which is no more; sleep and members forward to it.
    let near = unsafe { Transport::from_parts(near) };
    // SAFETY: both are this rank's; the profiles are in the order of ranks, says the caller.
    unsafe { near.beside(|waker| network(&port, waker, (what, is_crowded), membership)) }
}

/// Rank 0's is the job's; what others say alike is told once.
fn seed_of(rank: WorldRank) -> rustix::io::Result<Seed> {
    if rank == WorldRank(0) { random() } else { Ok(Seed::default()) }
}

/// What this rank has, and what it tells the others of that.
fn introduce(rank: WorldRank, config: &OfiConfig<'_>) -> (Profile, Result<Found, OfiError>) {
    match seed_of(rank).map_err(OfiError::random).and_then(|seed| Ok((seed, open(config)?))) {
        Ok((seed, opened)) => {
            let address_len = opened.ends.0.address().len() as u16;
            let (provider, has_memory) = (opened.provider.clone(), opened.no_memory.is_none());
            let atomics = opened.opened.atomics();
            (Profile::Open { seed, provider, address_len, has_memory, atomics }, Ok(opened))
        }
        Err(error) => (Profile::Closed(error.to_string()), Err(error)),
    }
}

/// Tells the directory where this rank is, and has a book of what it says of others.
fn publish<D: Directory>(
    directory: Arc<D>,
    address: &[u8],
    ((rank, size), waker): ((WorldRank, u32), Arc<OnceLock<Waker>>),
) -> Result<Arc<Book>, OfiJoinError<D::Error>> {
    let its = directory.clone();
    let query = Box::new(move |peer: WorldRank| its.query(peer));
    let book = Arc::new(Book::new((size, address.len()), query, waker));
    // The book keeps the directory, and not the other way round.
    let hears = Arc::downgrade(&book);
    let told = move |card: Option<(WorldRank, &[u8])>| match (hears.upgrade(), card) {
        (Some(book), Some((peer, card))) => book.told(peer, card),
        (Some(book), None) => book.end(),
        (None, _) => {}
    };
    let published = directory.publish(&book::card(rank, address), Box::new(told));
    published.map(|()| book).map_err(OfiJoinError::Exchange)
}

fn refused<E>(what: &'static str, errno: i32) -> OfiJoinError<E> {
    OfiJoinError::System { what, errno }
}

/// What `port` reaches, with a thread that stands in for those of the rank.
fn network<E>(
    port: &Arc<Port>,
    waker: Waker,
    (what, is_crowded): (String, bool),
    members: Arc<Membership>,
) -> Result<Network, OfiJoinError<E>> {
    _ = port.waker.set(waker);
    let line = Line::open(port.clone(), what, is_crowded);
    let line = line.map_err(|error| refused("a thread", error.raw_os_error().unwrap_or(0)))?;
    let remote = port.device.clone().map(|device| Arc::new(Memory(device)) as Arc<dyn Remote>);
    Ok(Network { name: "ofi", messages: Arc::new(line), members, remote })
}

/// What all profiles say.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// What the job's key is made of.
    seed: Seed,
    /// The first rank whose memory is not reached, if there is one.
    without_memory: Option<WorldRank>,
    /// What the providers of all ranks combine.
    atomics: Atomics,
}

fn read<E>(
    said: &[(u32, Vec<u8>)],
    size: u32,
    mine: &str,
    len: usize,
) -> Result<Told, OfiJoinError<E>> {
    let all: usize = said.iter().map(|(count, _)| *count as usize).sum();
    if all != size as usize {
        return Err(OfiJoinError::Count { got: all, size });
    }
    let (mut of_job, mut at) = (None, 0);
    let (mut without_memory, mut of_all) = (None, None);
    for (count, profile) in said {
        let rank = WorldRank(at);
        match Profile::parse(profile) {
            Some(Profile::Open { provider, .. }) if provider != mine => {
                return Err(OfiJoinError::Differs {
                    rank,
                    theirs: provider,
                    mine: mine.to_owned(),
                });
            }
            Some(Profile::Open { seed, address_len, has_memory, atomics, .. })
                if usize::from(address_len) == len =>
            {
                of_job.get_or_insert(seed);
                without_memory = without_memory.or((!has_memory).then_some(rank));
                of_all = Some(of_all.map_or(atomics, |of_all: Atomics| of_all.and(atomics)));
            }
            Some(Profile::Closed(why)) => return Err(OfiJoinError::There { rank, why }),
            _ => return Err(OfiJoinError::Profile { rank }),
        }
        at += count;
    }
    let atomics = of_all.unwrap_or_default();
    let told = of_job.map(|seed| Told { seed, without_memory, atomics });
    told.ok_or(OfiJoinError::Count { got: 0, size })
}

/// What `explain` says of it.
fn describe(
    endpoint: &Endpoint,
    progresses: bool,
    provider: &str,
    (major, minor): (u32, u32),
) -> String {
    let address = endpoint.shown(endpoint.address());
    let progress = if progresses { "its own" } else { "made by calls" };
    let watch = match endpoint.file() {
        Some(_) => "sleeps at the provider's file",
        None => "looks every millisecond, as the provider has no file to sleep at",
    };
    format!(
        "ofi: provider {provider} of libfabric {major}.{minor} at {address}, messages up to \
         {MESSAGE_MAX} bytes, each with a tag of the job (HighwayHash), {RECEIVES} slots for those \
         that arrive and {SENDS} for those that leave; progress is {progress}, and by a thread \
         that {watch} while no thread of the rank looks"
    )
}

/// Bytes that no attacker guesses.
pub(crate) fn random<const N: usize>() -> rustix::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
