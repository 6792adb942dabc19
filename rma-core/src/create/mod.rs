//! Collective creation: what a rank wants (`builder`), what all agree on (`plan`), what each makes
//! its part of (`material`), what they tell each other of that (`share`), and the window of it
//! (`assemble`).
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

impl WindowBuilder<'_> {
    /// All ranks agree on whether there is a window, unless one fails or times out.
    fn make(mut self, flavor: Flavor, material: &Material<'_>) -> Result<Window, WindowError> {
        let checked = self.check(material);
        let (size, disp_unit) = *checked.as_ref().unwrap_or(&(0, 1));
        let needed = material.needs(size);
        let (extents, room) = (material.extents(), self.room(needed));
        let wish = Wish { flavor, size, disp_unit, needed, extents, room };
        let plan = self.agree(&wish, checked.map(drop))?;
        // Before the shares are exchanged, after which peers may send messages of it.
        let comm = self.comm.internal(plan.id);
        let mine = self.make_part(&plan, material, &wish);
        let shares = self.exchange(&mine, &plan, &wish);
        let shares = shares.and_then(|shares| self.check_shares(flavor, shares));
        if let (Err(error), Ok(made)) = (&shares, &mine) {
            made.give_up(error);
        }
        let (mut made, shares) = (mine?, shares?);
        if self.hints.path() != PathHint::Cma {
            made.memory.leave_address(&self.comm.inner.engine);
        }
        if matches!(material, Material::OnePiece) {
            made = self.share_one(made, &shares[0], plan.total)?;
        }
        self.assemble(comm, (&plan, &wish), material, made, &shares)
    }
}
