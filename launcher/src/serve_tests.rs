use super::*;
use crate::Client;
use crate::start::{Settings, StartError};
use std::sync::mpsc::{Receiver, channel};

/// A server of ranks on those nodes, and how ranks reach it; word comes when it ends the job.
fn server(nodes: Vec<Range<u32>>) -> (Served, impl Fn(u32) -> Settings, Receiver<()>) {
    let door = Door::open(nodes).unwrap();
    let (bootstrap, secret) = (door.address().unwrap(), door.secret());
    let (sender, aborted) = channel();
    let abort = move || sender.send(()).unwrap();
    let served = door.serve(Box::new(abort)).unwrap();
    let settings = move |rank| Settings { bootstrap, rank, secret: Secret(secret), bulletin: None };
    (served, settings, aborted)
}

fn node(ranks: Range<u32>) -> Vec<Range<u32>> {
    std::iter::once(ranks).collect()
}

/// Joins as all of these ranks at once: some wait for others.
fn joined(ranks: Range<u32>, settings: impl Fn(u32) -> Settings) -> Vec<Client> {
    let joining = ranks.map(|rank| {
        let settings = settings(rank);
        std::thread::spawn(move || Client::greeted(&settings).unwrap())
    });
    let joining: Vec<_> = joining.collect();
    joining.into_iter().map(|client| client.join().unwrap()).collect()
}

#[test]
fn ranks_exchange_and_leave() {
    let (served, settings, aborted) = server(node(0..3));
    let clients = joined(0..3, settings);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let mine = client.job().rank.to_le_bytes();
                let said = client.all_gather(&mine).unwrap();
                assert_eq!(said, [0u32, 1, 2].map(|rank| (1, rank.to_le_bytes().to_vec())));
            });
        }
    });
    clients.iter().for_each(|client| client.leave(false));
    served.join();
    assert!(aborted.recv().is_err(), "nobody ended the job");
}

#[test]
fn another_secret_and_a_taken_rank_are_refused() {
    let (served, settings, _aborted) = server(node(0..1));
    let wrong = Settings { secret: Secret([1; 32]), ..settings(0) };
    let refused = Client::greeted(&wrong).unwrap_err();
    assert!(matches!(refused, StartError::Unknown { rank: 0, .. }), "{refused}");
    let client = Client::greeted(&settings(0)).unwrap();
    for (rank, why) in [(0, Refusal::RankTaken), (7, Refusal::RankOutOfRange { size: 1 })] {
        let refused = Client::greeted(&settings(rank)).unwrap_err();
        let StartError::Refused { why: said, .. } = refused else { panic!("{refused}") };
        assert_eq!(said, why);
    }
    client.leave(false);
    served.join();
}

#[test]
fn a_rank_that_is_lost_ends_exchanges_and_then_the_job() {
    let (served, settings, aborted) = server(node(0..2));
    let mut clients = joined(0..2, settings);
    drop(clients.pop());
    let error = clients[0].all_gather(b"mine").unwrap_err();
    assert!(matches!(error, StartError::Broken { rank: 1 }), "{error}");
    aborted.recv().unwrap();
    served.join();
}

#[test]
fn nodes_hear_of_each_other() {
    let (served, settings, _aborted) = server(vec![0..2, 2..3]);
    let clients = joined(0..3, settings);
    let hosts = clients.iter().map(|client| client.job().host.clone().unwrap());
    let hosts: Vec<_> = hosts.map(|host| (host.range(), host.address)).collect();
    let here = "127.0.0.1".to_owned();
    assert_eq!(hosts, [(0..2, here.clone()), (0..2, here.clone()), (2..3, here)]);
    assert_eq!(clients[0].job().config[0].1, "ofi");
    let (sender, gone) = channel();
    clients[2].on_gone(move |ranks, fate| sender.send((ranks, fate)).unwrap());
    clients[1].leave(false);
    clients[1].departed(Fate::Holding);
    assert_eq!(gone.recv().unwrap(), (1..2, Fate::Holding));
    clients[0].leave(true);
    assert_eq!(gone.recv().unwrap(), (0..1, Fate::Failed));
    clients[2].leave(true);
    drop(clients);
    served.join();
}

#[test]
fn strangers_hold_up_no_rank() {
    let (served, settings, _aborted) = server(node(0..1));
    let port = settings(0).bootstrap;
    let mut idle: Vec<TcpStream> =
        (0..STRANGERS * 2).map(|_| TcpStream::connect(port).unwrap()).collect();
    let mut flood = TcpStream::connect(port).unwrap();
    // What is refused is refused soon; the rest may find the connection closed.
    let _ = flood.write_all(&[0xff; 1 << 20]);
    let client = joined(0..1, settings).pop().unwrap();
    assert_eq!(client.all_gather(b"x").unwrap(), [(1, b"x".to_vec())]);
    let mut end = Vec::new();
    // The oldest was told a challenge at most, and then dropped.
    let _ = idle[0].read_to_end(&mut end);
    client.leave(false);
    served.join();
}

/// A rank that has said hello, and waits for its part of the job.
fn said_hello(settings: &Settings) -> (TcpStream, Sealer, Opener) {
    let stream = TcpStream::connect(settings.bootstrap).unwrap();
    let challenge: Challenge = wire::read(&stream, HELLO_MAX).unwrap();
    let rank = settings.rank;
    let mut hello = Hello { version: wire::VERSION, rank, pid: 1, nonce: [7; 32], mac: [0; 32] };
    hello.mac = wire::rank_mac(&settings.secret.0, &challenge.nonce, &hello).0;
    wire::write(&stream, &hello).unwrap();
    let nonces = [&challenge.nonce, &hello.nonce];
    let seals = seal::pair(&settings.secret.0, With::Rank(rank), nonces, Side::Other);
    (stream, seals.0, seals.1)
}

#[test]
fn messages_to_rank_0_that_are_sent_again_or_made_up_are_refused() {
    let gather = |mine: &[u8]| wire::encode(&ToLauncher::Gather { mine: mine.to_vec() }).unwrap();
    let (served, settings, aborted) = server(node(0..1));
    let (mut rank, mut sealer, mut opener) = said_hello(&settings(0));
    let welcome: Reply = wire::read(&rank, FRAME_MAX).unwrap();
    assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
    let first = sealer.seal(gather(b"first"));
    let second = sealer.seal(gather(b"second"));
    let mut answer =
        |rank: &mut TcpStream| seal::read::<FromLauncher>(rank, FRAME_MAX, &mut opener);
    for (said, told) in [(vec![&first], "first"), (vec![&first, &second, &first], "second")] {
        said.into_iter().for_each(|frame| rank.write_all(frame).unwrap());
        let gathered = FromLauncher::Gathered { runs: vec![(1, told.into())] };
        assert_eq!(answer(&mut rank).unwrap(), gathered);
    }
    // Of no key.
    rank.write_all(&gather(b"third")).unwrap();
    assert!(wire::is_end(&answer(&mut rank).unwrap_err()));
    served.join();
    assert!(aborted.recv().is_err(), "no other rank is there whose job is to be ended");
}

/// A rank that waits until it is known how ranks of other nodes reach its host.
#[test]
fn strangers_drive_out_no_rank_that_waits() {
    let (served, settings, aborted) = server(vec![0..1, 1..2]);
    let bootstrap = settings(0).bootstrap;
    let (waits, mut sealer, _) = said_hello(&settings(0));
    // Heard after that.
    let again = Client::greeted(&settings(0)).unwrap_err();
    assert!(matches!(again, StartError::Refused { why: Refusal::RankTaken, .. }), "{again}");
    let mut idle: Vec<TcpStream> =
        (0..STRANGERS * 2).map(|_| TcpStream::connect(bootstrap).unwrap()).collect();
    // The oldest was told a challenge, and then dropped.
    let _ = idle[0].read_to_end(&mut Vec::new());
    let other = joined(1..2, &settings).pop().unwrap();
    let reply: Reply = wire::read(&waits, FRAME_MAX).unwrap();
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    let left = wire::encode(&ToLauncher::Leave { failed: false, missed: None }).unwrap();
    (&waits).write_all(&sealer.seal(left)).unwrap();
    other.leave(false);
    drop((waits, other));
    served.join();
    assert!(aborted.recv().is_err(), "nobody ended the job");
}
