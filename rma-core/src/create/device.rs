//! Whether a device reaches the parts, and what it does there.
use crate::collective::Node;
use crate::config::{Hint, PathHint};
use crate::create::WindowBuilder;
use crate::create::plan::Plan;
use crate::error::WindowError;
use crate::object::Flavor;
use crate::transport::{Addressing, Keys, RegisterError};
use crate::window::{Device, Part, Window, kind};

/// How far a device reaches, from one rank: the least counts.
mod reach {
    pub(super) const UNREACHED: u64 = 0;
    pub(super) const UNREGISTERED: u64 = 1;
    /// Some ranks load and store in parts of others.
    pub(super) const BESIDE_CPUS: u64 = 2;
    pub(super) const ALL: u64 = 3;
}

impl WindowBuilder<'_> {
    /// Registers this rank's part, if operations can use a device; of a dynamic window, what is
    /// attached will be. All ranks agree on that.
    pub(super) fn agree_device(
        &self,
        part: &Part,
        plan: &Plan,
        flavor: Flavor,
    ) -> Result<Result<Device, &'static str>, WindowError> {
        let engine = &self.comm.inner.engine;
        let Some(remote) = engine.transport.remote.as_deref() else {
            return Ok(Err("the transport has none"));
        };
        let path = self.hints.path();
        // All ranks come to the same answer.
        match path {
            PathHint::Auto if !matches!(self.comm.inner.node, Node::Whole) => {}
            PathHint::Device => {}
            PathHint::Auto => return Ok(Err("load and store reach every rank")),
            _ => return Ok(Err("rma_path asks for another path")),
        }
        let limits = remote.limits();
        let key = (limits.keys == Keys::Given).then(|| Device::key_of(part.id));
        let near = |peer| path == PathHint::Auto && engine.transport.shared.is_near(peer);
        let mut members = self.comm.group().members();
        let mine = if !members.all(|peer| near(peer) || remote.reaches(peer)) {
            reach::UNREACHED
        } else if let Err(why) = part.register(remote, key) {
            // Kinds of memory are the program's choice; else it is slower than it should be.
            if why != RegisterError::Unsupported {
                let rank = engine.transport.job.rank.0;
                engine.transport.members.note(&format!(
                    "rank {rank}: a window's memory cannot be reached by the device, so the window \
                     goes by messages: {why}"
                ));
            }
            reach::UNREGISTERED
        } else if self.is_apart() || path == PathHint::Device {
            reach::ALL
        } else {
            reach::BESIDE_CPUS
        };
        let all = self.comm.agree(kind::DEVICE, mine, u64::min)?;
        if all < reach::BESIDE_CPUS {
            part.registered.take();
        }
        let no = |why| {
            if path != PathHint::Device {
                return Ok(Err(why));
            }
            // All ranks come here, or none.
            if !self.is_wish(Hint::Path)? {
                return Err(WindowError::NoPath { path: "device", why });
            }
            let left = format!("rma_path=device, which the job wishes, does not reach {why}");
            self.tell_left(flavor, &left);
            Ok(Err(why))
        };
        match all {
            reach::UNREACHED => no("ranks that the device does not reach"),
            reach::UNREGISTERED => no("memory that the device could not register"),
            reach => {
                let beside_cpus = reach == reach::BESIDE_CPUS;
                let domain = if beside_cpus { 0 } else { Device::whole_types(remote) };
                let symmetric = key.is_some()
                    && limits.addressing == Addressing::Offset
                    && flavor == Flavor::Allocate
                    && plan.symmetric().is_some();
                Ok(Ok(Device { key, symmetric, domain, beside_cpus }))
            }
        }
    }
}

impl Window {
    /// Gives the device access again that it had before the window was sealed; false if it did not
    /// take it.
    pub(super) fn register_again(&self) -> bool {
        let Some((remote, device)) = self.remote() else { return true };
        self.far.forget_cards();
        self.part.register(remote, device.key).is_ok()
    }

    /// A rank could not do that: messages from now on, at all ranks.
    pub(super) fn leave_device(&mut self) {
        self.part.registered.take();
        self.device = self.device.and(Err("a rank could not register its part again"));
    }
}
