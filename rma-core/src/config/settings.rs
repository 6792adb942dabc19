//! The table of settings: one line for each field of [`Config`] that is a value.
//!
//! Whatever sets one by its name (options and files of the launcher, programs) and whatever prints
//! it asks this table.
use crate::config::form::{Form, WORD};
use crate::config::name::Name;
use crate::config::{Config, ConfigError, ProgressAgent, Source, hints};
use core::fmt::Write;
use core::time::Duration;

/// A line of the table.
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) form: Form,
    /// What it is, in a line.
    pub(super) doc: &'static str,
    pub(super) get: fn(&Config) -> u64,
    pub(super) put: fn(&mut Config, u64),
    /// Every rank of the job must have the same value.
    pub(super) same: bool,
}

/// Bytes that an object can have, at most.
const BYTES_MAX: u64 = 1 << 46;
/// The least that [`Config::collective_bytes`] can say: communicators are made of payloads, too.
pub(crate) const COLLECTIVE_LEAST: u64 = 256;
/// Messages that may be unanswered at once.
const SLOTS_MAX: u64 = 1 << 20;

pub(super) const COUNT: usize = 18;
/// Letters of a line that an error shows.
const LINE_SHOWN: usize = 80;

/// A line whose field is a number of that type.
macro_rules! number {
    ($field:ident: $type:ty, $form:expr, $doc:expr) => {
        Setting {
            key: stringify!($field),
            form: $form,
            doc: $doc,
            get: |config| config.$field as u64,
            put: |config, value| config.$field = <$type>::try_from(value).unwrap_or(<$type>::MAX),
            same: false,
        }
    };
}

const fn counted(least: u64, most: u64, unit: &'static str) -> Form {
    Form::Number { least, most, unit }
}

const fn bytes(least: u64) -> Form {
    Form::Bytes { least, most: BYTES_MAX }
}

/// A new setting is a line here.
pub(super) const SETTINGS: [Setting; COUNT] = [
    Setting {
        key: "wait_timeout",
        form: Form::Or("none", &Form::Time),
        doc: "how long any wait inside a rank may take before it fails",
        get: |config| config.wait_timeout.map_or(WORD, nanoseconds),
        put: |config, value| {
            config.wait_timeout = (value != WORD).then(|| Duration::from_nanos(value));
        },
        same: false,
    },
    Setting {
        key: "cpus",
        form: Form::Or("auto", &counted(1, u32::MAX as u64 - 1, "CPUs")),
        doc: "CPUs that the ranks share; if they are fewer, a wait gives its CPU away at once",
        get: |config| config.cpus.map_or(WORD, u64::from),
        put: |config, value| config.cpus = u32::try_from(value).ok(),
        same: false,
    },
    number!(nodes: u32, counted(1, u32::MAX as u64, "nodes"),
        "nodes that this machine is taken for; messages only between them"),
    Setting {
        key: "transport",
        form: Form::Name,
        doc: "what reaches ranks of other nodes: shm (messages in shared memory), ofi (libfabric)",
        get: |config| config.transport.to_word(),
        put: |config, value| config.transport = Name::of_word(value).unwrap_or(Name::SHM),
        same: true,
    },
    Setting {
        key: "provider",
        form: Form::Or("auto", &Form::Name),
        doc: "the provider of libfabric, by the name of its core; auto: the best there is",
        get: |config| config.provider.map_or(WORD, Name::to_word),
        put: |config, value| config.provider = Name::of_word(value),
        same: true,
    },
    Setting {
        key: "naps",
        form: Form::Flag,
        doc: "whether a rank that sleeps looks around now and then although no rank woke it",
        get: |config| config.naps.into(),
        put: |config, value| config.naps = value != 0,
        same: false,
    },
    number!(outstanding_messages: usize, counted(1, SLOTS_MAX, "messages"),
        "messages of far operations that may be unanswered at once, by all targets"),
    number!(credit_messages: usize, counted(1, 256, "messages"),
        "messages of far operations that may be unanswered by one target"),
    number!(eager_bytes: usize, bytes(0),
        "largest put to a far target sent at once, and what is kept while a lock is awaited"),
    number!(rendezvous_bytes: u64, bytes(1),
        "bytes of larger puts on their way to one rank at once, from all origins"),
    Setting {
        same: true,
        ..number!(collective_bytes: u64, bytes(COLLECTIVE_LEAST),
            "largest payload of a collective to one rank; the same on all ranks")
    },
    number!(unexpected_bytes: u64, bytes(0),
        "payloads of collectives that a rank keeps until it takes part, together"),
    Setting {
        same: true,
        ..number!(collective_lane_bytes: u64, bytes(0),
            "shared memory for payloads of collectives of a rank to its node, each communicator")
    },
    Setting {
        same: true,
        ..number!(collective_lane_from: u64, bytes(1),
            "payloads of collectives of so many bytes and more take that memory inside of a node")
    },
    number!(target_cache: usize, counted(1, u32::MAX as u64, "targets"),
        "targets, or regions a device reaches, that each window remembers (hint rma_target_cache)"),
    number!(dynamic_regions: usize, counted(1, REGIONS_MAX, "regions"),
        "regions attached to a dynamic window of a rank at once (hint rma_dynamic_regions)"),
    Setting {
        key: "device_run_bytes",
        form: Form::Or("auto", &bytes(1)),
        doc: "average run of layouts that a device moves, not messages (hint rma_device_run_bytes)",
        get: |config| config.device_run_bytes.unwrap_or(WORD),
        put: |config, value| config.device_run_bytes = (value != WORD).then_some(value),
        same: false,
    },
    Setting {
        key: "progress_agent",
        form: Form::Choice(&["auto", "never"]),
        doc: "whether a thread serves messages of peers while a rank computes",
        get: |config| (config.progress_agent == ProgressAgent::Never).into(),
        put: |config, value| {
            let agents = [ProgressAgent::Auto, ProgressAgent::Never];
            config.progress_agent = agents[usize::from(value != 0)];
        },
        same: false,
    },
];

/// Regions that a directory has room for at most, see `memory/directory.rs`.
pub(super) const REGIONS_MAX: u64 = crate::memory::directory::SLOTS_MAX as u64;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(WORD - 1)
}

impl Config {
    /// Gives a setting, or a hint of the whole job, the value that a text says; what the
    /// [list](Self::settings_help) shows. The names are those of the fields.
    ///
    /// ```
    /// let mut config = rma_core::Config::default();
    /// config.set("eager_bytes", "64 KiB")?;
    /// assert_eq!(config.eager_bytes, 65536);
    /// let error = config.set("eager_byte", "1").unwrap_err();
    /// assert!(error.to_string().contains("did you mean \"eager_bytes\"?"));
    /// # Ok::<(), rma_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A key that there is none of, and a value that it does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        self.set_by(key, value, Source::Program)
    }

    /// As [`set`](Self::set), and notes the source of the value: [`source`](Self::source) tells it.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn set_by(&mut self, key: &str, value: &str, source: Source) -> Result<(), ConfigError> {
        let Some(place) = place(key) else {
            return match self.hints.wish(key, value, source)? {
                true => Ok(()),
                false => Err(unknown(key)),
            };
        };
        let Setting { key, form, put, .. } = &SETTINGS[place];
        let parsed = form.parse(value.trim()).ok_or_else(|| {
            let (value, allowed) = (value.to_owned(), form.to_string());
            ConfigError::Value { key, value, allowed }
        })?;
        put(self, parsed);
        self.sources[place] = source;
        Ok(())
    }

    /// Takes the lines of a file, `key = value` each; empty ones and those that begin with `#` say
    /// nothing. The last one of a key counts. Nothing is set if a line cannot be used.
    ///
    /// # Errors
    ///
    /// The first line that is no setting, with its number.
    pub fn set_lines(&mut self, text: &str, path: &str) -> Result<(), ConfigError> {
        let mut config = self.clone();
        for (line, key, value) in lines(text)? {
            let set = config.set_by(key, value, Source::File(path.into()));
            set.map_err(|error| ConfigError::At { line, error: Box::new(error) })?;
        }
        *self = config;
        Ok(())
    }

    /// The value of a setting or a hint of the whole job, as [`set`](Self::set) takes it.
    pub fn get(&self, key: &str) -> Option<String> {
        match place(key) {
            Some(place) => Some(self.written(place)),
            None => self.hints.written(key),
        }
    }

    /// The source of the value of a setting, or of a hint of the whole job.
    pub fn source(&self, key: &str) -> Option<Source> {
        let Some(place) = place(key) else { return self.hints.source(key) };
        let Setting { get, .. } = &SETTINGS[place];
        Some(match &self.sources[place] {
            // Fields are public: a program that changes one leaves no other trace.
            Source::Default if get(self) != get(&Self::default()) => Source::Program,
            source => source.clone(),
        })
    }

    /// Settings, and hints of the whole job, that were given a value, and the source of each.
    pub fn said(&self) -> Vec<(&'static str, String, Source)> {
        let all = keys().chain(hints::keys());
        let said = all.filter_map(|key| Some((key, self.get(key)?, self.source(key)?)));
        said.filter(|(.., source)| *source != Source::Default).collect()
    }

    /// All settings in force and the source of each value, in lines of text.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        for (key, value, source) in self.said() {
            // Writing to a string does not fail.
            _ = writeln!(text, "setting: {key} = {value} ({source})");
        }
        let default = |(place, key): (usize, &str)| {
            let said = self.source(key) != Some(Source::Default);
            (!said).then(|| format!("{key} = {}", self.written(place)))
        };
        let defaults: Vec<String> = keys().enumerate().filter_map(default).collect();
        text + &format!("settings at their defaults: {}\n", defaults.join(", "))
    }

    /// A list of all settings, and of the hints that can be given to the whole job: key, default,
    /// what it takes and what it is.
    pub fn settings_help() -> String {
        let mut text = String::new();
        let config = Self::default();
        for (place, Setting { key, form, doc, .. }) in SETTINGS.iter().enumerate() {
            let default = config.written(place);
            // Writing to a string does not fail.
            _ = writeln!(text, "{key} = {default}\n    {doc}\n    takes {form}");
        }
        text + &hints::help()
    }

    /// Those values that every rank must have, to be compared by [`differs`](Self::differs).
    #[doc(hidden)]
    pub fn common(&self) -> Vec<u64> {
        SETTINGS.iter().filter(|setting| setting.same).map(|setting| (setting.get)(self)).collect()
    }

    /// The first setting of which another rank's [`common`](Self::common) values say something
    /// else, and what.
    #[doc(hidden)]
    pub fn differs(&self, common: &[u64]) -> Option<(&'static str, String)> {
        let mut all = SETTINGS.iter().filter(|setting| setting.same).zip(common);
        let (setting, other) = all.find(|(setting, other)| (setting.get)(self) != **other)?;
        Some((setting.key, setting.form.write(*other)))
    }

    fn written(&self, place: usize) -> String {
        SETTINGS[place].form.write((SETTINGS[place].get)(self))
    }
}

fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.key)
}

fn place(key: &str) -> Option<usize> {
    keys().position(|known| known == key)
}

fn unknown(key: &str) -> ConfigError {
    let all: Vec<&str> = keys().chain(hints::keys()).collect();
    let near = |known: &&str| distance(known, key);
    // Further away, it is another word.
    let nearest =
        all.iter().copied().min_by_key(near).filter(|known| near(known) <= 1 + key.len() / 4);
    ConfigError::Unknown { key: key.to_owned(), nearest, all: all.join(", ") }
}

/// How many contributions have to be put in, taken out or changed (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let changed = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

/// Numbers from 1, keys and values of the lines of a file that say something.
fn lines(text: &str) -> Result<Vec<(usize, &str, &str)>, ConfigError> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // A comment may follow the value.
        let setting = line.split_once(" #").map_or(line, |(setting, _)| setting);
        let Some((key, value)) = setting.split_once('=') else {
            let text = line.chars().take(LINE_SHOWN).collect();
            return Err(ConfigError::Line { line: number, text });
        };
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        all.push((number, key.trim(), bare.unwrap_or(value)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_a_network_ranks_are_nodes_unless_one_node_is_asked_for() {
        let mut config = Config::default();
        assert_eq!(config.nodes_of(4), 1);
        config.set_by("transport", "ofi", Source::CommandLine("--transport".into())).unwrap();
        assert_eq!(config.nodes_of(4), 4);
        config.set_by("nodes", "1", Source::CommandLine("--nodes".into())).unwrap();
        assert_eq!(config.nodes_of(4), 1);
    }

    /// What `get` writes `set` takes, and only the field of that name changes.
    #[test]
    fn what_is_written_parses() {
        let config = Config::default();
        for key in keys() {
            let value = config.get(key).unwrap();
            let mut other = config.clone();
            other.set(key, &value).unwrap();
            assert_eq!(other.get(key), Some(value), "{key}");
            assert_eq!(other.source(key), Some(Source::Program));
            assert_eq!(config.source(key), Some(Source::Default));
        }
    }

    /// A value for each that is not its default: it comes to the field of that name.
    #[test]
    fn every_setting_is_a_field() {
        let values = [
            ("wait_timeout", "3s"),
            ("cpus", "3"),
            ("nodes", "3"),
            ("transport", "ofi"),
            ("provider", "tcp"),
            ("naps", "false"),
            ("outstanding_messages", "3"),
            ("credit_messages", "3"),
            ("eager_bytes", "3 KiB"),
            ("rendezvous_bytes", "3 MiB"),
            ("collective_bytes", "3 GiB"),
            ("unexpected_bytes", "3 TiB"),
            ("collective_lane_bytes", "3 MiB"),
            ("collective_lane_from", "3 KiB"),
            ("target_cache", "3"),
            ("dynamic_regions", "3"),
            ("device_run_bytes", "3 KiB"),
            ("progress_agent", "never"),
        ];
        assert_eq!(keys().collect::<Vec<_>>(), values.map(|(key, _)| key));
        let mut config = Config::default();
        values.iter().for_each(|(key, value)| config.set(key, value).unwrap());
        // Every field: one that is added is a setting, or stands below the line.
        let Config {
            wait_timeout,
            cpus,
            nodes,
            naps,
            outstanding_messages,
            credit_messages,
            eager_bytes,
            rendezvous_bytes,
            collective_bytes,
            unexpected_bytes,
            collective_lane_bytes,
            collective_lane_from,
            target_cache,
            dynamic_regions,
            device_run_bytes,
            progress_agent,
            transport: _, // asked by its method
            provider: _,  // so is this
            on_window: _,
            allocator: _,
            hints: _,
            sources: _,
            root: _,
        } = config.clone();
        assert_eq!((wait_timeout, cpus, nodes), (Some(Duration::from_secs(3)), Some(3), 3));
        assert_eq!((config.transport(), config.provider()), ("ofi", Some("tcp")));
        assert_eq!((naps, outstanding_messages, credit_messages), (false, 3, 3));
        assert_eq!((eager_bytes, rendezvous_bytes), (3 << 10, 3 << 20));
        assert_eq!((collective_bytes, unexpected_bytes), (3 << 30, 3 << 40));
        assert_eq!((collective_lane_bytes, collective_lane_from), (3 << 20, 3 << 10));
        assert_eq!((target_cache, dynamic_regions), (3, 3));
        assert_eq!((device_run_bytes, progress_agent), (Some(3 << 10), ProgressAgent::Never));
        for (key, value) in values {
            assert_eq!(config.get(key).as_deref(), Some(value));
        }
    }

    #[test]
    fn refusals_name_what_there_is() {
        let mut config = Config::default();
        let mut refused = |key, value| config.set(key, value).unwrap_err().to_string();
        let unknown = refused("egaer_bytes", "1");
        for part in ["\"egaer_bytes\"", "mean \"eager_bytes\"", "outstanding_messages", "rma_path"]
        {
            assert!(unknown.contains(part), "{unknown}");
        }
        assert!(!refused("pigeons", "1").contains("mean"));
        let value = refused("credit_messages", "257");
        for part in ["credit_messages", "\"257\"", "1 to 256", "messages"] {
            assert!(value.contains(part), "{value}");
        }
        assert!(refused("collective_bytes", "255").contains("256 B to 64 TiB"));
        assert!(refused("rma_path", "pigeon").contains("auto or load_store"));
        assert_eq!(config.explain(), Config::default().explain(), "nothing was set");
    }

    #[test]
    fn files_have_lines() {
        let mut config = Config::default();
        let text = "# all\n\n outstanding_messages=7 # few\r\nrma_path = messages\n\
                    unexpected_bytes = \"1 MiB\"";
        config.set_lines(text, "job.conf").unwrap();
        assert_eq!((config.outstanding_messages, config.unexpected_bytes), (7, 1 << 20));
        let source = Source::File("job.conf".into());
        assert_eq!(config.source("outstanding_messages"), Some(source.clone()));
        assert_eq!(config.source("rma_path"), Some(source));
        let refused = |text: &str| Config::default().set_lines(text, "x").unwrap_err().to_string();
        assert!(
            refused("\noutstanding_messages 7")
                .starts_with("line 2: \"outstanding_messages 7\" is not")
        );
        assert!(
            refused("outstanding_messages = 8\noutstanding_messages = x")
                .starts_with("line 2: setting outstanding_messages")
        );
        assert!(refused("outstanding_message = 8").contains("outstanding_messages"));
        let mut partly = Config::default();
        assert!(partly.set_lines("outstanding_messages = 9\nx = 1", "x").is_err());
        assert_eq!(
            partly.outstanding_messages,
            Config::default().outstanding_messages,
            "all or nothing"
        );
    }

    #[test]
    fn the_source_of_each_setting_is_explained() {
        let mut config = Config { eager_bytes: 1 << 20, ..Config::default() };
        config.set_by("outstanding_messages", "9", Source::CommandLine("--config".into())).unwrap();
        config.set_by("no_locks", "true", Source::File("a.conf".into())).unwrap();
        let text = config.explain();
        for line in [
            "setting: eager_bytes = 1 MiB (program)\n",
            "setting: outstanding_messages = 9 (rma-run --config)\n",
            "setting: no_locks = true (file a.conf)\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("defaults: wait_timeout = none, cpus = auto, nodes = 1"), "{text}");
        let help = Config::settings_help();
        keys().chain(hints::keys()).for_each(|key| assert!(help.contains(key), "{key}"));
    }

    #[test]
    fn what_all_ranks_share_is_compared() {
        let (mut one, other) = (Config::default(), Config::default());
        one.outstanding_messages = 1;
        assert_eq!(one.differs(&other.common()), None);
        one.collective_bytes = 512;
        let expected = Some(("collective_bytes", "1 GiB".to_owned()));
        assert_eq!(one.differs(&other.common()), expected);
    }
}
