//! A device that moves bytes: what a window has of it, and its transfers.
#![allow(unsafe_code)]

use crate::element::{BasicType, Op};
use crate::object::WindowId;
use crate::operation::Action;
use crate::protocol::message::Card;
use crate::rank::WorldRank;
use crate::transport::{Atomic, Mapping, Moment, RegisterError, Registration, Remote, RemoteKey};
use crate::window::{Part, Window};
use std::sync::{Mutex, PoisonError};

/// How the ranks of a window use the device: agreed when the window is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    /// That of every part, if the core gives keys.
    pub(crate) key: Option<RemoteKey>,
    /// What is to be known of a target is the same for all, and known.
    pub(crate) symmetric: bool,
    /// Types whose elements only the device combines, by their numbers in messages. All operations
    /// on one element go the same way: what a device does and what a CPU does are not atomic with
    /// each other.
    pub(crate) domain: u32,
    /// CPUs of neighbours combine elements, too.
    pub(crate) beside_cpus: bool,
}

/// How an operation reaches registered memory of its target. S-G1
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceRoute {
    pub(crate) world: WorldRank,
    pub(crate) key: RemoteKey,
    /// Where the device counts the first byte of the part.
    pub(crate) begin: u64,
    /// Where the part begins, as far as alignment goes.
    pub(crate) base: u64,
}

/// This rank's part as the device knows it.
#[derive(Default)]
pub(crate) struct Registered(Mutex<Option<Box<dyn Registration>>>);

impl Registered {
    /// From now on no transfer touches the part.
    pub(crate) fn take(&self) {
        let registration = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(registration);
    }

    fn set(&self, registration: Box<dyn Registration>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
    }

    fn key(&self) -> Option<RemoteKey> {
        let registration = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registration.as_ref().map(|registration| registration.key())
    }
}

impl Device {
    /// The key that the core gives to all parts of a window.
    pub(crate) fn key_of(window: WindowId) -> RemoteKey {
        let mut key = [0; RemoteKey::LEN];
        key[..8].copy_from_slice(&window.0.to_le_bytes());
        RemoteKey(key)
    }

    /// Types of which the device has every operation that there is.
    pub(crate) fn whole_types(remote: &dyn Remote) -> u32 {
        let whole = |basic: &BasicType| {
            let mut ops = Op::ALL.into_iter().filter(|op| basic.has(*op));
            let swaps = !basic.is_swapped() || remote.does(Atomic::Swap(*basic));
            swaps && ops.all(|op| remote.does(Atomic::Combine(op, *basic)))
        };
        let types = (0..u32::BITS as u8).filter_map(BasicType::from_wire).filter(whole);
        types.fold(0, |domain, basic| domain | 1 << basic.to_wire())
    }

    /// Types whose elements only the device combines.
    pub(crate) fn types(self) -> impl Iterator<Item = BasicType> {
        let whole = move |basic: &BasicType| self.domain & 1 << basic.to_wire() != 0;
        (0..u32::BITS as u8).filter_map(BasicType::from_wire).filter(whole)
    }

    /// Whether no CPU combines elements of that type: that would not be atomic with the device.
    pub(crate) fn excludes_cpus(&self, remote: &dyn Remote, basic: BasicType) -> bool {
        let whole = self.domain & 1 << basic.to_wire() != 0;
        // Of types that are not atomic, CPUs combine elements under a lock that no device knows.
        whole && !(remote.limits().coherent && basic.is_atomic())
    }

    /// Whether the device does what an operation does to elements of that type.
    pub(crate) fn combines(&self, remote: &dyn Remote, atomic: Atomic, basic: BasicType) -> bool {
        let whole = self.domain & 1 << basic.to_wire() != 0;
        // Of other types, CPUs combine elements under a lock that no device knows.
        whole || (remote.limits().coherent && basic.is_atomic() && remote.does(atomic))
    }
}

/// What the device does for an operation; `None` for those that are no atomics. S-H13
pub(crate) fn atomic_of(action: Action) -> Option<(Atomic, BasicType)> {
    match action {
        Action::Put | Action::Get => None,
        Action::Combine { op, basic, .. } => basic.map(|basic| (Atomic::Combine(op, basic), basic)),
        Action::Swap { basic } => Some((Atomic::Swap(basic), basic)),
    }
}

impl Window {
    /// The device, if operations on far targets use it.
    pub(crate) fn remote(&self) -> Option<(&dyn Remote, Device)> {
        let remote = self.engine().transport.remote.as_deref()?;
        Some((remote, self.device.ok()?))
    }
}

impl Part {
    /// What origins ask of this part.
    pub(crate) fn card(&self) -> Card {
        let base = self.base().expose_provenance() as u64;
        Card::new(self.size, self.disp_unit, base, self.registered.key())
    }

    /// Tells the device, if it reaches the part, that it is about to be used.
    pub(crate) fn advise(&self, moment: Moment) {
        let Some(remote) = self.comm.inner.engine.transport.remote.as_deref() else { return };
        let registration = self.registered.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registration) = &*registration {
            remote.advise(&**registration, 0..self.size, moment);
        }
    }

    /// Gives the device access to the part; one without bytes needs none.
    pub(crate) fn register(
        &self,
        remote: &dyn Remote,
        key: Option<RemoteKey>,
    ) -> Result<(), RegisterError> {
        if self.size == 0 {
            return Ok(());
        }
        let memory = Mapping { base: self.base(), len: self.size as usize };
        // SAFETY: the part is mapped as long as `self` lives, which drops the registration before
        // the memory, or until that is freed: `shut_door` has taken the registration back by then.
        // A reference into it exists only in between, too. Ranks read and write it at any time.
        let registration = unsafe { remote.register(memory, key) }?;
        self.registered.set(registration);
        Ok(())
    }
}
