//! What libfabric says there is.
#![allow(unsafe_code)]

use super::layout::{
    ATOMIC, CONTEXT, ENODATA, EP_RDM, Info, MR_ALLOCATED, MR_ENDPOINT, MR_LOCAL, MR_PROV_KEY,
    MR_VIRT_ADDR, MSG, PROGRESS_AUTO, RMA,
};
use super::library::{API, Libfabric};
use crate::{Keys, Offer, OfiError, Progress};
use std::ffi::{CStr, c_char};
use std::ptr;

/// A list that libfabric made, or null.
struct Infos<'l> {
    first: *mut Info,
    library: &'l Libfabric,
}

impl Drop for Infos<'_> {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: libfabric made the list, and nobody else frees it.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

impl Libfabric {
    /// The providers of this host with reliable endpoints and messages, in the order of
    /// libfabric. Nothing is sent.
    ///
    /// # Errors
    /// [`OfiError::Query`] if libfabric fails. That there is no provider is no error here.
    pub fn offers(&self) -> Result<Vec<Offer>, OfiError> {
        let mut offers: Vec<Offer> = Vec::new();
        // A provider shows only what it was asked for.
        for caps in [MSG | RMA | ATOMIC, MSG | RMA, MSG] {
            for offer in self.query(caps)? {
                if !offers.iter().any(|known| is_same(known, &offer)) {
                    offers.push(offer);
                }
            }
        }
        Ok(offers)
    }

    fn query(&self, caps: u64) -> Result<Vec<Offer>, OfiError> {
        // SAFETY: null asks for an empty one, of this library's own length.
        let first = unsafe { (self.dupinfo)(ptr::null()) };
        let hints = Infos { first, library: self };
        // SAFETY: libfabric made it, and only `hints` has it.
        let filled = unsafe { hints.first.as_mut() }.is_some_and(|info| fill(info, caps));
        if !filled {
            return Err(self.failed(libc::ENOMEM));
        }
        let mut list = Infos { first: ptr::null_mut(), library: self };
        let (node, hint) = (ptr::null(), hints.first.cast_const());
        // SAFETY: no name of a host or service, hints made by libfabric, room for one pointer.
        let code = unsafe { (self.getinfo)(API, node, node, 0, hint, &raw mut list.first) };
        match code.saturating_neg() {
            0 => Ok(read(&list, caps)),
            ENODATA => Ok(Vec::new()),
            error => Err(self.failed(error)),
        }
    }

    fn failed(&self, code: i32) -> OfiError {
        // SAFETY: any number will do.
        let text = unsafe { (self.strerror)(code) };
        OfiError::Query { code, reason: string(text) }
    }
}

/// Whether libfabric names the same device twice.
fn is_same(one: &Offer, other: &Offer) -> bool {
    one.provider == other.provider && one.fabric == other.fabric && one.domain == other.domain
}

/// Writes what is asked for; false if libfabric left a part out.
fn fill(info: &mut Info, caps: u64) -> bool {
    info.caps = caps;
    info.mode = CONTEXT;
    // SAFETY: null, or made by libfabric with `info`, which is borrowed.
    let Some(ep) = (unsafe { info.ep_attr.as_mut() }) else { return false };
    ep.kind = EP_RDM;
    // SAFETY: as above.
    let Some(domain) = (unsafe { info.domain_attr.as_mut() }) else { return false };
    domain.mr_mode = MR_LOCAL | MR_VIRT_ADDR | MR_ALLOCATED | MR_PROV_KEY | MR_ENDPOINT;
    true
}

fn read(list: &Infos<'_>, asked: u64) -> Vec<Offer> {
    let mut offers = Vec::new();
    let mut at = list.first;
    // SAFETY: null, or an entry of the list, which `list` keeps.
    while let Some(info) = unsafe { at.as_ref() } {
        offers.extend(offer(info, asked));
        at = info.next;
    }
    offers
}

/// `None` if libfabric left a part out.
fn offer(info: &Info, asked: u64) -> Option<Offer> {
    // SAFETY: null, or made by libfabric with `info`, which is borrowed.
    let tx = unsafe { info.tx_attr.as_ref() }?;
    // SAFETY: as above.
    let ep = unsafe { info.ep_attr.as_ref() }?;
    // SAFETY: as above.
    let domain = unsafe { info.domain_attr.as_ref() }?;
    // SAFETY: as above.
    let fabric = unsafe { info.fabric_attr.as_ref() }?;
    let has = |caps: u64| asked & info.caps & caps == caps;
    let is_auto = domain.data_progress == PROGRESS_AUTO;
    Some(Offer {
        provider: string(fabric.prov_name),
        fabric: string(fabric.name),
        domain: string(domain.name),
        has_rma: has(MSG | RMA),
        has_atomics: has(MSG | RMA | ATOMIC),
        keys: Keys {
            by_address: domain.mr_mode & MR_VIRT_ADDR != 0,
            by_provider: domain.mr_mode & MR_PROV_KEY != 0,
            local: domain.mr_mode & MR_LOCAL != 0,
        },
        progress: if is_auto { Progress::Auto } else { Progress::Manual },
        max_message: ep.max_msg_size,
        inject: tx.inject_size,
    })
}

/// A string of libfabric, or nothing for null.
fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libfabric's strings end in a zero and live as long as what names them, which the
    // caller has borrowed; those of `fi_strerror` are constants.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::Libfabric;
    use crate::{OfiError, Wanted, choose};

    #[test]
    fn what_is_here_is_read() {
        let library = match Libfabric::load() {
            Ok(library) => library,
            Err(OfiError::Missing { reason }) => {
                println!("what_is_here_is_read is skipped: {reason}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let offers = library.offers().unwrap();
        for offer in &offers {
            println!("{offer:?}");
            assert!(!offer.provider.is_empty() && offer.max_message > 0, "{offer:?}");
            assert!(offer.has_rma || !offer.has_atomics, "{offer:?}");
        }
        // A build may lack it, and FI_PROVIDER may hide it.
        if let Ok(tcp) = choose(&offers, &Wanted { provider: Some("tcp"), ..Wanted::default() }) {
            assert!(tcp.has_rma && !tcp.keys.by_provider, "{tcp:?}");
        }
    }
}
