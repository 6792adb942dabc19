//! Every interleaving of small programs, one shared access at a time.
//!
//! Ranks run scripts of acquire, hold and release over words that all of them see at once; what a
//! machine cannot know (which ranks are inside, which in line) is kept beside them. States are
//! visited once. They never form a cycle, which means that no rank polls and every schedule ends.
use super::*;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::mem::{Discriminant, discriminant};

const HOME: u32 = 0;
const MAX_RANKS: usize = 4;
const MAX_NODES: usize = 2;
const WORDS: usize = 2 + MAX_RANKS * MAX_NODES * NODE_WORDS as usize;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Doing {
    /// Before a round, or without a node in it.
    Start,
    Acquire {
        machine: Acquire,
        asleep: bool,
        gave_up: bool,
    },
    /// Inside until the release is through.
    Release(Release),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Actor {
    doing: Doing,
    round: u32,
    /// How often it may give up.
    impatience: u8,
    /// How often it may take the lock past those in line, as long as that is allowed.
    passes: u8,
    holds: Option<Mode>,
}

/// The locks that a rank takes one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    rounds: u32,
    /// A bit for each round.
    exclusive: u32,
    /// As at a global lock: where the bit is set, the lock is wanted as one of the other group.
    global_lock: bool,
    /// Takes the lock past those in line, without a node.
    past: bool,
}

impl Program {
    fn mode(self, round: u32) -> Option<Mode> {
        let other = if self.global_lock { Mode::Group } else { Mode::Exclusive };
        let mode = [Mode::Shared, other][(self.exclusive >> round & 1) as usize];
        (round < self.rounds).then_some(mode)
    }
}

/// What the ranks do.
struct Script {
    programs: Vec<Program>,
    /// Nodes of each rank.
    nodes: u16,
    /// How often each rank may give up.
    impatience: u8,
    /// How often each rank may pass those in line.
    passes: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    words: [u64; WORDS],
    actors: Vec<Actor>,
    /// Ranks that are in line, in the order of their swaps of the tail.
    line: Vec<u32>,
    /// The first of them has run, and found the lock held: no rank may pass it any more.
    is_next: bool,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Run,
    Pass,
    GiveUp,
}

fn index(at: At) -> usize {
    if at.word < NODE_FIRST {
        assert!(
            at.rank == HOME && at.word <= part(HOME).head().word,
            "no such word of a home: {at:?}"
        );
        return usize::from(at.word);
    }
    let (node, word) = ((at.word - NODE_FIRST) / NODE_WORDS, (at.word - NODE_FIRST) % NODE_WORDS);
    assert!(usize::from(node) < MAX_NODES, "no such node: {at:?}");
    2 + (at.rank as usize * MAX_NODES + usize::from(node)) * usize::from(NODE_WORDS)
        + usize::from(word)
}

impl World {
    fn new(script: &Script) -> Self {
        let (impatience, passes) = (script.impatience, script.passes);
        let actor = |_| Actor { doing: Doing::Start, round: 0, impatience, passes, holds: None };
        let actors = script.programs.iter().map(actor).collect();
        Self { words: [0; WORDS], actors, line: Vec::new(), is_next: false }
    }

    fn state(&mut self) -> &mut u64 {
        &mut self.words[index(part(HOME))]
    }

    /// Does a step; `None` if it waits.
    fn perform(&mut self, step: Step) -> Option<u64> {
        let (at, new, wakes) = match step {
            Step::Load(at) => (at, None, false),
            Step::Wait { at, not, .. } if self.words[index(at)] == not => return None,
            Step::Wait { at, .. } => (at, None, false),
            Step::Swap { at, old, new, wake } => {
                let matches = self.words[index(at)] == old;
                (at, matches.then_some(new), wake)
            }
            Step::Store { at, value } => (at, Some(value), false),
            Step::Set { at, bits } => (at, Some(self.words[index(at)] | bits), false),
            Step::Done => return Some(0),
        };
        let word = &mut self.words[index(at)];
        let seen = *word;
        *word = new.unwrap_or(seen);
        if wakes
            && new.is_some()
            && let Doing::Acquire { asleep, .. } = &mut self.actors[at.rank as usize].doing
        {
            *asleep = false;
        }
        // A store has no answer to rely on.
        Some(if matches!(step, Step::Store { .. }) { u64::MAX } else { seen })
    }

    /// What the rank does next, done; `None` if it cannot go on by itself.
    fn run(mut self, rank: u32, script: &Script) -> Result<Option<Self>, String> {
        let Actor { doing, round, .. } = self.actors[rank as usize].clone();
        let mode = script.programs[rank as usize].mode(round);
        let Some(mode) = mode else { return Ok(None) };
        let doing = match doing {
            Doing::Start => self.start(rank, mode, script)?,
            Doing::Acquire { asleep: true, .. } => None,
            Doing::Acquire { machine, gave_up, .. } => {
                Some(self.acquire(rank, mode, machine, gave_up)?)
            }
            Doing::Release(machine) => Some(self.release(rank, machine)?),
        };
        let Some(doing) = doing else { return Ok(None) };
        self.actors[rank as usize].doing = doing;
        Ok(Some(self))
    }

    /// Goes on to the next round after a machine's last step.
    fn unless_over(&mut self, rank: u32, next: Step, doing: Doing) -> Doing {
        if next != Step::Done {
            return doing;
        }
        self.actors[rank as usize].round += 1;
        Doing::Start
    }

    /// Takes a node, or without one the lock if it is free, as a window does. What no other rank
    /// can see is done together with the first access to the home.
    fn start(&mut self, rank: u32, mode: Mode, script: &Script) -> Result<Option<Doing>, String> {
        let past = script.programs[rank as usize].past;
        let mut nodes = (0..if past { 0 } else { script.nodes })
            .filter_map(|index| QueueNode::new(rank, index));
        let node = nodes.find(|node| self.words[index(node.word(PHASE))] == phase::FREE);
        if let Some(node) = node {
            assert_eq!(node.word(PHASE), At { rank, word: node.phase_word() });
            self.words[index(node.word(PHASE))] = phase::WAITING;
            let mut machine = Acquire::new(part(HOME), rank, mode, node, 0);
            machine.handle(self.perform(machine.poll()).ok_or("waits for itself")?);
            return Ok(Some(self.acquire(rank, mode, machine, false)?));
        }
        let take = if past { barge_past } else { barge };
        let Some(new) = take(*self.state(), mode, rank) else { return Ok(None) };
        if !past {
            self.in_turn(rank)?;
        }
        self.take(rank, mode, new).map(Some)
    }

    fn take(&mut self, rank: u32, mode: Mode, new: u64) -> Result<Doing, String> {
        *self.state() = new;
        self.enter(rank, mode)?;
        Ok(Doing::Release(Release::new(part(HOME), mode, uncontended(mode, rank))))
    }

    /// The rank takes the lock past those in line, as a window does; `None` if it may not.
    fn pass(mut self, rank: u32, script: &Script) -> Result<Option<Self>, String> {
        let Actor { doing, round, passes, .. } = self.actors[rank as usize].clone();
        let mode = script.programs[rank as usize].mode(round);
        let (Some(mode), Some(left), Doing::Start) = (mode, passes.checked_sub(1), doing) else {
            return Ok(None);
        };
        let new = pass(*self.state(), mode, rank);
        let Some(new) = new.filter(|_| !self.line.is_empty()) else { return Ok(None) };
        if self.is_next || self.actors.iter().any(|actor| actor.holds.is_some()) {
            return Err(format!("{rank} passes the line {:?} when it must not", self.line));
        }
        self.actors[rank as usize].passes = left;
        self.actors[rank as usize].doing = self.take(rank, mode, new)?;
        Ok(Some(self))
    }

    fn release(&mut self, rank: u32, mut machine: Release) -> Result<Doing, String> {
        machine.handle(self.perform(machine.poll()).ok_or("a release waits")?);
        if !matches!(machine.stage, ReleaseStage::Try { .. }) {
            self.actors[rank as usize].holds = None;
        }
        Ok(self.unless_over(rank, machine.poll(), Doing::Release(machine)))
    }

    fn acquire(
        &mut self,
        rank: u32,
        mode: Mode,
        mut machine: Acquire,
        gave_up: bool,
    ) -> Result<Doing, String> {
        let (step, held, tail_was) = (machine.poll(), machine.is_held(), tail(*self.state()));
        let Some(answer) = self.perform(step) else {
            assert!(!gave_up, "waits after it gave up");
            return Ok(Doing::Acquire { machine, asleep: true, gave_up });
        };
        if tail(*self.state()) == Some(machine.node) && tail_was != Some(machine.node) {
            self.line.push(rank);
        }
        machine.handle(answer);
        if machine.stage == Stage::SleepFirst {
            if self.line.first() != Some(&rank) {
                return Err(format!("{rank} thinks that it is the first of {:?}", self.line));
            }
            self.is_next = true;
        }
        if machine.is_held() && !held {
            self.in_turn(rank)?;
            self.enter(rank, mode)?;
            if gave_up {
                return Err(format!("{rank} gave up and took the lock"));
            }
        }
        let next = machine.poll();
        if next == Step::Done && machine.is_held() {
            return Ok(Doing::Release(Release::new(part(HOME), mode, uncontended(mode, rank))));
        }
        if next == Step::Done && !gave_up {
            return Err(format!("{rank} ended without the lock"));
        }
        let doing = Doing::Acquire { machine, asleep: false, gave_up };
        Ok(self.unless_over(rank, next, doing))
    }

    /// The lock was taken by the first in line, or there is none.
    fn in_turn(&mut self, rank: u32) -> Result<(), String> {
        if self.line.first().is_some_and(|first| *first != rank) {
            return Err(format!("{rank} overtook the line {:?}", self.line));
        }
        self.leave_line(rank);
        Ok(())
    }

    fn leave_line(&mut self, rank: u32) {
        self.is_next &= self.line.first() != Some(&rank);
        self.line.retain(|other| *other != rank);
    }

    /// No rank sleeps that could join those inside, however long they stay.
    fn check_sleepers(&self, script: &Script) -> Result<(), String> {
        let rests = |actor: &Actor| match &actor.doing {
            Doing::Start => true,
            Doing::Acquire { asleep, .. } => *asleep,
            Doing::Release(_) => actor.holds.is_some(),
        };
        let Some(&first) = self.line.first() else { return Ok(()) };
        let actor = &self.actors[first as usize];
        let mode = script.programs[first as usize].mode(actor.round).ok_or("not in line")?;
        let state = self.words[index(part(HOME))];
        if self.actors.iter().all(rests) && with_holder(state, mode, first).is_some() {
            return Err(format!("{first} sleeps and could enter: {:?}", self.actors));
        }
        Ok(())
    }

    /// The lock was taken: with no holder in the way.
    fn enter(&mut self, rank: u32, mode: Mode) -> Result<(), String> {
        let mut holders = self.actors.iter().filter_map(|actor| actor.holds);
        let excluded = holders.any(|other| mode != other || mode == Mode::Exclusive);
        if excluded {
            return Err(format!("{rank} is inside ({mode:?}) with a rank it excludes"));
        }
        self.actors[rank as usize].holds = Some(mode);
        Ok(())
    }

    /// The wait of a rank runs into its deadline.
    fn give_up(mut self, rank: u32) -> Option<Self> {
        let actor = &self.actors[rank as usize];
        let Doing::Acquire { machine, .. } = &actor.doing else { return None };
        let waits = matches!(machine.poll(), Step::Wait { .. });
        if !waits || actor.impatience == 0 {
            return None;
        }
        let mut machine = machine.clone();
        let phase_was = self.perform(machine.abandon_step())?;
        machine.abandon(phase_was);
        self.leave_line(rank);
        self.actors[rank as usize].impatience -= 1;
        let next = machine.poll();
        let doing = Doing::Acquire { machine, asleep: false, gave_up: true };
        self.actors[rank as usize].doing = self.unless_over(rank, next, doing);
        Some(self)
    }

    fn head_sleeps(&self) -> bool {
        let first = self.line.first().map(|first| &self.actors[*first as usize].doing);
        matches!(first, Some(Doing::Acquire { asleep: true, .. }))
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// What was seen on all paths of all explorations.
#[derive(Default)]
struct Explorer {
    /// Whether a state is on the path that is being followed.
    visited: HashMap<u64, bool>,
    states: usize,
    most_readers: usize,
    abandoned_behind: bool,
    passed: bool,
    /// A rank passed a head that was not even woken.
    passed_sleeper: bool,
    stages: HashMap<Discriminant<Stage>, Stage>,
}

impl Explorer {
    /// Follows all schedules of a script.
    fn explore(&mut self, script: &Script) {
        self.visited.clear();
        if let Err(trace) = self.follow(&World::new(script), script) {
            let steps = trace.into_iter().rev().collect::<Vec<_>>().join("\n");
            panic!("{:?} and {} nodes each:\n{steps}", script.programs, script.nodes);
        }
        self.states += self.visited.len();
    }

    /// An error is the trace, backwards.
    fn follow(&mut self, world: &World, script: &Script) -> Result<(), Vec<String>> {
        let id = world.fingerprint();
        match self.visited.entry(id) {
            Entry::Occupied(on_path) if *on_path.get() => return Err(vec!["a cycle".into()]),
            Entry::Occupied(_) => return Ok(()),
            Entry::Vacant(new) => new.insert(true),
        };
        self.note(world);
        world.check_sleepers(script).map_err(|what| vec![what])?;
        let mut stuck = true;
        for rank in 0..world.actors.len() as u32 {
            for choice in [Choice::Run, Choice::Pass, Choice::GiveUp] {
                let trace = |mut trace: Vec<String>| {
                    trace.push(format!("{rank} {choice:?} {:?}", world.actors[rank as usize]));
                    trace
                };
                let next = match choice {
                    Choice::Run => world.clone().run(rank, script),
                    Choice::Pass => world.clone().pass(rank, script),
                    Choice::GiveUp => Ok(world.clone().give_up(rank)),
                };
                let Some(next) = next.map_err(|what| trace(vec![what]))? else { continue };
                stuck &= matches!(choice, Choice::GiveUp);
                if let Choice::Pass = choice {
                    self.passed = true;
                    self.passed_sleeper |= world.head_sleeps();
                }
                self.follow(&next, script).map_err(trace)?;
            }
        }
        if stuck {
            check_end(world, script).map_err(|what| vec![what])?;
        }
        self.visited.insert(id, false);
        Ok(())
    }

    fn note(&mut self, world: &World) {
        let readers = world.actors.iter().filter(|actor| actor.holds == Some(Mode::Shared));
        self.most_readers = self.most_readers.max(readers.count());
        for actor in &world.actors {
            if let Doing::Acquire { machine, .. } = &actor.doing {
                self.stages.insert(discriminant(&machine.stage), machine.stage);
            }
        }
        let phases =
            world.words[2..].chunks(usize::from(NODE_WORDS)).map(|node| node[usize::from(PHASE)]);
        self.abandoned_behind |= { phases }.any(|phase| phase == phase::ABANDONED);
    }
}

/// No rank can go on by itself: all must be through, and nothing left of it.
fn check_end(world: &World, script: &Script) -> Result<(), String> {
    for (actor, program) in world.actors.iter().zip(&script.programs) {
        if actor.round < program.rounds {
            return Err(format!("stuck: {:?}", world.actors));
        }
    }
    let phases =
        world.words[2..].chunks(usize::from(NODE_WORDS)).map(|node| node[usize::from(PHASE)]);
    if world.words[0] != 0 || { phases }.any(|phase| phase != phase::FREE) {
        return Err(format!("left behind: {:x?}", world.words));
    }
    Ok(())
}

/// All scripts in which the ranks take that many locks; the order of the ranks does not matter.
fn scripts(rounds: &[u32], nodes: u16, impatience: u8, passes: u8) -> Vec<Script> {
    let extend = |shorter: BTreeSet<Vec<Program>>, rounds: &u32| {
        let with = |(programs, exclusive): (&Vec<Program>, u32)| {
            let mut programs = programs.clone();
            programs.push(Program { rounds: *rounds, exclusive, global_lock: false, past: false });
            programs.sort();
            programs
        };
        let all = |programs| (0..1 << rounds).map(move |exclusive| (programs, exclusive));
        shorter.iter().flat_map(all).map(with).collect()
    };
    let programs = rounds.iter().fold(BTreeSet::from([Vec::new()]), extend);
    programs.into_iter().map(|programs| Script { programs, nodes, impatience, passes }).collect()
}

fn explore_all(groups: impl IntoIterator<Item = Vec<Script>>) -> Explorer {
    let mut explorer = Explorer::default();
    groups.into_iter().flatten().for_each(|script| explorer.explore(&script));
    explorer
}

#[test]
fn waiters_are_served_in_turn_and_to_the_last() {
    let seen = if cfg!(miri) {
        let readers = Program { rounds: 1, exclusive: 0, global_lock: false, past: false };
        explore_all([vec![Script {
            programs: vec![readers; 2],
            nodes: 1,
            impatience: 0,
            passes: 0,
        }]])
    } else {
        explore_all([&[2, 2][..], &[1, 1, 1], &[2, 1, 1]].map(|rounds| scripts(rounds, 1, 0, 0)))
    };
    assert_eq!(seen.most_readers, if cfg!(miri) { 2 } else { 3 }, "readers enter together");
}

#[test]
fn a_rank_that_gives_up_is_taken_out_and_no_other_is_lost() {
    if cfg!(miri) {
        let writers = vec![Program { rounds: 1, exclusive: 1, global_lock: false, past: false }; 2];
        explore_all([vec![Script { programs: writers, nodes: 1, impatience: 1, passes: 0 }]]);
        return;
    }
    let seen = explore_all([
        // A node that is used again as soon as it is free, and giving up time after time.
        scripts(&[2, 2], 1, 2, 0),
        scripts(&[3, 2], 1, 1, 0),
        // A rank that is in line with one node, and has left it with another.
        scripts(&[2, 2], 2, 2, 0),
        scripts(&[1, 1, 1], 1, 1, 0),
    ]);
    assert!(seen.abandoned_behind, "a rank gave up behind others");
    // But `Reset`, which is done with the start, and `Done`.
    assert_eq!(seen.stages.len(), 14, "all stages: {:?}", seen.stages.values());
}

#[test]
#[cfg_attr(miri, ignore = "millions of states")]
fn four_ranks_are_served_in_turn() {
    let seen = explore_all([scripts(&[1, 1, 1, 1], 1, 0, 0)]);
    assert_eq!(seen.most_readers, 4, "readers enter together");
}

/// Ranks that come while the head sleeps, or gives up, take the lock past it, until it has run.
#[test]
#[cfg_attr(miri, ignore = "many states")]
fn a_head_is_passed_until_it_has_run() {
    let seen = explore_all([
        scripts(&[3, 2], 1, 0, 2),
        scripts(&[2, 2], 1, 1, 2),
        scripts(&[2, 2], 2, 1, 1),
        scripts(&[2, 1, 1], 1, 0, 1),
        scripts(&[1, 1, 1], 1, 1, 1),
    ]);
    assert_eq!(seen.most_readers, 3, "readers enter together");
    assert!(seen.passed && seen.passed_sleeper, "a rank was passed, awake and asleep");
}

/// The same scripts at a global lock: the two modes exclude each other, each is compatible with
/// itself.
#[test]
#[cfg_attr(miri, ignore = "many states")]
fn groups_pass_the_global_lock_in_turn() {
    let at_global_lock = |scripts: Vec<Script>| {
        let global_lock = |mut script: Script| {
            script.programs.iter_mut().for_each(|program| program.global_lock = true);
            script
        };
        scripts.into_iter().map(global_lock).collect::<Vec<_>>()
    };
    let seen = explore_all([
        at_global_lock(scripts(&[2, 2], 1, 1, 0)),
        at_global_lock(scripts(&[1, 1, 1], 1, 1, 0)),
        at_global_lock(scripts(&[2, 1, 1], 1, 0, 0)),
    ]);
    assert_eq!(seen.most_readers, 3, "readers enter together");
}

/// Ranks that take the global lock past the line come at the worst times, and leave no rank in line
/// behind.
#[test]
#[cfg_attr(miri, ignore = "many states")]
fn a_line_lives_through_ranks_that_come_past_it() {
    let with_one_past = |rounds: &[u32], impatience| {
        let one_past = |mut script: Script| {
            script.programs.iter_mut().for_each(|program| program.global_lock = true);
            let exclusive = (1 << rounds[0]) - 1;
            let past = Program { rounds: rounds[0], exclusive, global_lock: true, past: true };
            script.programs.push(past);
            script
        };
        scripts(rounds, 1, impatience, 0).into_iter().map(one_past).collect::<Vec<_>>()
    };
    explore_all([with_one_past(&[2, 1], 1), with_one_past(&[2, 2], 0)]);
}

#[test]
fn nodes_have_words_and_values_of_their_own() {
    let mut words = BTreeSet::new();
    for rank in [0, 1, u32::MAX / 2 / u32::from(NODES) - 1] {
        for index in 0..NODES {
            let node = QueueNode::new(rank, index).unwrap();
            assert_eq!(QueueNode::from_raw(u64::from(node.0)), Some(node));
            for word in [NEXT, PHASE] {
                let at = node.word(word);
                assert!(at.rank == rank && usize::from(at.word) < CONTROL_BYTES / 8, "{at:?}");
                assert!(words.insert((at.rank, at.word)), "shared with another: {at:?}");
            }
            for mode in [Mode::Shared, Mode::Group, Mode::Exclusive] {
                let state = with_tail(uncontended(mode, rank), Some(node));
                assert_eq!(tail(state), Some(node));
                assert_eq!(with_tail(state, None), uncontended(mode, rank));
                assert_eq!(tail(state | RESERVED), Some(node));
                assert_eq!(with_tail(state | RESERVED, Some(node)), state | RESERVED);
                assert_eq!(with_tail(state | RESERVED, None), uncontended(mode, rank));
            }
        }
    }
    assert_eq!(QueueNode::new(u32::MAX / 2 / u32::from(NODES) + 1, 0), None, "31 bits tell apart");
    assert_eq!(QueueNode::new(u32::MAX, 0), None, "nor does it wrap");
    assert_eq!((QueueNode::from_raw(0), QueueNode::from_raw(LEFT)), (None, None));
}

#[test]
fn readers_do_not_overflow_into_the_writer() {
    for (full, mode) in [(GROUP - 1, Mode::Shared), (WRITER - 1, Mode::Group)] {
        assert_eq!(barge(full - 1, mode, 0), Some(full));
        assert_eq!(barge(full, mode, 0), None);
    }
}

/// Of a rank that leaves: no rank waits for a node that it left to the next, or gave back.
#[test]
fn a_rank_that_is_done_with_its_nodes_is_not_in_line() {
    let node = QueueNode::new(0, 2).unwrap();
    let stands = |phase: u64, next: u64| {
        in_line(|word| match word {
            word if word == node.word(PHASE).word => phase,
            word if word == node.word(NEXT).word => next,
            _ => 0,
        })
    };
    assert!(!stands(phase::FREE, 0) && !stands(phase::FREE, LEFT));
    for phase in [phase::FIRST, phase::KICKED] {
        assert!(stands(phase, 0) && stands(phase, 9) && !stands(phase, LEFT), "{phase}");
    }
    assert!(stands(phase::WAITING, 0) && stands(phase::ABANDONED, 0));
}

/// What is assumed of a node whose rank took it along is what its words would say.
#[test]
fn nodes_of_the_gone_are_left_or_free() {
    let node = QueueNode::new(7, 1).unwrap();
    let swap = |at| Step::Swap { at, old: 0, new: 5, wake: false };
    assert_eq!(answer_of_the_gone(swap(node.word(NEXT))), Some((7, LEFT)));
    assert_eq!(answer_of_the_gone(swap(node.word(PHASE))), Some((7, phase::FREE)));
    let free = Step::Store { at: node.word(PHASE), value: phase::FREE };
    assert_eq!(answer_of_the_gone(free), Some((7, phase::FREE)));
    for home in [part(7), global_lock(), watch()] {
        assert_eq!(answer_of_the_gone(swap(home)), None, "whoever holds it counts");
    }
    assert_eq!(answer_of_the_gone(Step::Load(node.word(NEXT))), None);
}
