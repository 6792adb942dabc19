//! Forged messages: the committed corpus of the fuzz target, and random inputs.
use proptest::prelude::*;
use rma_conformance::forged::{self, CUT, FITTING, HONEST, Message, RELATIVE};
use rma_core::transport::WorldRank;
use rma_core::{Config, Universe};
use rma_transport_sim::{NetConfig, SimFailure};
use std::fs;
use std::path::PathBuf;

/// Kinds of messages, from 1.
const KINDS: u8 = 24;

fn run(
    seed: u64,
    config: fn(WorldRank) -> Config,
    body: impl Fn(Universe) + Sync,
) -> Result<Vec<()>, SimFailure> {
    let net = NetConfig { step_max: 20_000_000, ..NetConfig::new(2, seed) };
    rma_transport_sim::run(&net, |sim| {
        let config = config(sim.rank());
        body(Universe::new(sim, config).expect("the world can be made"));
    })
}

fn play(input: &[u8], seed: u64) {
    let run = run(seed, forged::config, |universe| forged::play(universe, input));
    run.unwrap_or_else(|failure| panic!("{failure}\n{:#?}", forged::decode(input)));
}

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/engine")
}

/// Something of that kind that rank 0 acts upon, where a single message can be that.
fn valid(kind: u8) -> Message {
    let word = 7u64.to_le_bytes();
    // Eight bytes in the middle of the part.
    let row = [&8u64.to_le_bytes()[..], &8i64.to_le_bytes(), &8u32.to_le_bytes(), &[1, 0, 0, 0]];
    let body = match kind {
        2 | 4 | 6 | 15 | 20 => word.to_vec(),
        5 => [word, word].concat(),
        7 | 24 => [0; 8].to_vec(),
        16 | 22 | 23 => [&row.concat()[..], &word].concat(),
        17 => row.concat(),
        _ => Vec::new(),
    };
    let body = if kind == 6 { [0; 16].to_vec() } else { body };
    let length = if kind == 18 { 64 } else { 8 };
    let tag = u32::from(matches!(kind, 16 | 17 | 22 | 23));
    let slot = if matches!(kind, 10..=12 | 19) { 1 << 32 } else { 0 };
    let flags = HONEST | if kind == 1 { FITTING } else { 0 };
    Message { kind, length, tag, slot, body, flags, ..Message::default() }
}

/// One input of valid messages and one of broken ones, for every kind.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for kind in 1..=KINDS {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let message = valid(kind);
        for object in 0..3 {
            let flags = message.flags | if object == 2 { RELATIVE } else { 0 };
            Message { object, flags, ..message.clone() }.encode(&mut good);
        }
        if kind == 18 {
            // What was asked for, in one fragment.
            let body = vec![5; 64];
            Message { kind: 20, body, length: 64, flags: FITTING, ..message.clone() }
                .encode(&mut good);
        }
        Message { offset: u64::MAX - 3, ..message.clone() }.encode(&mut bad);
        Message { offset: 63, ..message.clone() }.encode(&mut bad);
        Message { length: u64::MAX, ..message.clone() }.encode(&mut bad);
        Message { length: 0, tag: u32::MAX, ..message.clone() }.encode(&mut bad);
        Message { basic: 255, op: 255, status: 255, ..message.clone() }.encode(&mut bad);
        Message { object: 2, offset: 57, flags: RELATIVE, ..message.clone() }.encode(&mut bad);
        Message { object: 3, ..message.clone() }.encode(&mut bad);
        Message { object: 4, body: vec![255; 41], ..message.clone() }.encode(&mut bad);
        Message { tag: 39, flags: CUT, ..message }.encode(&mut bad);
        inputs.push((format!("kind-{kind:02}-valid"), good));
        inputs.push((format!("kind-{kind:02}-broken"), bad));
    }
    inputs
}

/// `RMA_WRITE_CORPUS=1` writes the inputs that are made here; otherwise they are what is there.
#[test]
fn corpus_is_up_to_date() {
    let write = std::env::var_os("RMA_WRITE_CORPUS").is_some();
    for (name, input) in seeds() {
        let path = corpus().join(&name);
        if write {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &input).unwrap();
        }
        let there = fs::read(&path).unwrap_or_default();
        assert!(there == input, "{name} differs: run this test with RMA_WRITE_CORPUS=1");
    }
}

/// Every input of the corpus, those that the fuzzer found too.
#[test]
fn corpus_is_harmless() {
    let mut files: Vec<_> =
        fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 2 * usize::from(KINDS), "{} files", files.len());
    for path in files {
        println!("{}", path.display());
        let input = fs::read(path).unwrap();
        (0..4).for_each(|seed| play(&input, seed));
    }
}

/// What a rank keeps for collectives has its bounds, and says so.
#[test]
fn a_flood_of_payloads_is_bounded() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        run(seed, forged::flooded, forged::flood)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// A message that the parts, and the words of the windows, are in reach of.
fn message() -> impl Strategy<Value = Message> {
    let kinds = (0..=KINDS + 1, 0..16u8, 0..16u8, 0..5u8, 0..5u8, 0..16u8);
    let number = || prop_oneof![0..80u64, Just(1 << 32), any::<u64>()];
    let slot = prop_oneof![(1..20u64, 0..4u64).prop_map(|(age, at)| age << 32 | at), number()];
    let body = proptest::collection::vec(any::<u8>(), 0..100);
    (kinds, 0..9u32, number(), number(), slot, body).prop_map(
        |(first, tag, offset, length, slot, body)| {
            let (kind, op, basic, status, object, flags) = first;
            Message { kind, op, basic, status, object, flags, tag, offset, length, slot, body }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_harmless(
        input in proptest::collection::vec(any::<u8>(), 0..600),
        seed in any::<u64>(),
    ) {
        play(&input, seed);
    }

    #[test]
    fn messages_that_nearly_make_sense_are_harmless(
        messages in proptest::collection::vec(message(), 0..40),
        seed in any::<u64>(),
    ) {
        let mut input = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut input));
        prop_assert_eq!(&forged::decode(&input), &messages);
        play(&input, seed);
    }
}
