//! Which provider a job takes.

use crate::offer::core_of;
use crate::{Offer, OfiError};

/// Cores that reach other hosts, the fastest first. `shm` is none: it is taken only by name.
const PREFERENCE: &[&str] =
    &["cxi", "efa", "opx", "psm2", "verbs", "psm3", "ucx", "tcp", "sockets", "udp"];

/// What a user asks of a provider.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Its name, whole (`tcp;ofi_rxm`) or that of its core (`tcp`).
    pub provider: Option<&'a str>,
    /// Whether it must have remote memory access.
    pub needs_rma: bool,
    /// `FI_PROVIDER`, which libfabric obeys by itself; here it explains what is not there.
    pub filter: Option<&'a str>,
}

/// Takes the best of `offers`: the one that is named, or the first in order of preference.
/// Among equals one with remote memory access wins, then the one that libfabric has first.
///
/// # Errors
/// [`OfiError`] if there is none such; it names those that are there.
pub fn choose<'o>(offers: &'o [Offer], wanted: &Wanted<'_>) -> Result<&'o Offer, OfiError> {
    let candidates: Vec<&Offer> = match wanted.provider {
        Some(name) => offers.iter().filter(|offer| offer.is_called(name)).collect(),
        None => offers.iter().filter(|offer| rank(offer).is_some()).collect(),
    };
    if candidates.is_empty() {
        return Err(nothing(offers, wanted));
    }
    let fits = |offer: &&&Offer| offer.has_rma || !wanted.needs_rma;
    let best = candidates.iter().filter(fits).min_by_key(|offer| (rank(offer), !offer.has_rma));
    best.copied().ok_or_else(|| OfiError::NoRma {
        wanted: wanted.provider.unwrap_or("any").to_string(),
        offered: names(offers.iter().filter(|offer| offer.has_rma)),
    })
}

fn rank(offer: &Offer) -> Option<usize> {
    PREFERENCE.iter().position(|core| *core == offer.core())
}

fn nothing(offers: &[Offer], wanted: &Wanted<'_>) -> OfiError {
    let offered = names(offers.iter());
    let Some(name) = wanted.provider else {
        return OfiError::None { offered };
    };
    let wanted_name = name.to_string();
    match wanted.filter {
        Some(filter) if hides(filter, name) => {
            OfiError::Hidden { wanted: wanted_name, filter: filter.to_string() }
        }
        _ => OfiError::Unknown { wanted: wanted_name, offered },
    }
}

/// Whether libfabric leaves provider `name` out: a list lets the cores in it through, a list
/// that begins with `^` all layers but those in it.
fn hides(filter: &str, name: &str) -> bool {
    let (list, is_negative) = match filter.strip_prefix('^') {
        Some(list) => (list, true),
        None => (filter, false),
    };
    let mut entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).peekable();
    if entries.peek().is_none() {
        return false;
    }
    if !is_negative {
        return !entries.any(|entry| core_of(entry).eq_ignore_ascii_case(core_of(name)));
    }
    entries.any(|entry| {
        entry.eq_ignore_ascii_case(name)
            || name.split(';').any(|layer| layer.eq_ignore_ascii_case(entry))
    })
}

/// Each provider once, in the order of libfabric.
fn names<'o>(offers: impl Iterator<Item = &'o Offer>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for offer in offers {
        if !names.contains(&offer.provider.as_str()) {
            names.push(&offer.provider);
        }
    }
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
