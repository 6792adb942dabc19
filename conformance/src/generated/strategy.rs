//! Numbers from which programs are made, as proptest draws and shrinks them.
//!
//! Any numbers give a legal program ([`super::legal`]), so shrinking never has to know what is
//! legal. Small numbers give simple things.
use super::program::Otherwise;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Ranks at most.
pub const RANKS: usize = 4;
/// Steps of a rank in a round are fewer.
const STEPS: usize = 16;
/// Windows at most.
pub const WINDOWS: usize = 3;

/// A program's numbers.
#[derive(Debug, Clone)]
pub struct Draft {
    pub(super) ranks: u8,
    pub(super) windows: Vec<WindowDraft>,
    pub(super) rounds: Vec<RoundDraft>,
}

#[derive(Debug, Clone)]
pub(super) struct WindowDraft {
    pub(super) flavour: u8,
    pub(super) hints: u8,
    pub(super) element: u8,
    /// Elements, and unit and memory.
    pub(super) parts: Vec<(u16, u8)>,
}

#[derive(Debug, Clone)]
pub(super) struct RoundDraft {
    pub(super) seal: u8,
    /// Where many of the operations go: window, target, place.
    pub(super) focus: (u8, u8, u16),
    pub(super) barrier: bool,
    pub(super) together: bool,
    /// Kind, and what that kind makes of it.
    pub(super) phases: Vec<(u8, u64)>,
    /// By rank.
    pub(super) steps: Vec<Vec<StepDraft>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct StepDraft {
    pub(super) what: u8,
    pub(super) window: u8,
    pub(super) target: u8,
    pub(super) at: u16,
    pub(super) len: u16,
    pub(super) value: u16,
    pub(super) more: u32,
    pub(super) tried: Option<Otherwise>,
}

fn windows() -> impl Strategy<Value = Vec<WindowDraft>> {
    let elements = prop_oneof![7 => 1..6u16, 2 => 0..40u16, 1 => 0..1500u16];
    let part = (elements, any::<u8>());
    let window =
        (any::<[u8; 3]>(), vec(part, RANKS)).prop_map(|([flavour, hints, element], parts)| {
            WindowDraft { flavour, hints, element, parts }
        });
    vec(window, 1..=WINDOWS)
}

fn steps() -> impl Strategy<Value = Vec<Vec<StepDraft>>> {
    let len = prop_oneof![12 => 0..6u16, 3 => 0..100u16, 1 => 0..6000u16];
    let place = (any::<u8>(), any::<u8>(), any::<u8>());
    let step = (place, any::<u16>(), len, any::<u16>(), any::<u32>()).prop_map(
        |((what, window, target), at, len, value, more)| StepDraft {
            what,
            window,
            target,
            at,
            len,
            value,
            more,
            tried: None,
        },
    );
    vec(vec(step, 0..STEPS), RANKS)
}

/// By rank and step, in each round: whether the operations there are tried.
fn trials() -> impl Strategy<Value = Vec<Vec<Option<Otherwise>>>> {
    let tried = prop_oneof![
        6 => Just(None),
        2 => Just(Some(Otherwise::Left)),
        1 => Just(Some(Otherwise::Waits)),
        2 => Just(Some(Otherwise::Again)),
    ];
    vec(vec(tried, STEPS), RANKS)
}

fn drafts(tries: bool) -> impl Strategy<Value = Draft> {
    let phase = (any::<u8>(), any::<u64>());
    let focus = (any::<u8>(), any::<u8>(), any::<u16>());
    let begin = (any::<u8>(), focus, any::<[bool; 2]>());
    let round = (begin, vec(phase, WINDOWS), steps()).prop_map(
        |((seal, focus, [barrier, together]), phases, steps)| RoundDraft {
            seal,
            focus,
            barrier,
            together,
            phases,
            steps,
        },
    );
    // Tries come last: all else is what the seed gave before there were any.
    (any::<u8>(), windows(), vec(round, 1..5), trials()).prop_map(
        move |(ranks, windows, mut rounds, trials)| {
            let steps = rounds.iter_mut().flat_map(|round| &mut round.steps);
            for (steps, tried) in steps.zip(trials.iter().cycle()).filter(|_| tries) {
                steps.iter_mut().zip(tried).for_each(|(step, tried)| step.tried = *tried);
            }
            Draft { ranks, windows, rounds }
        },
    )
}

/// The draft of a seed, to be shrunk; whether some of its operations are tried.
pub fn draw(seed: u64, tries: bool) -> impl ValueTree<Value = Draft> {
    let mut bytes = [0; 32];
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        // Neighbouring seeds differ in many bits.
        let mixed = (seed ^ (i as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    drafts(tries).new_tree(&mut runner).expect("nothing is filtered")
}
