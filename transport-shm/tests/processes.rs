//! Ranks as processes: the test runs itself again.

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::{Children, child, join_as_child, listen, say, submit, wait_until, word};
use rma_core::transport::{
    Descriptor, Members, Messages, PeerState, Shared, Sleep, SubmitError, WorldRank,
};
use rma_transport_shm::Shm;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Sends every rank a descriptor and returns what the others sent.
fn all_descriptors(shm: &Shm, own: Descriptor) -> Vec<Descriptor> {
    let mut all = vec![None; shm.size() as usize];
    for rank in (0..shm.size()).map(WorldRank) {
        assert_eq!(submit(shm, rank, &own.0, b""), Ok(()));
    }
    wait_until(shm, || {
        shm.poll(&mut |from, bytes| {
            all[from.0 as usize] = Some(Descriptor(bytes.try_into().unwrap()));
        });
        all.iter().all(Option::is_some)
    });
    all.into_iter().flatten().collect()
}

fn child_shares_memory(place: (u32, u32)) {
    let shm = join_as_child(place);
    for len in [64, 1 << 20] {
        let region = shm.allocate(len, 64).unwrap();
        let descriptors = all_descriptors(&shm, region.descriptor());
        let imports: Vec<_> = (0..)
            .map(WorldRank)
            .zip(&descriptors)
            .map(|(rank, descriptor)| shm.import(rank, core::slice::from_ref(descriptor)).unwrap())
            .collect();
        for (rank, import) in imports.iter().enumerate() {
            for _ in 0..1_000 {
                word(&**import).fetch_add(1, SeqCst);
            }
            shm.ring(WorldRank(rank as u32));
        }
        let all = 1_000 * u64::from(shm.size());
        wait_until(&shm, || word(&*region).load(SeqCst) == all);
        // No rank moves on to the next region, and its messages, before all are done here.
        say("done");
        assert_eq!(listen(), "go on");
    }
}

#[test]
fn processes_share_memory_and_messages() {
    if let Some(place) = child() {
        return child_shares_memory(place);
    }
    let mut children = Children::start("processes_share_memory_and_messages", 3);
    children.join();
    for _ in 0..2 {
        (0..3).for_each(|rank| assert_eq!(children.hear(rank), "done"));
        (0..3).for_each(|rank| children.tell(rank, "go on"));
    }
    children.expect_success();
}

fn child_survives_a_kill(place: (u32, u32)) {
    let shm = join_as_child(place);
    // Rank 1 is mapped by rank 0 before it dies, and only looked for afterwards by rank 2.
    if place.0 == 0 {
        assert_eq!(submit(&shm, WorldRank(1), b"", b""), Ok(()));
        assert_eq!(shm.peer_state(WorldRank(1)), PeerState::Alive);
    }
    say("ready");
    assert_eq!(listen(), "killed");
    wait_until(&shm, || shm.peer_state(WorldRank(1)) == PeerState::Failed);
    assert_eq!(shm.failed(), Some(WorldRank(1)));
    assert_eq!(submit(&shm, WorldRank(1), b"", b""), Err(SubmitError::PeerFailed(WorldRank(1))));
    shm.ring(WorldRank(1));
    say("seen");
    assert_eq!(listen(), "leave");
}

#[test]
fn a_killed_process_is_noticed() {
    if let Some(place) = child() {
        return child_survives_a_kill(place);
    }
    let mut children = Children::start("a_killed_process_is_noticed", 3);
    children.join();
    (0..3).for_each(|rank| assert_eq!(children.hear(rank), "ready"));
    // Not waited for yet: it is a zombie while the others look.
    children.0[1].0.kill().unwrap();
    [0, 2].iter().for_each(|&rank| children.tell(rank, "killed"));
    [0, 2].iter().for_each(|&rank| assert_eq!(children.hear(rank), "seen"));
    [0, 2].iter().for_each(|&rank| children.tell(rank, "leave"));
    children.0.remove(1).0.wait().unwrap();
    children.expect_success();
}

fn child_has_no_descriptors(place: (u32, u32)) {
    let shm = join_as_child(place);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let rest = || std::fs::File::open("/dev/null").ok();
    let _held: Vec<_> = std::iter::from_fn(rest).collect();
    let peer = WorldRank(1 - place.0);
    assert_eq!(shm.peer_state(peer), PeerState::Alive, "it is there, and cannot be mapped");
    say("ready");
    assert_eq!(listen(), "killed");
    wait_until(&shm, || shm.peer_state(peer) == PeerState::Failed);
    assert_eq!(shm.failed(), Some(peer));
}

#[test]
fn a_killed_process_is_noticed_without_descriptors() {
    if let Some(place) = child() {
        return child_has_no_descriptors(place);
    }
    let mut children = Children::start("a_killed_process_is_noticed_without_descriptors", 2);
    children.join();
    (0..2).for_each(|rank| assert_eq!(children.hear(rank), "ready"));
    children.0[1].0.kill().unwrap();
    children.tell(0, "killed");
    // Not waited for: it is a zombie, as the launcher leaves it.
    let killed = children.0.remove(1);
    children.expect_success();
    drop(killed);
}
