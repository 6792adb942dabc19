//! The server's side of PMI-1, for the ranks of a host: what they say and what they are answered,
//! without I/O. Ranks that speak it are programs of MPI.
//!
//! What ranks put is handed to all hosts at a barrier, so that each answers its ranks by itself.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::message::{Message, line, shown};
use super::places::MAPPING;
use crate::codec::{wire_enum, wire_struct};

/// Bytes of a line at most.
const LINE_MAX: usize = 16 << 10;
/// Bytes of the name of a space of keys, of a key and of a value, each with a zero behind it.
const NAME_MAX: usize = 256;
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 1024;
/// What a pair costs besides its bytes.
const PAIR: usize = 64;
/// Bytes that a rank may put in its life.
const RANK_BUDGET: usize = 64 << 10;
/// Bytes that all ranks may put: they fit a frame between hosts.
pub(crate) const JOB_BUDGET: usize = 12 << 20;
/// Under this key, ranks find which have died: none, as long as the job goes on.
const DEAD: &str = "PMI_dead_processes";

/// How a rank does not keep to PMI-1.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PmiFault {
    /// A line without end.
    #[error("a line has more than {LINE_MAX} bytes")]
    TooLong,
    /// No command.
    #[error("a line is no message")]
    NoMessage,
    /// A command of something else.
    #[error("there is no such command")]
    UnknownCommand,
    /// A field that is missing, too long, or no number.
    #[error("a field is missing, too long, or not what it should be")]
    BadField,
    /// Something before `init`.
    #[error("nothing comes before `init`")]
    NotBegun,
    /// A second `init`, or something behind `finalize`.
    #[error(
        "nothing comes behind `finalize`, and `init` comes once: a rank is one program of MPI, once"
    )]
    Repeated,
    /// More keys and values than a rank may put.
    #[error(
        "it has put more than {RANK_BUDGET} bytes of keys and values, of which each pair counts \
         {PAIR} more"
    )]
    TooMuch,
    /// More keys and values than all ranks may put: the rank that put last has done nothing wrong.
    #[error(
        "its ranks have put more than {JOB_BUDGET} bytes of keys and values together, of which \
         each pair counts {PAIR} more"
    )]
    TooMuchOfAll,
}

crate::debug_as_display!(PmiFault);

wire_enum!(PmiFault {
    0 = TooLong {},
    1 = NoMessage {},
    2 = UnknownCommand {},
    3 = BadField {},
    4 = NotBegun {},
    5 = Repeated {},
    6 = TooMuch {},
    7 = TooMuchOfAll {},
});

/// What ranks are told alike.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offer {
    /// The name of the space of keys.
    pub(crate) space: String,
    /// Ranks of the job.
    pub(crate) size: u32,
    /// Which of them share a node.
    pub(crate) mapping: String,
    /// The first rank of each program.
    pub(crate) firsts: Vec<u32>,
}

wire_struct!(Offer { space, size, mapping, firsts });

/// Keys and values.
pub(crate) type Pairs = Vec<(String, String)>;

/// What comes of what ranks say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    /// The rank is answered that, or may go on if that is nothing.
    Answer { rank: u32, bytes: Vec<u8> },
    /// The connection of a rank is to be closed.
    HangUp { rank: u32 },
    /// Something that the job wants to know.
    Told(Told),
}

/// What the job is told of ranks that speak PMI-1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// It has begun.
    Began { rank: u32 },
    /// It has ended in order.
    Ended { rank: u32 },
    /// Its connection has ended before that, perhaps with its process.
    Closed { rank: u32 },
    /// It waits for that one in vain, and is told so by the end of its connection.
    Missed { rank: u32, of: u32 },
    /// All ranks here wait for the others, and have put that since the last time.
    Met { pairs: Pairs },
    /// That rank comes to no barrier any more.
    Broken { rank: u32 },
    /// It wants all ranks to end, with that status.
    Aborted { rank: u32, status: u32 },
    /// It does not keep to the protocol: with that line.
    Faulty { rank: u32, fault: PmiFault, said: String },
}

wire_enum!(Told {
    0 = Began { rank: rank },
    1 = Ended { rank: rank },
    2 = Missed { rank: rank, of: of },
    3 = Met { pairs: pairs },
    4 = Broken { rank: rank },
    5 = Aborted { rank: rank, status: status },
    6 = Faulty { rank: rank, fault: fault, said: said },
    7 = Closed { rank: rank },
});

/// How far a rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    New,
    Begun,
    Waiting,
    Gone,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    stage: Stage,
    /// In a command of several lines.
    in_lines: bool,
    /// Bytes that it has put.
    put: usize,
}

/// The state of all ranks of a host, and what they have put.
#[derive(Debug)]
pub(crate) struct Server {
    offer: Offer,
    here: Range<u32>,
    ranks: Vec<Rank>,
    pairs: HashMap<String, String>,
    /// Put here since the last barrier.
    fresh: Pairs,
    /// Bytes that ranks here have put.
    put: usize,
    /// A rank that comes to no barrier any more, here or elsewhere.
    gone: Option<u32>,
    outputs: VecDeque<Output>,
}

impl Server {
    /// For those ranks.
    pub(crate) fn new(offer: Offer, here: Range<u32>) -> Server {
        Server {
            ranks: vec![Rank::default(); here.len()],
            offer,
            here,
            pairs: HashMap::new(),
            fresh: Vec::new(),
            put: 0,
            gone: None,
            outputs: VecDeque::new(),
        }
    }

    /// What comes of it.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn state(&mut self, rank: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(rank.checked_sub(self.here.start)? as usize)
    }

    /// A rank has said a line, or what is none. Until it is answered, it is to say no more.
    pub(crate) fn handle_line(&mut self, rank: u32, line: Result<&[u8], PmiFault>) {
        let done = match line {
            Ok(line) => self.obey(rank, line).map_err(|fault| (fault, shown(line))),
            Err(fault) => Err((fault, String::new())),
        };
        if let Err((fault, said)) = done {
            // Ranks that wait for it are ended with the job.
            self.stop(rank);
            self.tell(Told::Faulty { rank, fault, said });
            self.outputs.push_back(Output::HangUp { rank });
        }
    }

    /// The connection of a rank has ended. That it is [gone](Self::handle_gone) may be said later:
    /// mostly the job ends with it, and the others need not be told.
    pub(crate) fn handle_closed(&mut self, rank: u32) {
        let state = self.state(rank).copied();
        if state.is_some_and(|state| matches!(state.stage, Stage::Begun | Stage::Waiting)) {
            self.tell(Told::Closed { rank });
        }
    }

    /// A rank says no more: its connection or its process has ended.
    pub(crate) fn handle_gone(&mut self, rank: u32) {
        if self.stop(rank) {
            self.outputs.push_back(Output::HangUp { rank });
            self.lose(rank);
        }
    }

    /// All ranks of the job have met, and have put that.
    pub(crate) fn handle_met(&mut self, pairs: Pairs) {
        self.pairs.extend(pairs);
        for rank in self.waiting() {
            self.set(rank, Stage::Begun);
            self.answer(rank, "barrier_out", &[]);
        }
    }

    /// That rank comes to no barrier any more: a rank that waits for it would wait for ever.
    pub(crate) fn handle_broken(&mut self, gone: u32) {
        let of = *self.gone.get_or_insert(gone);
        for rank in self.waiting() {
            self.give_up(rank, of);
        }
    }

    /// Ranks that wait at a barrier.
    fn waiting(&self) -> Vec<u32> {
        let all = self.here.clone().zip(&self.ranks);
        all.filter(|(_, state)| state.stage == Stage::Waiting).map(|(rank, _)| rank).collect()
    }

    fn give_up(&mut self, rank: u32, of: u32) {
        self.set(rank, Stage::Gone);
        self.tell(Told::Missed { rank, of });
        self.outputs.push_back(Output::HangUp { rank });
    }

    /// Says that a rank is gone; whether it was there.
    fn stop(&mut self, rank: u32) -> bool {
        let Some(state) = self.state(rank) else { return false };
        std::mem::replace(&mut state.stage, Stage::Gone) != Stage::Gone
    }

    fn lose(&mut self, rank: u32) {
        if self.gone.is_none() {
            self.tell(Told::Broken { rank });
        }
        self.handle_broken(rank);
    }

    fn set(&mut self, rank: u32, stage: Stage) {
        self.state(rank).into_iter().for_each(|state| state.stage = stage);
    }

    fn tell(&mut self, told: Told) {
        self.outputs.push_back(Output::Told(told));
    }

    fn answer(&mut self, rank: u32, cmd: &str, fields: &[(&str, &str)]) {
        self.outputs.push_back(Output::Answer { rank, bytes: line(cmd, fields) });
    }

    fn refuse(&mut self, rank: u32, cmd: &str, why: &str) {
        // Readers stop at a blank.
        let msg = why.replace(' ', "_");
        self.answer(rank, cmd, &[("rc", "-1"), ("msg", &msg)]);
    }

    fn obey(&mut self, rank: u32, line: &[u8]) -> Result<(), PmiFault> {
        let Some(state) = self.state(rank).copied() else { return Ok(()) };
        if let Some(done) = self.skip(rank, state, line) {
            return done;
        }
        let message = Message::of_line(line).map_err(|_| PmiFault::NoMessage)?;
        let cmd = message.get("cmd").unwrap_or_default();
        match (cmd, state.stage) {
            ("abort", Stage::New | Stage::Begun) => return self.abort(rank, &message),
            ("init", Stage::New) => return self.begin(rank, &message),
            ("init", _) | (_, Stage::Gone | Stage::Waiting) => return Err(PmiFault::Repeated),
            (_, Stage::New) => return Err(PmiFault::NotBegun),
            (_, Stage::Begun) => {}
        }
        match cmd {
            "get_maxes" => {
                let [name, key, value] = [NAME_MAX, KEY_MAX, VALUE_MAX].map(|max| max.to_string());
                let fields =
                    [("kvsname_max", &*name), ("keylen_max", &*key), ("vallen_max", &*value)];
                self.answer(rank, "maxes", &fields);
            }
            "get_appnum" => {
                let before = self.offer.firsts.iter().filter(|first| **first <= rank).count();
                let number = before.saturating_sub(1).to_string();
                self.answer(rank, "appnum", &[("appnum", &number)]);
            }
            "get_universe_size" => {
                let size = self.offer.size.to_string();
                self.answer(rank, "universe_size", &[("size", &size)]);
            }
            "get_my_kvsname" => {
                let space = self.offer.space.clone();
                self.answer(rank, "my_kvsname", &[("kvsname", &space)]);
            }
            "put" => self.put(rank, &message)?,
            "get" => self.get(rank, &message)?,
            "barrier_in" => self.meet(rank),
            "finalize" => {
                self.set(rank, Stage::Gone);
                // A rank that speaks behind that hears why not.
                self.answer(rank, "finalize_ack", &[]);
                self.tell(Told::Ended { rank });
                self.lose(rank);
            }
            "publish_name" => self.refuse(rank, "publish_result", NO_NAMES),
            "unpublish_name" => self.refuse(rank, "unpublish_result", NO_NAMES),
            "lookup_name" => self.refuse(rank, "lookup_result", NO_NAMES),
            _ => return Err(PmiFault::UnknownCommand),
        }
        Ok(())
    }

    /// Passes over a command of several lines, which is one that starts processes; none if `line`
    /// is no part of one.
    fn skip(&mut self, rank: u32, state: Rank, line: &[u8]) -> Option<Result<(), PmiFault>> {
        let begins = line.starts_with(b"mcmd=");
        if !state.in_lines && !begins {
            return None;
        }
        if state.stage != Stage::Begun {
            return Some(Err(PmiFault::NotBegun));
        }
        let ends = line.trim_ascii_end() == b"endcmd";
        self.state(rank).into_iter().for_each(|state| state.in_lines = !ends);
        if ends {
            self.refuse(rank, "spawn_result", "rma-run starts no further processes");
        } else {
            self.outputs.push_back(Output::Answer { rank, bytes: Vec::new() });
        }
        Some(Ok(()))
    }

    fn begin(&mut self, rank: u32, message: &Message) -> Result<(), PmiFault> {
        let version = message.number("pmi_version").map_err(|_| PmiFault::BadField)?;
        // A rank that asks for another hears which one there is.
        let rc = if version == 1 { "0" } else { "-1" };
        let fields = [("pmi_version", "1"), ("pmi_subversion", "1"), ("rc", rc)];
        if version == 1 {
            self.set(rank, Stage::Begun);
            self.tell(Told::Began { rank });
        }
        self.answer(rank, "response_to_init", &fields);
        Ok(())
    }

    fn abort(&mut self, rank: u32, message: &Message) -> Result<(), PmiFault> {
        let status = match message.get("exitcode") {
            Some(text) => text.parse::<i32>().map_err(|_| PmiFault::BadField)?,
            None => 1,
        };
        // It waits for its end, as all others do.
        self.stop(rank);
        self.tell(Told::Aborted { rank, status: status.cast_unsigned() });
        Ok(())
    }

    /// The value of that field, which is shorter than `max`.
    fn field<'m>(message: &'m Message, name: &str, max: usize) -> Result<&'m str, PmiFault> {
        message.get(name).filter(|text| text.len() < max).ok_or(PmiFault::BadField)
    }

    fn is_in_space(&self, message: &Message) -> Result<bool, PmiFault> {
        Ok(Self::field(message, "kvsname", NAME_MAX)? == self.offer.space)
    }

    fn put(&mut self, rank: u32, message: &Message) -> Result<(), PmiFault> {
        let (key, value) = (
            Self::field(message, "key", KEY_MAX)?.to_owned(),
            Self::field(message, "value", VALUE_MAX)?.to_owned(),
        );
        if !self.is_in_space(message)? {
            self.refuse(rank, "put_result", "no such space of keys");
            return Ok(());
        }
        let bytes = key.len() + value.len() + PAIR;
        let Some(state) = self.state(rank) else { return Ok(()) };
        state.put += bytes;
        let its = state.put;
        self.put += bytes;
        if its > RANK_BUDGET {
            return Err(PmiFault::TooMuch);
        }
        if self.put > JOB_BUDGET {
            return Err(PmiFault::TooMuchOfAll);
        }
        self.fresh.push((key, value));
        self.answer(rank, "put_result", &[("rc", "0"), ("msg", "success")]);
        Ok(())
    }

    fn get(&mut self, rank: u32, message: &Message) -> Result<(), PmiFault> {
        let key = Self::field(message, "key", KEY_MAX)?;
        let is_in_space = self.is_in_space(message)?;
        let found = match key {
            _ if !is_in_space => None,
            // A longer one would not be read; without, MPI takes each rank for a node of its own.
            MAPPING => Some(&self.offer.mapping).filter(|text| text.len() < VALUE_MAX).cloned(),
            DEAD => None,
            key => self.pairs.get(key).cloned(),
        };
        let fields = match &found {
            Some(value) => [("rc", "0"), ("msg", "success"), ("value", value)],
            None => [("rc", "-1"), ("msg", "no_such_key"), ("value", "unknown")],
        };
        self.answer(rank, "get_result", &fields);
        Ok(())
    }

    fn meet(&mut self, rank: u32) {
        if let Some(of) = self.gone {
            return self.give_up(rank, of);
        }
        self.set(rank, Stage::Waiting);
        if self.ranks.iter().all(|state| state.stage == Stage::Waiting) {
            let pairs = std::mem::take(&mut self.fresh);
            self.tell(Told::Met { pairs });
        }
    }
}

const NO_NAMES: &str = "rma-run keeps no names of services";

/// Takes what a rank says apart into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next line, without its end.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, PmiFault> {
        let end = self.0.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.0.len()) > LINE_MAX {
            return Err(PmiFault::TooLong);
        }
        let Some(end) = end else { return Ok(None) };
        let rest = self.0.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.0, rest);
        line.pop();
        Ok(Some(line))
    }
}

/// Which ranks share a node, of nodes with so many ranks in a row each.
pub(crate) fn mapping(nodes: impl IntoIterator<Item = u32>) -> String {
    // Nodes in a row with as many ranks each.
    let mut runs: Vec<(usize, usize, u32)> = Vec::new();
    for (node, ranks) in nodes.into_iter().enumerate() {
        match runs.last_mut() {
            Some((_, count, each)) if *each == ranks => *count += 1,
            _ => runs.push((node, 1, ranks)),
        }
    }
    let runs = runs.iter().map(|(node, count, each)| format!(",({node},{count},{each})"));
    format!("(vector{})", runs.collect::<String>())
}

/// Hosts meet when the ranks of each do.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    met: Vec<bool>,
    pairs: Pairs,
    /// Bytes that all ranks have put so far.
    put: usize,
}

impl Meeting {
    pub(crate) fn new(hosts: usize) -> Meeting {
        Meeting { met: vec![false; hosts], ..Meeting::default() }
    }

    /// The ranks of a host have met; what all of them are told, once those of all have.
    pub(crate) fn handle_met(
        &mut self,
        host: usize,
        pairs: Pairs,
    ) -> Result<Option<Pairs>, PmiFault> {
        self.put += pairs.iter().map(|(key, value)| key.len() + value.len() + PAIR).sum::<usize>();
        if self.put > JOB_BUDGET {
            return Err(PmiFault::TooMuchOfAll);
        }
        self.pairs.extend(pairs);
        self.met.get_mut(host).into_iter().for_each(|met| *met = true);
        if !self.met.iter().all(|met| *met) {
            return Ok(None);
        }
        self.met.fill(false);
        Ok(Some(std::mem::take(&mut self.pairs)))
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
