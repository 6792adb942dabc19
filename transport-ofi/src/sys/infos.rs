//! What libfabric says there is.
#![allow(unsafe_code)]

use super::layout::{
    ATOMIC, CONTEXT, CONTEXT2, ENODATA, EP_RDM, Info, MR_ALLOCATED, MR_ENDPOINT, MR_LOCAL,
    MR_PROV_KEY, MR_VIRT_ADDR, MSG, PROGRESS_AUTO, RM_ENABLED, RMA, SOURCE, THREAD_SAFE,
};
use super::library::{API, FreeInfo, Libfabric};
use crate::{Keys, Offer, OfiError, Progress};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// A list that libfabric made, or null.
pub(super) struct Infos {
    first: *mut Info,
    free: FreeInfo,
}

impl Infos {
    /// The first of the list, which lives as long as this.
    pub(super) fn first(&self) -> *mut Info {
        self.first
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: libfabric made the list, and no other code frees it.
            unsafe { (self.free)(self.first) };
        }
    }
}

/// What endpoints are asked for.
struct Asked<'a> {
    caps: u64,
    /// A provider as libfabric names it, and threads that share its objects.
    provider: Option<&'a str>,
    /// Its domain, if the address does not say which.
    domain: Option<&'a str>,
    /// Whether providers may be meant that choose the keys of memory.
    keys_of_provider: bool,
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
        let asked = Asked { caps, provider: None, domain: None, keys_of_provider: true };
        match self.query_with(&asked, (None, None)) {
            Ok(list) => Ok(read(&list, caps)),
            Err(ENODATA) => Ok(Vec::new()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// What to open endpoints of `offer` with that can do `caps`, at the address `host` and port
    /// `service` if these are given.
    pub(super) fn infos_of(
        &self,
        offer: &Offer,
        (host, service): (Option<&str>, Option<&str>),
        caps: u64,
    ) -> Result<Infos, OfiError> {
        let domain = host.is_none().then_some(&*offer.domain);
        let with = |keys_of_provider| {
            let asked = Asked { caps, provider: Some(&offer.provider), domain, keys_of_provider };
            self.query_with(&asked, (host, service))
        };
        // Ours are random; one that takes either (cxi) is not to choose them.
        let list = match with(false) {
            Err(ENODATA) => with(true),
            list => list,
        };
        let list = list.map_err(|code| OfiError::Open {
            provider: offer.provider.clone(),
            host: host.unwrap_or("any address").to_owned(),
            call: "fi_getinfo",
            reason: self.says(code),
            code,
        })?;
        Ok(list)
    }

    /// The error is the number of one.
    fn query_with(
        &self,
        asked: &Asked<'_>,
        (host, service): (Option<&str>, Option<&str>),
    ) -> Result<Infos, c_int> {
        // SAFETY: null asks for an empty one, of this library's own length.
        let first = unsafe { (self.calls.dupinfo)(ptr::null()) };
        let hints = Infos { first, free: self.calls.freeinfo };
        // SAFETY: libfabric made it, and only `hints` has it.
        let filled = unsafe { hints.first.as_mut() }.is_some_and(|info| fill(info, asked));
        let text = |text: Option<&str>| text.map(CString::new).transpose();
        let host = text(host).map_err(|_| libc::EINVAL)?;
        let service = text(service).map_err(|_| libc::EINVAL)?;
        if !filled {
            return Err(libc::ENOMEM);
        }
        let mut list = Infos { first: ptr::null_mut(), free: self.calls.freeinfo };
        let (node, flags) = host.as_ref().map_or((ptr::null(), 0), |host| (host.as_ptr(), SOURCE));
        let (hint, room) = (hints.first.cast_const(), &raw mut list.first);
        let service = service.as_ref().map_or(ptr::null(), |service| service.as_ptr());
        // SAFETY: names or null, hints made by libfabric, room for one pointer.
        let code = unsafe { (self.calls.getinfo)(API, node, service, flags, hint, room) };
        match code.saturating_neg() {
            0 => Ok(list),
            error => Err(error),
        }
    }

    fn failed(&self, code: i32) -> OfiError {
        OfiError::Query { code, reason: self.says(code) }
    }
}

/// Whether libfabric names the same device twice.
fn is_same(one: &Offer, other: &Offer) -> bool {
    one.provider == other.provider && one.fabric == other.fabric && one.domain == other.domain
}

/// Writes what is asked for; false if libfabric left a part out.
fn fill(info: &mut Info, asked: &Asked<'_>) -> bool {
    info.caps = asked.caps;
    info.mode = CONTEXT | CONTEXT2;
    // SAFETY: null, or made by libfabric with `info`, which is borrowed.
    let Some(ep) = (unsafe { info.ep_attr.as_mut() }) else { return false };
    ep.kind = EP_RDM;
    // SAFETY: as above.
    let Some(domain) = (unsafe { info.domain_attr.as_mut() }) else { return false };
    domain.mr_mode = MR_LOCAL | MR_VIRT_ADDR | MR_ALLOCATED | MR_ENDPOINT;
    if asked.keys_of_provider {
        domain.mr_mode |= MR_PROV_KEY;
    }
    let Some(provider) = asked.provider else { return true };
    domain.threading = THREAD_SAFE;
    domain.resource_mgmt = RM_ENABLED;
    if let Some(name) = asked.domain {
        domain.name = copied(name);
    }
    // SAFETY: as above.
    let Some(fabric) = (unsafe { info.fabric_attr.as_mut() }) else { return false };
    fabric.prov_name = copied(provider);
    !fabric.prov_name.is_null()
}

/// A string that `fi_freeinfo` gives back; null if there is no memory, or a zero in it.
fn copied(text: &str) -> *mut c_char {
    // SAFETY: the string ends in a zero.
    CString::new(text).map_or(ptr::null_mut(), |text| unsafe { libc::strdup(text.as_ptr()) })
}

fn read(list: &Infos, asked: u64) -> Vec<Offer> {
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
pub(super) fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libfabric's strings end in a zero and live as long as what names them, which the
    // caller has borrowed; those of `fi_strerror` are constants.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use crate::sys::here;
    use crate::{Wanted, choose};

    #[test]
    fn what_is_here_is_read() {
        let Some(library) = here::library() else { return };
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
