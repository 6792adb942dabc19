//! What ranks of other hosts read.

use std::sync::Arc;

use super::super::driver::Input;
use super::super::input::{Fed, Flow, Source, passed_on, pour};
use super::super::spec::{Readers, Spec};
use super::Hosts;
use super::talk::Order;

/// What is passed on to ranks of a job, and to which, if something is.
pub(super) fn of(spec: &Spec) -> (Option<Source>, Option<Readers>) {
    let input = passed_on(spec);
    let readers = input.is_some().then_some(spec.readers);
    (input, readers)
}

impl Hosts {
    /// Passes on what ranks read, as far as these are.
    pub(super) fn pour_input(&mut self) {
        let (Some(input), Some(flow)) = (self.input.take(), self.flow()) else { return };
        let Some(inputs) = self.inputs.clone() else { return };
        let to = self.links.iter().map(|link| (link.part.range(), link.orders.clone()));
        let (to, reading): (Vec<_>, _) = (to.collect(), Arc::clone(&flow));
        let pass = move |piece: &[u8]| {
            // One of which no rank reads does not say how far it is.
            for (_, orders) in to.iter().filter(|(ranks, _)| reading.is_read_by(ranks.clone())) {
                // Fails for a host that is gone.
                let _ = orders.send(Order::Input { bytes: piece.to_vec() });
            }
        };
        // Without the thread, ranks read nothing.
        let _ = pour(input, flow, inputs, pass);
    }

    /// How far ranks are in what they read, if that is passed on to them.
    pub(in super::super) fn flow(&self) -> Option<Arc<Flow>> {
        self.flow.clone()
    }

    /// A rank has got further in it.
    pub(super) fn note_input(&self, rank: u32, fed: Fed) -> Option<Input> {
        self.flow.iter().for_each(|flow| flow.note(rank, fed));
        None
    }
}
