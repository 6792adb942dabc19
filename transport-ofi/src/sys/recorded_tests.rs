//! Which provider is taken of those that hosts with hardware have, and how it is opened, from
//! recorded answers of `fi_getinfo`; docs/networks.md says the same.

use super::layout::pretended::{Record, Script, library, records};
use super::opened::{Caps, Exposed, Opened, Passive};
use crate::{Libfabric, Offer, OfiError, Wanted, choose};
use std::sync::Arc;

const EFA: &str = include_str!("recorded/efa.txt");
const CXI: &str = include_str!("recorded/cxi.txt");
const VERBS: &str = include_str!("recorded/verbs.txt");
const PSM3: &str = include_str!("recorded/psm3.txt");
const OPX: &str = include_str!("recorded/opx.txt");
const TCP: &str = include_str!("recorded/tcp.txt");
const SOCKETS: &str = include_str!("recorded/sockets.txt");
const UDP: &str = include_str!("recorded/udp.txt");
const SHM: &str = include_str!("recorded/shm.txt");

/// A host with these, in that order.
fn host(texts: &[&str]) -> (Libfabric, &'static Script, Vec<Offer>) {
    let found: Vec<Record> = texts.iter().flat_map(|text| records(text)).collect();
    assert_eq!(found.len(), texts.len());
    let (library, script) = library(found);
    let offers = library.offers().unwrap();
    (library, script, offers)
}

/// How a provider is opened with its memory.
fn open((library, offer): (&Libfabric, &Offer)) -> Opened {
    let opened = Opened::open(library, offer, None, Caps::Memory).unwrap();
    opened.check_memory(Caps::Memory).unwrap();
    opened
}

/// The line of the table in docs/networks.md for a host that has that provider beside `tcp`.
fn line(text: &str) -> String {
    let (library, _, offers) = host(&[TCP, UDP, SOCKETS, SHM, text]);
    let offer = choose(&offers, &Wanted::default()).unwrap();
    let opened = open((&library, offer));
    let keys = match opened.key_bits() {
        _ if opened.chooses_keys() => "the provider's".to_owned(),
        bits => format!("{bits} random bits"),
    };
    let places = if opened.counts_by_address() { "addresses" } else { "offsets" };
    let local = if opened.wants_registered() { "slots only" } else { "slots, large ones directly" };
    let atomics = if offer.has_own_atomics() { "its own" } else { "by message" };
    let Offer { provider, .. } = offer;
    format!("| `{provider}` | {keys} | {places} | {local} | {atomics} |")
}

#[test]
fn hardware_is_taken_before_tcp_as_the_table_says() {
    let tables =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/networks.md"));
    // A package of this crate alone has no documents.
    let Ok(tables) = tables else { return };
    for text in [EFA, CXI, VERBS, PSM3, OPX] {
        let line = line(text);
        assert!(tables.contains(&line), "docs/networks.md lacks\n{line}");
    }
    for (texts, expected) in [
        (&[UDP, SOCKETS, TCP, SHM][..], "tcp;ofi_rxm"),
        (&[UDP, SOCKETS, SHM], "sockets"),
        (&[UDP, SHM], "udp;ofi_rxd"),
        // The first in order of preference, not of libfabric.
        (&[PSM3, VERBS, EFA, CXI, OPX], "cxi"),
        (&[PSM3, VERBS, EFA, OPX], "efa"),
        (&[PSM3, VERBS, OPX], "opx"),
        (&[PSM3, VERBS], "verbs;ofi_rxm"),
    ] {
        let (_, _, offers) = host(texts);
        assert_eq!(choose(&offers, &Wanted::default()).unwrap().provider, expected);
    }
    let (_, _, offers) = host(&[SHM]);
    assert!(matches!(choose(&offers, &Wanted::default()), Err(OfiError::None { .. })));
    let by_name = Wanted { provider: Some("shm"), needs_rma: true, ..Wanted::default() };
    assert_eq!(choose(&offers, &by_name).unwrap().provider, "shm");
}

/// Each record is read whole: nothing that the choice or the way of opening hangs on is missing.
#[test]
fn records_are_read_whole() {
    for (text, keys, auto) in [
        (EFA, [true, true, true], true),
        (CXI, [false, false, false], false),
        (VERBS, [true, true, true], false),
        (PSM3, [false, false, false], true),
        (OPX, [false, false, false], false),
        (TCP, [false, false, false], false),
        (SOCKETS, [false, false, false], true),
        (UDP, [false, false, false], false),
        (SHM, [true, false, false], false),
    ] {
        let (_, _, offers) = host(&[text]);
        let [offer] = &*offers else { panic!("{offers:?}") };
        let its = offer.keys;
        assert_eq!([its.by_address, its.by_provider, its.local], keys, "{offer:?}");
        assert_eq!(offer.progress == crate::Progress::Auto, auto, "{offer:?}");
        assert!(offer.has_rma && offer.max_message >= 1 << 30 && offer.inject > 0, "{offer:?}");
        assert_eq!(offer.has_atomics, !text.contains("tcp;ofi_rxm"), "{offer:?}");
        assert!(!offer.domain.is_empty() && !offer.fabric.is_empty(), "{offer:?}");
    }
}

/// A provider that has more modes than rma can do is not offered, by libfabric itself.
#[test]
fn what_rma_cannot_do_is_not_offered() {
    for (from, to) in [
        ("mode: [  ]\n    fi_tx_attr", "mode: [ FI_MSG_PREFIX ]\n    fi_tx_attr"),
        ("FI_MR_LOCAL,", "FI_MR_LOCAL, FI_MR_RAW,"),
        ("FI_EP_RDM", "FI_EP_DGRAM"),
        ("FI_MSG,", "FI_COLLECTIVE,"),
    ] {
        let text = EFA.replace(from, to);
        assert_ne!(text, EFA, "{from}");
        let (_, _, offers) = host(&[&text, TCP]);
        assert_eq!(choose(&offers, &Wanted::default()).unwrap().provider, "tcp;ofi_rxm", "{to}");
    }
    let without = EFA.replace("FI_RMA,", "").replace("FI_ATOMIC,", "");
    let (_, _, offers) = host(&[&without]);
    let needs = Wanted { needs_rma: true, ..Wanted::default() };
    assert!(matches!(choose(&offers, &needs), Err(OfiError::NoRma { .. })));
    assert!(!choose(&offers, &Wanted::default()).unwrap().has_rma);
}

/// Memory of each: keys as long as the provider takes them, and bound to an endpoint where that is
/// wanted, before peers may come.
#[test]
fn keys_are_as_providers_take_them() {
    const KEY: u64 = 0xfedc_ba98_7654_3210;
    for (text, key, calls) in [
        (CXI, 0x7654_3210, &["bind region", "enable region"][..]),
        (
            &*CXI.replace("mr_key_size: 4", "mr_key_size: 2"),
            0x3210,
            &["bind region", "enable region"],
        ),
        (PSM3, KEY, &[]),
        (TCP, KEY, &[]),
    ] {
        let (library, script, offers) = host(&[text]);
        let opened = open((&library, &offers[0]));
        let passive = Arc::new(Passive::new(&opened, opened.endpoint((1, 64)).unwrap().0));
        let before = script.calls().len();
        let exposed = Exposed::fresh(&opened, passive.clone(), 4096, KEY).unwrap();
        assert_eq!((exposed.key(), script.keys().last()), ((key, 0), Some(&key)), "{text}");
        assert_eq!(script.calls()[before..], *calls, "{text}");
        drop(exposed);
        drop(passive);
        let closed = &script.calls()[before + calls.len()..][..2];
        assert_eq!(closed, ["close region", "close endpoint"], "{text}");
    }
}

/// A provider that takes our keys, or chooses them if it may, is not let.
#[test]
fn our_keys_come_first() {
    let provider = format!("{CXI}\n{}", CXI.replace("FI_MR_ALLOCATED", "FI_MR_PROV_KEY"));
    let (library, _) = library(records(&provider));
    let offers = library.offers().unwrap();
    assert!(!open((&library, &offers[0])).chooses_keys());
    let (library, _) = self::library(records(VERBS));
    let offers = library.offers().unwrap();
    let opened = open((&library, &offers[0]));
    assert!(opened.chooses_keys() && opened.counts_by_address() && opened.wants_registered());
}

#[test]
fn slots_that_an_endpoint_would_have_to_register_are_refused() {
    let text = VERBS.replace("FI_MR_LOCAL,", "FI_MR_LOCAL, FI_MR_ENDPOINT,");
    let (library, _, offers) = host(&[&text]);
    let refused = Opened::open(&library, &offers[0], None, Caps::Memory).err().unwrap();
    assert!(refused.to_string().contains("registered for each endpoint"), "{refused}");
    let text = PSM3.replace("mr_mode: [  ]", "mr_mode: [ FI_MR_PROV_KEY ]");
    let (library, _, offers) = host(&[&text]);
    let opened = Opened::open(&library, &offers[0], None, Caps::Memory).unwrap();
    let refused = opened.check_memory(Caps::Memory).unwrap_err().to_string();
    assert!(refused.contains("chooses keys"), "{refused}");
}
