//! How ranks of other nodes are reached: by libfabric (feature `network`).
#![allow(unsafe_code)] // room: joins the ranks

use crate::local::{Broken, Exchange};
use crate::{Config, StartError};
use rma_core::transport::{Transport, WorldRank};
use rma_launcher::Client;
use rma_transport_ofi::{Directory, JobSecret, OfiConfig, OfiJoinError, Told};
use rma_transport_shm::Said;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The address of ranks that are all on this machine.
const LOOP_BACK: &str = "127.0.0.1";

/// Reaches ranks of other nodes, as a rank of that launcher.
///
/// # Safety
///
/// The launcher gathers what the ranks of its job say, by rank, and each rank joins once.
pub(crate) unsafe fn of_job(
    near: Transport,
    config: &Config,
    client: &Arc<Client>,
) -> Result<Transport, StartError> {
    let address = client.job().host.as_ref().map_or(LOOP_BACK, |host| &*host.address);
    let said = |mine: &[u8]| client.all_gather(mine);
    let secret = JobSecret(client.secret_of_messages());
    let directory = Arc::new(ByLauncher(client.clone()));
    // SAFETY: forwarded to the caller.
    unsafe { over_network(near, (config, address, secret), directory, said) }
}

/// Reaches ranks of other nodes, as a rank of this process.
///
/// # Safety
///
/// The exchange is of this rank's job, and each rank joins once.
pub(crate) unsafe fn of_process(
    near: Transport,
    config: &Config,
    (exchange, rank): (&Exchange, u32),
) -> Result<Transport, StartError> {
    let said = |mine: &[u8]| exchange.all_gather(rank, mine);
    let here = Here { cards: exchange.cards.clone(), rank, told: OnceLock::new() };
    // No other process has a way to what rank 0 says.
    let network = (config, LOOP_BACK, JobSecret::default());
    // SAFETY: forwarded to the caller.
    unsafe { over_network(near, network, Arc::new(here), said) }
}

/// Reaches ranks of other nodes as the configuration says, at that address of this machine, with
/// messages that are keyed with that secret. `exchange` is the all-gather of the job, and
/// `directory` knows where its ranks are.
///
/// # Safety
///
/// `exchange` gives what the ranks of this job gave to theirs, by rank, and each rank joins once.
unsafe fn over_network<D: Directory>(
    near: Transport,
    (config, address, secret): (&Config, &str, JobSecret),
    directory: Arc<D>,
    exchange: impl FnOnce(&[u8]) -> Result<Said, D::Error>,
) -> Result<Transport, StartError>
where
    StartError: From<OfiJoinError<D::Error>>,
{
    if config.transport() != "ofi" {
        return Ok(near);
    }
    let filter = rma_launcher::provider_filter();
    let (provider, filter) = (config.provider(), filter.as_deref());
    let (wait_timeout, host) = (config.wait_timeout, address);
    let acts_by_itself = rma_launcher::provider_acts_by_itself();
    let network = OfiConfig { provider, filter, acts_by_itself, wait_timeout, secret, host };
    // SAFETY: forwarded to the caller.
    Ok(unsafe { rma_transport_ofi::join(near, &network, directory, exchange) }?)
}

/// The launcher of a job, which knows where its ranks are.
struct ByLauncher(Arc<Client>);

impl Directory for ByLauncher {
    type Error = rma_launcher::StartError;

    fn publish(&self, card: &[u8], told: Told) -> Result<(), Self::Error> {
        self.0.publish(card, move |card| told(card.map(|(rank, card)| (WorldRank(rank), card))))
    }

    fn query(&self, rank: WorldRank) -> bool {
        self.0.query(rank.0)
    }
}

/// Where each rank of a process is reached, as it says.
#[derive(Clone)]
pub(crate) struct Cards(Arc<Mutex<Vec<Vec<u8>>>>);

impl Cards {
    pub(crate) fn new(ranks: u32) -> Self {
        Self(Arc::new(Mutex::new(vec![Vec::new(); ranks as usize])))
    }
}

/// Where ranks of this process are reached, as one of them asks.
struct Here {
    cards: Cards,
    rank: u32,
    told: OnceLock<Told>,
}

impl Directory for Here {
    type Error = Broken;

    fn publish(&self, card: &[u8], told: Told) -> Result<(), Broken> {
        _ = self.told.set(told);
        let mut cards = self.cards.0.lock().unwrap_or_else(PoisonError::into_inner);
        cards[self.rank as usize] = card.to_vec();
        Ok(())
    }

    fn query(&self, rank: WorldRank) -> bool {
        let cards = self.cards.0.lock().unwrap_or_else(PoisonError::into_inner);
        let card = cards.get(rank.0 as usize).cloned().unwrap_or_default();
        drop(cards);
        self.told.get().iter().for_each(|told| told(Some((rank, &card))));
        true
    }
}
