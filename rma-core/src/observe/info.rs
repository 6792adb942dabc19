//! What a window tells about itself.
use crate::config::{Hint, HintError};
use crate::element::BasicType;
use crate::memory::accumulate::Integers;
use crate::rank::Rank;
use crate::route::Path;
use crate::transport::{HintChange, LayoutCosts, Remote, RemoteLimits};
use crate::window::{Regions, Window};
use core::fmt::Write;

/// What stands beside kinds of operations.
#[derive(Default)]
struct ByDevice {
    moves: String,
    layouts: String,
    atomics: String,
}

impl Window {
    /// The hints in force on this rank, defaults included, as keys and values (MPI 4.1, section
    /// 12.2.7). [`WindowBuilder::hint`](crate::WindowBuilder::hint) says what they mean.
    pub fn info(&self) -> Vec<(&'static str, String)> {
        let of_memory = self.part.memory.info();
        // What the memory is goes before what was asked for.
        let mut all = self.settings.hints.list();
        all.retain(|(key, _)| of_memory.iter().all(|(other, _)| other != key));
        all.extend(of_memory);
        all
    }

    /// The value of one hint, if it is known.
    pub fn get_info(&self, key: &str) -> Option<String> {
        let found = self.info().into_iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| value)
    }

    /// Changes a hint; returns whether its value is in force now. **Collective**, though no rank
    /// waits for another.
    ///
    /// Of those that MPI defines, the ones about accumulates may change while the window exists,
    /// and so may budgets. The others stay as they are, without an error, as do unknown keys (MPI
    /// 4.1, section 12.2.7). Of a persistent memory, `pmem_keep_all_checkpoints` may change, and
    /// `pmem_dont_use_transactions`, which does at the next commit of all ranks.
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn set_info(&self, key: &str, value: &str) -> Result<bool, HintError> {
        match self.part.memory.set_info(key, value) {
            HintChange::Unknown => self.settings.hints.set(key, value, &self.engine().config),
            HintChange::InForce => Ok(true),
            HintChange::NotInForce => Ok(false),
            HintChange::Malformed { key, allowed } => {
                Err(HintError { key, value: value.to_owned(), allowed: allowed.to_owned() })
            }
        }
    }

    /// Which path operations take, what moves the bytes and why, in lines of text.
    pub fn explain(&self) -> String {
        let (id, ranks, flavor) = (self.id(), self.ranks(), self.flavor());
        let name = Some(self.name()).filter(|name| !name.is_empty());
        let name = name.map_or(String::new(), |name| format!(" {name:?}"));
        let (size, unit) = (self.size(), self.disp_unit());
        let transport = self.engine().transport.job.name;
        let mut text = format!(
            "window {id}{name}: {flavor:?}, {ranks} ranks, {size} bytes in units of {unit} here, \
             transport {transport}\n"
        );
        for path in [Path::LoadStore, Path::ByRegion, Path::Cma, Path::Device, Path::Messages] {
            let targets = (0..ranks).filter(|rank| self.path(Rank(*rank)) == Some(path)).count();
            if targets > 0 {
                self.explain_path(&mut text, path, targets);
            }
        }
        let (signals, hints) = (self.explain_signals(), self.settings.hints.explain());
        let near = self.targets.count();
        let words = match (self.together, near) {
            (true, _) => "load and store",
            (false, 0) => "messages",
            (false, _) => "load and store on this node, messages elsewhere",
        };
        let table = format!("a table of {near} targets, mapped at first use");
        let by_region = self.part.regions.is_some() && self.device.is_ok();
        let far = match self.far.symmetric {
            _ if by_region => "regions asked for on demand, in a bounded cache",
            Some(_) => "size and unit once for all targets (symmetric)",
            None => "size and unit of each target asked on demand, in a bounded cache",
        };
        let metadata = match (self.together, near) {
            (true, _) => table,
            (false, 0) => far.to_owned(),
            (false, _) => format!("{table}; elsewhere {far}"),
        };
        if let (Some(_), Err(why)) = (&self.engine().transport.remote, self.device) {
            _ = writeln!(text, "  device: not used: {why}");
        }
        self.explain_registered(&mut text);
        if let Some(crowded) =
            self.part.regions.as_ref().map(Regions::crowded).filter(|all| *all > 0)
        {
            _ = writeln!(
                text,
                "  regions: {crowded} attached here have more extents than rma_dynamic_regions \
                 leaves room for, and are reached as raw ones"
            );
        }
        let of_memory = self.part.memory.info();
        if !of_memory.is_empty() {
            _ = write!(text, "  memory:");
            for (key, value) in &of_memory {
                _ = write!(text, " {key}={value}");
            }
            text.push('\n');
        }
        text + &format!(
            "  lock: fair queue lock, its words by {words}\n  post, complete: {signals}\n  \
             metadata: {metadata}\n  hints:{hints}\n"
        )
    }

    /// What of this rank's attached memory a device reaches.
    fn explain_registered(&self, text: &mut String) {
        let Some(regions) = self.part.regions.as_ref().filter(|_| self.device.is_ok()) else {
            return;
        };
        let (taken, refused, why) = regions.registered();
        _ = writeln!(text, "  device: {taken} regions attached here are registered");
        if let Some(why) = why {
            _ = writeln!(text, "  device: {refused} are not, and reached by messages: {why}");
        }
    }

    /// What a device does, and what goes by messages all the same.
    fn explain_device(&self) -> ByDevice {
        let Some((remote, device)) = self.remote() else { return ByDevice::default() };
        let RemoteLimits { inject, bounce, transfer_max, run_min, coherent, .. } = remote.limits();
        let larger = if transfer_max <= bounce as u64 {
            format!("larger ones in transfers of {transfer_max}, copied as well")
        } else {
            "larger ones directly".to_owned()
        };
        let moves = format!("up to {inject} bytes injected, up to {bounce} copied first, {larger}");
        let layouts = self.explain_layouts(remote, run_min);
        let types: Vec<&str> = device.types().map(BasicType::name).collect();
        let all = (0..u32::BITS as u8).filter_map(BasicType::from_wire).count() == types.len();
        let types = if all { "every type".to_owned() } else { types.join(", ") };
        let integers = "32 and 64-bit integers what the device has";
        let atomics = match (device.beside_cpus, coherent, types.as_str()) {
            (true, true, _) => {
                format!(
                    "on {integers}, as it is coherent with the target's CPUs; others by messages"
                )
            }
            (true, false, _) => {
                "by messages: CPUs of the target's node combine, too, and the device is not \
                 coherent with them"
                    .to_owned()
            }
            (false, _, "every type") => "on every type".to_owned(),
            (false, false, "") => "by messages, as the device has no type whole".to_owned(),
            (false, true, "") => format!("on {integers}; others by messages"),
            (false, false, types) => format!("on {types}; others by messages"),
            (false, true, types) => format!("on {types}, on other {integers}; others by messages"),
        };
        ByDevice { moves, layouts, atomics }
    }

    /// Which layouts a device moves run by run, and what decides that.
    fn explain_layouts(&self, remote: &dyn Remote, run_min: u64) -> String {
        let key = "device_run_bytes";
        // Costs may differ from peer to peer; those to the first far one stand for all.
        let far = self.group().members().find(|world| remote.reaches(*world));
        let least = self.settings.hints.budget(Hint::DeviceRunBytes);
        match (least, far.and_then(|world| remote.costs_to(world))) {
            (Some((least, said)), _) => {
                let by = match said {
                    true => format!("hint rma_{key}"),
                    false => {
                        format!("{key}, {}", self.engine().config.source(key).unwrap_or_default())
                    }
                };
                format!("a transfer for each run, of {least} bytes on average and more ({by})")
            }
            (None, Some(costs)) => {
                let LayoutCosts { transfer_ns, next_transfer_ns, message_ns, next_message_ns } =
                    costs;
                format!(
                    "a transfer for each run, or packed: what takes less ({transfer_ns} ns and \
                     {next_transfer_ns} for each further transfer, {message_ns} and \
                     {next_message_ns} of messages, by the device; {key} = auto)"
                )
            }
            (None, None) => format!(
                "a transfer for each run, of {run_min} bytes on average and more (the device's \
                 limit; {key} = auto)"
            ),
        }
    }

    /// The choices for targets on one path.
    fn explain_path(&self, text: &mut String, path: Path, targets: usize) {
        let forced = self.get_info("rma_path").filter(|asked| asked != "auto");
        let why = match (path, forced) {
            (_, Some(asked)) => format!("asked for by rma_path={asked}"),
            (Path::LoadStore, None) => "mapped here, so the target does nothing".to_owned(),
            (Path::ByRegion, None) => "the window is dynamic".to_owned(),
            (Path::Cma, None) => "their memory stays where its user put it".to_owned(),
            (Path::Device, None) => "it needs nothing of the target".to_owned(),
            (Path::Messages, None) => "neither load and store nor copies reach them".to_owned(),
        };
        let eager = self.settings.hints.get(Hint::EagerBytes);
        let served = self.engine().explain_agent();
        let messages = format!("messages, {served}");
        let device = self.explain_device();
        let large = format!("more than {eager} bytes as the target grants them");
        let integers = match self.part.integers {
            Integers::ByAtomics => "instructions of the origin's CPU",
            Integers::AsTheyCome => {
                "instructions of the origin's CPU; as on other types where arrays of them come"
            }
            Integers::ByLock => "as on other types, for mpi_accumulate_granularity",
        };
        let alone = if self.part.biased {
            "plain vectors, until another thread has come"
        } else if !self.engine().transport.shared.fences_near() {
            "as of several: the system refuses what takes that back (membarrier)"
        } else {
            "as of several: a device does not look who is alone"
        };
        let rows: &[(&str, &str)] = match path {
            Path::LoadStore => &[
                ("put, get", "copied by the origin"),
                ("put, get with layouts", "copied by the origin, row by row"),
                ("atomics of the only thread at the target", alone),
                ("atomics on 32 and 64-bit integers", integers),
                ("atomics on other types", "by the origin, under the lock of a stripe"),
            ],
            Path::ByRegion => &[
                ("regions that were given away", "all by the origin, as by load and store"),
                ("raw regions", "put, get copied by the system, if it lets; others by messages"),
                ("messages", served),
            ],
            Path::Cma => &[
                ("put, get", "copied by the system, in a call of the origin"),
                ("put, get with layouts", &messages),
                ("atomics", &messages),
            ],
            Path::Device => &[
                ("put, get", &device.moves),
                ("put, get with layouts", &device.layouts),
                ("atomics", &device.atomics),
                ("others, and all to regions that are not registered", &messages),
            ],
            Path::Messages => &[("all operations", &messages), ("large puts", &large)],
        };
        // Writing to a string does not fail.
        _ = writeln!(text, "  {targets} targets by {path}: {why}");
        for (what, how) in rows {
            _ = writeln!(text, "    {what}: {how}");
        }
    }
}
