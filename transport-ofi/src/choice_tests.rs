use super::{Wanted, choose, hides};
use crate::{Keys, Offer, OfiError, Progress};

fn offer(provider: &str, domain: &str, has_rma: bool) -> Offer {
    Offer {
        provider: provider.to_string(),
        fabric: String::new(),
        domain: domain.to_string(),
        has_rma,
        has_atomics: false,
        keys: Keys::default(),
        progress: Progress::Manual,
        max_message: usize::MAX,
        inject: 64,
    }
}

/// Names and order of Debian's libfabric 1.17.0 on a host with Ethernet.
fn debian() -> Vec<Offer> {
    let on_ip = ["tcp;ofi_rxm", "net", "net;ofi_rxm", "udp;ofi_rxd"];
    let mut offers: Vec<Offer> = on_ip
        .iter()
        .flat_map(|name| [offer(name, "eth0", true), offer(name, "lo", true)])
        .collect();
    offers.push(offer("shm", "shm", true));
    offers.push(offer("sockets", "eth0", true));
    offers
}

fn named(provider: &str) -> Wanted<'_> {
    Wanted { provider: Some(provider), ..Wanted::default() }
}

fn chosen(offers: &[Offer]) -> &str {
    &choose(offers, &Wanted::default()).unwrap().provider
}

#[test]
fn hardware_wins_over_tcp_wherever_it_stands() {
    assert_eq!(chosen(&debian()), "tcp;ofi_rxm");
    for hardware in ["cxi", "efa", "opx", "psm2", "verbs;ofi_rxm", "psm3"] {
        let mut offers = debian();
        offers.push(offer(hardware, "nic", true));
        assert_eq!(chosen(&offers), hardware);
    }
    let native = [offer("sockets", "lo", true), offer("tcp", "lo", true)];
    assert_eq!(chosen(&native), "tcp");
}

#[test]
fn among_equals_the_one_with_rma_wins_then_the_first() {
    let offers = [offer("efa", "a", false), offer("efa", "b", true), offer("efa", "c", true)];
    assert_eq!(choose(&offers, &Wanted::default()).unwrap().domain, "b");
}

#[test]
fn a_provider_is_called_by_its_name_or_its_core() {
    for name in ["udp;ofi_rxd", "udp", "UDP"] {
        assert_eq!(choose(&debian(), &named(name)).unwrap().provider, "udp;ofi_rxd");
    }
    assert_eq!(choose(&debian(), &named("shm")).unwrap().provider, "shm");
    assert!(choose(&debian(), &named("ofi_rxm")).is_err());
}

#[test]
fn an_unknown_name_hears_what_there_is() {
    let error = choose(&debian(), &named("efa")).unwrap_err();
    let text = "there is no provider \"efa\" on this host: libfabric offers tcp;ofi_rxm, net, \
                net;ofi_rxm, udp;ofi_rxd, shm, sockets";
    assert_eq!(error.to_string(), text);
}

#[test]
fn shm_alone_reaches_no_other_host() {
    let error = choose(&[offer("shm", "shm", true)], &Wanted::default()).unwrap_err();
    assert_eq!(error, OfiError::None { offered: "shm".to_string() });
    let error = choose(&[], &Wanted::default()).unwrap_err();
    assert_eq!(error, OfiError::None { offered: "none".to_string() });
}

#[test]
fn needed_rma_is_had_or_an_error() {
    let offers = [offer("efa", "a", false), offer("tcp;ofi_rxm", "lo", true)];
    let wanted = Wanted { needs_rma: true, ..Wanted::default() };
    assert_eq!(choose(&offers, &wanted).unwrap().provider, "tcp;ofi_rxm");
    assert_eq!(chosen(&offers), "efa");
    let wanted = Wanted { provider: Some("efa"), ..wanted };
    let error = choose(&offers, &wanted).unwrap_err();
    let offered = "tcp;ofi_rxm".to_string();
    assert_eq!(error, OfiError::NoRma { wanted: "efa".to_string(), offered });
}

#[test]
fn a_variable_that_hides_what_is_asked_for_is_named() {
    let offers = [offer("shm", "shm", true)];
    let wanted = Wanted { filter: Some("shm"), ..named("tcp") };
    let error = choose(&offers, &wanted).unwrap_err();
    assert!(error.to_string().starts_with("FI_PROVIDER=\"shm\" hides provider \"tcp\""), "{error}");
    let wanted = Wanted { filter: Some("shm,tcp"), ..named("tcp") };
    assert!(matches!(choose(&offers, &wanted), Err(OfiError::Unknown { .. })));
}

#[test]
fn a_list_names_cores_and_a_negative_one_any_layer() {
    assert!(!hides("", "tcp") && !hides("^", "tcp"));
    assert!(!hides("tcp, shm", "tcp;ofi_rxm") && hides("sockets", "tcp;ofi_rxm"));
    assert!(!hides("tcp;ofi_rxm", "tcp"));
    assert!(hides("^TCP", "tcp;ofi_rxm") && hides("^shm,ofi_rxm", "tcp;ofi_rxm"));
    assert!(hides("^tcp;ofi_rxm", "tcp;ofi_rxm") && !hides("^tcp;ofi_rxm", "tcp"));
    assert!(!hides("^shm", "tcp"));
}

#[test]
fn atomics_that_were_never_tried_are_not_taken() {
    for (provider, its_own) in [("sockets", true), ("cxi", false), ("tcp;ofi_rxm", false)] {
        let offer = Offer { has_atomics: true, ..offer(provider, "nic", true) };
        assert_eq!(offer.has_own_atomics(), its_own, "{provider}");
    }
    assert!(!offer("sockets", "nic", true).has_own_atomics());
}
