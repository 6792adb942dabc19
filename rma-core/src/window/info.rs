//! What a window tells about itself.
use super::Window;
use crate::transport::Transport;

impl<T: Transport> Window<T> {
    /// Which path operations take, who moves the bytes and why, in lines of text.
    pub fn explain(&self) -> String {
        let (id, ranks) = (self.id(), self.ranks());
        let transport = self.process().transport.name();
        let path = if self.targets.is_empty() && !self.peers.is_empty() {
            "active messages, as asked for; the target serves them inside its own calls"
        } else if self.targets.is_empty() {
            "active messages: the target's part is not reachable by load and store; the target \
             serves them inside its own calls"
        } else {
            "load and store by the origin: every rank maps every part; the target does nothing"
        };
        let signals = self.explain_signals();
        let metadata = if !self.targets.is_empty() {
            format!("a table of {ranks} near targets, mapped at first use")
        } else if self.far.symmetric.is_some() {
            "size and unit once for all targets (symmetric)".to_owned()
        } else {
            "size and unit of each target asked on demand, in a bounded cache".to_owned()
        };
        format!(
            "window {id}: {ranks} ranks, {} bytes in units of {} here, transport {transport}\n  \
             put, get, atomics: {path}\n  lock: fair queue lock, words reached as the data is\n  \
             post, complete: {signals}\n  metadata: \
             {metadata}\n",
            self.size(),
            self.disp_unit(),
        )
    }
}
