//! Collective creation: what a rank wants (`builder`), what all agree on (`plan`), what each makes
//! its part of (`material`), what they tell each other of that (`share`), and the window of it
//! (`assemble`).
mod allocator;
mod assemble;
mod attach;
mod builder;
mod device;
mod free;
mod material;
mod plan;
mod sealed;
mod share;

pub use attach::Attached;
pub use builder::WindowBuilder;
pub use sealed::Sealed;

use crate::config::PathHint;
use crate::error::WindowError;
use crate::object::Flavor;
use crate::window::Window;
use material::Material;
use plan::Wish;
use share::MetOnce;

impl WindowBuilder<'_> {
    /// All ranks agree on whether there is a window, unless one fails or times out.
    fn make(mut self, flavor: Flavor, material: &Material<'_>) -> Result<Window, WindowError> {
        let checked = self.check(material);
        let (size, disp_unit) = *checked.as_ref().unwrap_or(&(0, 1));
        let needed = material.needs(size);
        let (extents, room) = (material.extents(), self.room(needed));
        let durable = material.is_durable();
        let wish = Wish { flavor, size, disp_unit, needed, extents, durable, room };
        let checked = checked.map(drop);
        // The window's own communicator is there before the shares are exchanged, after which peers
        // may send messages of it.
        let (comm, met) = match self.known_id() {
            Some(id) => {
                let comm = self.comm.internal(id);
                (comm, self.meet_once((id, material), &wish, checked)?)
            }
            None => {
                let plan = self.agree(&wish, checked)?;
                (self.comm.internal(plan.id), MetOnce { plan, made: None, shares: None })
            }
        };
        let MetOnce { plan, made, shares } = met;
        let (mine, shares) = match (made, shares) {
            (Some(mine), Some(shares)) => (mine, Ok(shares)),
            (made, _) => {
                let before = self.before(material, size)?;
                let mine = match made {
                    Some(made) => self.keep_early(made, &plan, &wish),
                    None => self.make_part(&plan, material, &wish, before),
                };
                let requested = material
                    .is_requested()
                    .then(|| self.requested(self.len(&plan, material, &wish), before));
                let shares = self.exchange(&mine, &plan, &wish, requested);
                (mine, shares)
            }
        };
        let shares = shares.and_then(|shares| self.check_shares(flavor, shares));
        if let (Err(error), Ok(made)) = (&shares, &mine) {
            made.give_up(error);
        }
        // Its own error knows of one of the two only.
        let shares = match shares {
            Err(both @ WindowError::SameBytes { .. }) => return Err(both),
            shares => shares,
        };
        let (mut made, shares) = (mine?, shares?);
        if self.hints.path() != PathHint::Cma {
            made.memory.leave_address(&self.comm.inner.engine);
        }
        if material.is_one_piece() {
            made = self.share_one(made, &shares[0], plan.total, material)?;
        }
        self.assemble(comm, (&plan, &wish), material, made, &shares)
    }
}
