//! PMIx, by its library, which is loaded when a launcher asks for it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;

use super::places;

const LIBRARY: &CStr = c"libpmix.so.2";
const SUCCESS: c_int = 0;
/// All ranks of a job.
const WILDCARD: u32 = u32::MAX - 1;
/// Ranks of all nodes see what is put.
const GLOBAL: u8 = 3;
/// Kinds of values.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
/// Ranks of the job.
const SIZE: &CStr = c"pmix.job.size";
/// Ranks on the node of this one: `0,1,2`.
const PEERS: &CStr = c"pmix.lpeers";
/// A fence hands out what was put.
const COLLECT: &CStr = c"pmix.collect";
/// Under which each rank puts the peers of its node.
const NODE: &str = "rma-node";
/// Bytes of a string that is read: a list of ranks of a node.
const LONGEST: usize = 1 << 20;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Proc {
    space: [u8; 256],
    rank: u32,
}

/// The union in `pmix_value_t`, in the parts that are used here.
#[repr(C)]
union Data {
    flag: bool,
    number: u32,
    string: *const c_char,
    whole: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: Key,
    flags: u32,
    value: Value,
}

/// `pmix_key_t`.
type Key = [u8; 512];

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32);
const _: () = assert!(size_of::<Info>() == 552);

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Proc, *const u8, *const Info, usize, *mut *mut Value) -> c_int;
type Put = unsafe extern "C" fn(u8, *const u8, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *mut Proc, usize) -> c_int;
type Initialized = unsafe extern "C" fn() -> c_int;

/// A session with the launcher's server.
#[derive(Debug)]
pub(super) struct Library {
    me: Proc,
    pub(super) size: u32,
    get: Get,
    put: Put,
    commit: Commit,
    fence: Fence,
    abort: Abort,
    finalize: Finalize,
}

/// What failed, and how.
type Answer<T> = Result<T, String>;

impl Library {
    /// Begins a session.
    pub(super) fn open() -> Answer<Library> {
        let handle = load()?;
        // SAFETY: that is the type of this function in every version of `libpmix.so.2`.
        let init =
            unsafe { std::mem::transmute::<*mut c_void, Init>(symbol(handle, c"PMIx_Init")?) };
        let initialized = symbol(handle, c"PMIx_Initialized")?;
        // SAFETY: as above.
        let initialized = unsafe { std::mem::transmute::<*mut c_void, Initialized>(initialized) };
        let get = symbol(handle, c"PMIx_Get")?;
        let put = symbol(handle, c"PMIx_Put")?;
        let commit = symbol(handle, c"PMIx_Commit")?;
        let fence = symbol(handle, c"PMIx_Fence")?;
        let abort = symbol(handle, c"PMIx_Abort")?;
        let finalize = symbol(handle, c"PMIx_Finalize")?;
        let mut library = Library {
            me: Proc { space: [0; 256], rank: 0 },
            size: 0,
            // SAFETY: as above.
            get: unsafe { std::mem::transmute::<*mut c_void, Get>(get) },
            // SAFETY: as above.
            put: unsafe { std::mem::transmute::<*mut c_void, Put>(put) },
            // SAFETY: as above.
            commit: unsafe { std::mem::transmute::<*mut c_void, Commit>(commit) },
            // SAFETY: as above.
            fence: unsafe { std::mem::transmute::<*mut c_void, Fence>(fence) },
            // SAFETY: as above.
            abort: unsafe { std::mem::transmute::<*mut c_void, Abort>(abort) },
            // SAFETY: as above.
            finalize: unsafe { std::mem::transmute::<*mut c_void, Finalize>(finalize) },
        };
        // SAFETY: it takes nothing, and may be called at any time.
        if unsafe { initialized() } != 0 {
            return Err("this process has begun a session of PMIx before".to_owned());
        }
        // SAFETY: it writes one `pmix_proc_t`, and reads no attributes.
        check("PMIx_Init", unsafe { init(&raw mut library.me, ptr::null_mut(), 0) })?;
        library.size = library.number(WILDCARD, SIZE)?;
        if library.me.rank >= library.size {
            return Err(format!("rank {} of {} ranks", library.me.rank, library.size));
        }
        Ok(library)
    }

    /// This rank.
    pub(super) fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Has ranks find `value` under `key` after the next fence.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Answer<()> {
        let value = std::ffi::CString::new(value).map_err(|error| error.to_string())?;
        let mut whole = Value { kind: STRING, data: Data { whole: [0; 3] } };
        whole.data.string = value.as_ptr();
        let key = key_of(key.as_bytes());
        // SAFETY: the key ends in a zero, as does the string that the value holds by its kind; the
        // library copies both before it returns.
        check("PMIx_Put", unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw mut whole) })
    }

    /// Waits for all ranks.
    pub(super) fn fence(&mut self) -> Answer<()> {
        // SAFETY: it takes nothing.
        check("PMIx_Commit", unsafe { (self.commit)() })?;
        let mut data = Data { whole: [0; 3] };
        data.flag = true;
        let key = key_of(COLLECT.to_bytes());
        let collect = Info { key, flags: 0, value: Value { kind: BOOL, data } };
        // SAFETY: no list of processes means all of the job; one attribute is there, which the
        // library reads while the call lasts.
        check("PMIx_Fence", unsafe { (self.fence)(ptr::null(), 0, &raw const collect, 1) })
    }

    /// What rank `of` has put under `key`.
    pub(super) fn get(&mut self, key: &str, of: u32) -> Answer<String> {
        let value = self.look_up(of, &key_of(key.as_bytes()), key)?;
        string(&value, key)
    }

    /// Has all ranks know, after the next fence, which are on the node of this one.
    pub(super) fn put_peers(&mut self) -> Answer<()> {
        let name = PEERS.to_string_lossy();
        let value = self.look_up(WILDCARD, &key_of(PEERS.to_bytes()), &name)?;
        let peers = string(&value, &name)?;
        self.put(NODE, &peers)
    }

    /// The ranks of each node, after a fence.
    pub(super) fn nodes(&mut self) -> Answer<Vec<Range<u32>>> {
        let mut nodes = vec![None; self.size as usize];
        for (rank, number) in (0..self.size).zip(0..) {
            if nodes[rank as usize].is_some() {
                continue;
            }
            let peers = self.get(NODE, rank)?;
            for peer in peers.split(',') {
                let place = peer.trim().parse().ok().and_then(|at: usize| nodes.get_mut(at));
                let wrong = || format!("{} of rank {rank} is {peer:?}", PEERS.to_string_lossy());
                *place.ok_or_else(wrong)? = Some(number);
            }
            if nodes[rank as usize].is_none() {
                return Err(format!("rank {rank} is on no node"));
            }
        }
        places::rows(&nodes.into_iter().flatten().collect::<Vec<u32>>())
    }

    /// Has the launcher end all ranks.
    pub(super) fn abort(&mut self) {
        let why = c"a rank is lost";
        // SAFETY: the string ends in a zero; no list of processes means all of the job. If it
        // fails, the launcher is gone, and with it what would end them.
        let _ = unsafe { (self.abort)(1, why.as_ptr(), ptr::null_mut(), 0) };
    }

    /// Says that this rank ends in order.
    pub(super) fn finish(&mut self) {
        // SAFETY: no attributes. If it fails, the launcher is gone, and needs to know nothing.
        let _ = unsafe { (self.finalize)(ptr::null(), 0) };
    }

    fn number(&self, rank: u32, key: &CStr) -> Answer<u32> {
        let name = key.to_string_lossy();
        let value = self.look_up(rank, &key_of(key.to_bytes()), &name)?;
        match value.kind {
            // SAFETY: of this kind, that is what the union holds.
            UINT32 => Ok(unsafe { value.data.number }),
            kind => Err(format!("{name} is of kind {kind} instead of {UINT32}")),
        }
    }

    /// The value, with what it points to, stays as long as the process lives: there are a few, and
    /// the library has no function of one name in all versions that frees it.
    fn look_up(&self, rank: u32, key: &Key, name: &str) -> Answer<Value> {
        let of = Proc { space: self.me.space, rank };
        let mut found: *mut Value = ptr::null_mut();
        // SAFETY: the process and the key, which ends in a zero, are read while the call lasts; no
        // attributes; a pointer is written.
        let code =
            unsafe { (self.get)(&raw const of, key.as_ptr(), ptr::null(), 0, &raw mut found) };
        check(&format!("PMIx_Get of {name}"), code)?;
        if found.is_null() {
            return Err(format!("PMIx_Get of {name} gave nothing"));
        }
        // SAFETY: on success it is a `pmix_value_t` that the library made for the caller.
        Ok(unsafe { found.read() })
    }
}

fn load() -> Answer<*mut c_void> {
    // SAFETY: the name ends in a zero. What a library does when it is loaded is what it does in
    // every program that is linked with it; it is never unloaded. Its plug-ins look for its
    // symbols.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: it takes nothing; what it returns is this thread's.
    let text = unsafe { libc::dlerror() };
    let why = match text.is_null() {
        true => LIBRARY.to_string_lossy().into_owned(),
        // SAFETY: not null, so a string that stays until this thread's next call of the loader.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    Err(format!("{why}; install PMIx (Debian: apt-get install libpmix2)"))
}

/// The address of a function, never null.
fn symbol(handle: *mut c_void, name: &CStr) -> Answer<*mut c_void> {
    // SAFETY: `handle` is of a library that is never unloaded, and the name ends in a zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    let missing = || format!("{} has no {}", LIBRARY.to_string_lossy(), name.to_string_lossy());
    if address.is_null() { Err(missing()) } else { Ok(address) }
}

fn check(call: &str, code: c_int) -> Answer<()> {
    if code == SUCCESS { Ok(()) } else { Err(format!("{call} failed with {code}")) }
}

/// A key with zeros behind it, also where a whole `pmix_key_t` is read; keys are short.
fn key_of(name: &[u8]) -> Key {
    let mut key = [0; 512];
    let length = name.len().min(key.len() - 1);
    key[..length].copy_from_slice(&name[..length]);
    key
}

fn string(value: &Value, name: &str) -> Answer<String> {
    if value.kind != STRING {
        return Err(format!("{name} is of kind {} instead of {STRING}", value.kind));
    }
    // SAFETY: of this kind, that is what the union holds.
    let text = unsafe { value.data.string };
    if text.is_null() {
        return Err(format!("{name} is no string"));
    }
    // SAFETY: not null, so a string of the library, which this process never frees (`look_up`),
    // ending in a zero.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) if text.len() <= LONGEST => Ok(text.to_owned()),
        _ => Err(format!("{name} is no short text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_always_ends() {
        assert_eq!(&key_of(b"ab")[..3], b"ab\0");
        assert_eq!(key_of(&[b'x'; 600])[511], 0);
    }

    #[test]
    fn a_value_of_another_kind_is_an_error() {
        let value = Value { kind: UINT32, data: Data { whole: [7, 0, 0] } };
        assert!(string(&value, "pmix.lpeers").unwrap_err().contains("kind 14"));
        let value = Value { kind: STRING, data: Data { whole: [0; 3] } };
        assert!(string(&value, "pmix.lpeers").unwrap_err().contains("no string"));
        let mut value = Value { kind: STRING, data: Data { whole: [0; 3] } };
        value.data.string = c"0,1".as_ptr();
        assert_eq!(string(&value, "pmix.lpeers").unwrap(), "0,1");
    }
}
