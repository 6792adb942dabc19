//! What a window tells about itself.
use super::Window;
use super::hints::{Hint, HintError};
use crate::transport::Transport;

impl<T: Transport> Window<T> {
    /// The hints in force on this rank, defaults included, as keys and values (MPI 4.1, section
    /// 12.2.7). [`WindowBuilder::hint`](crate::WindowBuilder::hint) says what they mean.
    pub fn info(&self) -> Vec<(&'static str, String)> {
        self.settings.hints.list()
    }

    /// The value of one hint, if it is known.
    pub fn get_info(&self, key: &str) -> Option<String> {
        let found = self.info().into_iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| value)
    }

    /// Changes a hint; returns whether its value is in force now. **Collective**, though no rank
    /// waits for another.
    ///
    /// Of those that MPI defines, the ones about accumulates may change while the window exists.
    /// The others stay as they are, without an error, as do keys that nobody knows (MPI 4.1,
    /// section 12.2.7).
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn set_info(&self, key: &str, value: &str) -> Result<bool, HintError> {
        self.settings.hints.set(key, value)
    }

    /// Whether it was made for no locks. S-B10
    #[inline]
    pub(crate) fn excludes_locks(&self) -> bool {
        self.settings.hints.is_set(Hint::NoLocks)
    }

    /// Which path operations take, who moves the bytes and why, in lines of text.
    pub fn explain(&self) -> String {
        let served = self.process().explain_agent();
        let (id, ranks) = (self.id(), self.ranks());
        let name = Some(self.name()).filter(|name| !name.is_empty());
        let name = name.map_or(String::new(), |name| format!(" {name:?}"));
        let hints = self.settings.hints.explain();
        let transport = self.process().transport.name();
        let path = if self.targets.is_empty() && !self.peers.is_empty() {
            format!("active messages, as asked for; they are {served}")
        } else if self.targets.is_empty() {
            format!(
                "active messages, for the target's part is not reachable by load and store; they \
                 are {served}"
            )
        } else {
            "load and store by the origin: every rank maps every part; the target does nothing"
                .to_owned()
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
            "window {id}{name}: {ranks} ranks, {} bytes in units of {} here, transport \
             {transport}\n  put, get, atomics: {path}\n  lock: fair queue lock, words reached as \
             the data is\n  post, complete: {signals}\n  metadata: {metadata}\n  hints:{hints}\n",
            self.size(),
            self.disp_unit(),
        )
    }
}
