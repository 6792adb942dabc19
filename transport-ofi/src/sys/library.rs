//! The library, loaded.
#![allow(unsafe_code)]

use super::infos::string;
use super::layout::{FabricAttr, FidFabric, Info, version};
use crate::OfiError;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SONAME: &CStr = c"libfabric.so.1";
/// The oldest version whose interface is asked for; newer libraries still have it.
pub(super) const API: u32 = version(1, 17);

type Version = unsafe extern "C" fn() -> u32;
pub(super) type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;
pub(super) type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
pub(super) type FreeInfo = unsafe extern "C" fn(*mut Info);
type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;
pub(super) type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

/// Signals that libraries of providers (libpsm2, libpsm_infinipath) handle from when they are
/// loaded on: they write files of their own and end the process.
const SIGNALS: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGTERM,
    libc::SIGQUIT,
];

/// Held by the thread that loads.
static LOADING: Mutex<()> = Mutex::new(());

/// What the process does at these signals, which is the same again when this is dropped.
struct KeptActions {
    actions: [Option<libc::sigaction>; SIGNALS.len()],
    _turn: MutexGuard<'static, ()>,
}

impl KeptActions {
    fn new() -> Self {
        let turn = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = SIGNALS.map(|signal| {
            let mut action = MaybeUninit::uninit();
            // SAFETY: it changes nothing, and has room for one action.
            let code = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
            // SAFETY: written, unless the call failed.
            (code == 0).then(|| unsafe { action.assume_init() })
        });
        Self { actions, _turn: turn }
    }
}

impl Drop for KeptActions {
    fn drop(&mut self) {
        for (signal, action) in SIGNALS.into_iter().zip(&self.actions) {
            let Some(action) = action else { continue };
            // SAFETY: what the process itself had chosen to do at this signal.
            unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
        }
    }
}

/// libfabric, loaded into this process, where it stays: providers may leave threads behind.
#[derive(Clone, Copy)]
pub struct Libfabric {
    version: (u32, u32),
    pub(super) calls: Calls,
}

/// Its functions; all others are in tables of the objects that they open.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) getinfo: GetInfo,
    pub(super) dupinfo: DupInfo,
    pub(super) freeinfo: FreeInfo,
    pub(super) fabric: OpenFabric,
    pub(super) strerror: StrError,
}

impl Libfabric {
    /// Loads `libfabric.so.1`.
    ///
    /// # Errors
    /// [`OfiError::Missing`], [`OfiError::Symbol`] or [`OfiError::TooOld`].
    pub fn load() -> Result<Libfabric, OfiError> {
        Libfabric::load_from(SONAME)
    }

    fn load_from(name: &CStr) -> Result<Libfabric, OfiError> {
        let handle = {
            let _kept = KeptActions::new();
            // SAFETY: `name` ends in a zero. What a library does when it is loaded is what it does
            // in every program that is linked with it, but for what is kept.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        };
        if handle.is_null() {
            return Err(OfiError::Missing { reason: loader_says() });
        }
        let of_version = symbol(handle, c"fi_version", c"FABRIC_1.0", "fi_version@FABRIC_1.0")?;
        // SAFETY: under this name and version libfabric has a function of this type, for good.
        let of_version = unsafe { std::mem::transmute::<*mut c_void, Version>(of_version) };
        // SAFETY: it takes nothing and returns a constant.
        let found = unsafe { of_version() };
        check_version(found)?;
        let getinfo = symbol(handle, c"fi_getinfo", c"FABRIC_1.3", "fi_getinfo@FABRIC_1.3")?;
        let dupinfo = symbol(handle, c"fi_dupinfo", c"FABRIC_1.3", "fi_dupinfo@FABRIC_1.3")?;
        let freeinfo = symbol(handle, c"fi_freeinfo", c"FABRIC_1.3", "fi_freeinfo@FABRIC_1.3")?;
        let fabric = symbol(handle, c"fi_fabric", c"FABRIC_1.1", "fi_fabric@FABRIC_1.1")?;
        let strerror = symbol(handle, c"fi_strerror", c"FABRIC_1.0", "fi_strerror@FABRIC_1.0")?;
        let calls = Calls {
            // SAFETY: as above.
            getinfo: unsafe { std::mem::transmute::<*mut c_void, GetInfo>(getinfo) },
            // SAFETY: as above.
            dupinfo: unsafe { std::mem::transmute::<*mut c_void, DupInfo>(dupinfo) },
            // SAFETY: as above.
            freeinfo: unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(freeinfo) },
            // SAFETY: as above.
            fabric: unsafe { std::mem::transmute::<*mut c_void, OpenFabric>(fabric) },
            // SAFETY: as above.
            strerror: unsafe { std::mem::transmute::<*mut c_void, StrError>(strerror) },
        };
        Ok(Libfabric { version: split(found), calls })
    }

    /// One that tests pretend.
    #[cfg(test)]
    pub(super) fn pretended(calls: Calls) -> Self {
        Self { version: split(API), calls }
    }

    /// Major and minor version of the library.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// What libfabric calls an error.
    pub(super) fn says(&self, code: c_int) -> String {
        // SAFETY: any number will do.
        string(unsafe { (self.calls.strerror)(code) })
    }
}

fn split(found: u32) -> (u32, u32) {
    (found >> 16, found & 0xffff)
}

fn check_version(found: u32) -> Result<(), OfiError> {
    if found < API { Err(OfiError::TooOld { found: split(found) }) } else { Ok(()) }
}

/// The address of a function, never null.
fn symbol(
    handle: *mut c_void,
    name: &CStr,
    version: &CStr,
    both: &'static str,
) -> Result<*mut c_void, OfiError> {
    // SAFETY: `handle` is of a library that is never unloaded, and both strings end in a zero.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    if address.is_null() { Err(OfiError::Symbol { symbol: both }) } else { Ok(address) }
}

fn loader_says() -> String {
    // SAFETY: it takes nothing; what it returns is this thread's.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_string();
    }
    // SAFETY: not null, so a string that stays until this thread's next call of the loader.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{KeptActions, Libfabric, SIGNALS, check_version};
    use crate::OfiError;
    use crate::sys::here;
    use crate::sys::layout::version;

    #[test]
    fn a_host_without_libfabric_hears_what_to_install() {
        let error = Libfabric::load_from(c"libfabric-of-nobody.so.1").err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, OfiError::Missing { .. }));
        assert!(text.contains("libfabric-of-nobody.so.1") && text.contains("libfabric1"), "{text}");
    }

    /// Of this process: the test runner has chosen what it does at SIGSEGV.
    fn handlers() -> [usize; SIGNALS.len()] {
        KeptActions::new().actions.map(|action| action.unwrap().sa_sigaction)
    }

    #[test]
    fn to_load_changes_nothing_that_the_process_does_at_signals() {
        let before = handlers();
        if here::library().is_none() {
            return;
        }
        assert_eq!(handlers(), before);
    }

    #[test]
    fn what_was_chosen_meanwhile_is_undone() {
        // Of a signal that no other test looks at.
        let before = handlers();
        let kept = KeptActions::new();
        // SAFETY: to ignore a signal runs no code.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_IGN) };
        drop(kept);
        assert_eq!(handlers(), before);
    }

    #[test]
    fn another_library_is_not_libfabric() {
        let error = Libfabric::load_from(c"libc.so.6").err().unwrap();
        assert_eq!(error, OfiError::Symbol { symbol: "fi_version@FABRIC_1.0" });
    }

    #[test]
    fn an_old_library_is_refused_by_its_version() {
        let error = check_version(version(1, 16)).unwrap_err();
        assert_eq!(error.to_string(), "libfabric 1.16 is too old: install 1.17 or newer");
        assert_eq!(check_version(version(1, 17)), Ok(()));
        assert_eq!(check_version(version(2, 0)), Ok(()));
    }
}
