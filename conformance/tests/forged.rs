//! Forged messages: the committed corpus of the fuzz target, and random inputs.
use proptest::prelude::*;
use rma_conformance::forged::{self, ANSWERS, CUT, FITTING, HONEST, Message, RELATIVE, WITHIN};
use rma_conformance::forged::{kind, kinds};
use rma_core::transport::WorldRank;
use rma_core::{Config, Universe};
use rma_transport_sim::{NetConfig, SimFailure};
use std::fs;
use std::path::PathBuf;

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

/// The basic type of eight bytes that `u64` is.
const U64: u8 = 2;

/// Messages of that kind that rank 0 acts upon, about one of the first three objects: in the order
/// in which it is to hear them. Of an answer, one for each slot that it may be for.
fn valid(name: &str, object: u8) -> Vec<Message> {
    let word = 7u64.to_le_bytes();
    // Eight bytes in the middle of the part.
    let row = [&8u64.to_le_bytes()[..], &8i64.to_le_bytes(), &8u32.to_le_bytes(), &[1, 0, 0, 0]];
    let row = row.concat();
    // In a dynamic window, offsets are addresses.
    let (relative, within) = if object == 2 { (RELATIVE, WITHIN) } else { (0, 0) };
    let plain =
        Message { kind: kind(name), object, basic: U64, slot: object.into(), ..Message::default() };
    let whole = |body: &[u8]| {
        let body = body.to_vec();
        Message { length: 8, flags: relative, body, ..plain.clone() }
    };
    let rows = |data: &[u8]| {
        let body = [&row, data].concat();
        Message { length: 8, flags: within, tag: 1, body, ..plain.clone() }
    };
    let fitting = |body: &[u8]| Message { flags: FITTING, body: body.to_vec(), ..plain.clone() };
    match name {
        "Collective" => vec![Message { slot: 0, ..fitting(&word) }],
        "Put" | "Accumulate" | "GetAccumulate" => vec![whole(&word), rows(&word)],
        "Get" => vec![whole(&[]), rows(&[])],
        "CompareSwap" => vec![whole(&[[0; 8], word].concat())],
        // What gives it back names that slot, as it is sent.
        "Unlock" => vec![Message { slot: plain.slot | 1 << 31, ..plain }],
        "Query" => vec![Message { flags: WITHIN, ..whole(&[0; 8]) }],
        "Rts" => vec![Message { length: 64, ..whole(&[]) }],
        "PutData" => vec![fitting(&[5; 64])],
        "Card" => vec![Message { length: 64, ..whole(&[]) }],
        "Lock" | "Pass" | "Cancel" | "Post" | "Complete" => vec![plain],
        "Done" => slots(&Message { length: 8, ..plain }),
        "Data" => slots(&fitting(&[5; 8])),
        "Value" => slots(&Message { length: 1, ..plain }),
        "Cts" => slots(&Message { length: 400, ..plain }),
        "Granted" => (0..20).map(|slot| Message { slot, ..plain.clone() }).collect(),
        _ => panic!("{name} has no valid message: add one, which rank 0 accepts"),
    }
}

/// For each slot that rank 0 may use first: four, and few uses of each.
fn slots(answer: &Message) -> Vec<Message> {
    let slots = (1..=5).flat_map(|age| (0..4).map(move |at| age << 32 | at));
    slots.map(|slot| Message { slot, ..answer.clone() }).collect()
}

/// The objects that a message of that kind can be about.
fn objects(name: &str) -> &'static [u8] {
    match name {
        "Query" => &[2],
        "Complete" => &[0],
        _ if ANSWERS.contains(&name) => &[0],
        _ => &[0, 1, 2],
    }
}

/// Valid messages of that kind, about all that they can be about, after those that they need.
fn stages(name: &str) -> Vec<Vec<Message>> {
    let of = |name| objects(name).iter().flat_map(|object| valid(name, *object)).collect();
    let first = match name {
        "Unlock" => Some("Lock"),
        "Cancel" | "PutData" => Some("Rts"),
        _ => None,
    };
    first.into_iter().chain([name]).map(of).collect()
}

/// One input of valid messages and one of broken ones, for every kind.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for (number, name) in kinds() {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        // Of the many answers, only the first is followed by honest operations.
        let rest = if ANSWERS.contains(&name) { 0 } else { HONEST };
        for (at, message) in stages(name).concat().into_iter().enumerate() {
            let flags = message.flags | if at == 0 { HONEST } else { rest };
            Message { flags, ..message }.encode(&mut good);
        }
        let message = valid(name, objects(name)[0]).swap_remove(0);
        let message = Message { flags: message.flags | HONEST, ..message };
        Message { offset: u64::MAX - 3, ..message.clone() }.encode(&mut bad);
        Message { offset: 63, ..message.clone() }.encode(&mut bad);
        Message { length: u64::MAX, flags: HONEST, ..message.clone() }.encode(&mut bad);
        Message { length: 0, tag: u32::MAX, ..message.clone() }.encode(&mut bad);
        Message { basic: 255, op: 255, status: 255, ..message.clone() }.encode(&mut bad);
        Message { object: 2, offset: 57, flags: RELATIVE, ..message.clone() }.encode(&mut bad);
        Message { object: 3, ..message.clone() }.encode(&mut bad);
        Message { object: 4, body: vec![255; 41], ..message.clone() }.encode(&mut bad);
        Message { tag: 39, flags: CUT, ..message }.encode(&mut bad);
        inputs.push((format!("kind-{number:02}-valid"), good));
        inputs.push((format!("kind-{number:02}-broken"), bad));
    }
    inputs
}

/// A kind that exists has messages here, and rank 0 does what they say.
#[test]
fn valid_messages_are_accepted() {
    for (_, name) in kinds() {
        for seed in 0..if cfg!(miri) { 1 } else { 4 } {
            run(seed, forged::config, |universe| forged::accept(universe, name, &stages(name)))
                .unwrap_or_else(|failure| panic!("{name}, seed {seed}: {failure}"));
        }
    }
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
    let made: Vec<_> = seeds().into_iter().map(|(name, _)| corpus().join(name)).collect();
    let is_made =
        |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"kind-");
    assert!(made.iter().all(|path| files.contains(path)));
    let stale = files.iter().find(|path| is_made(path) && !made.contains(path));
    assert_eq!(stale, None, "of no kind that exists: remove it");
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
    let last = kinds().map(|(number, _)| number).max().unwrap();
    let kinds = (0..=last + 1, 0..16u8, 0..26u8, 0..5u8, 0..5u8, 0..32u8);
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
