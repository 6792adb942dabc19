//! What is asked, once, and what is taken for an answer.

use super::{Book, GONE, Missing, NO_ADDRESS, OF_ANOTHER, PATIENCE, SILENT, card};
use crate::port::lock;
use rma_core::transport::WorldRank;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const PEER: WorldRank = WorldRank(3);

/// A book of addresses of two bytes, and what is asked of its directory.
fn book(is_there: bool) -> (Book, Arc<Mutex<Vec<u32>>>) {
    let queried = Arc::<Mutex<Vec<u32>>>::default();
    let its = queried.clone();
    let query = move |rank: WorldRank| {
        lock(&its).push(rank.0);
        is_there
    };
    (Book::new((1024, 2), Box::new(query), Arc::new(OnceLock::new())), queried)
}

#[test]
fn an_address_is_asked_for_once_and_kept() {
    let (book, queried) = book(true);
    assert_eq!(lock(&queried).len(), 0, "nothing at the start");
    for _ in 0..2 {
        assert_eq!(book.address(PEER), Err(Missing::Awaited));
    }
    book.told(PEER, &card(PEER, &[7, 8]));
    assert_eq!(&*book.address(PEER).unwrap(), [7, 8]);
    book.told(PEER, &card(PEER, &[1, 1]));
    assert_eq!(&*book.address(PEER).unwrap(), [7, 8], "nobody asked again");
    assert_eq!(*lock(&queried), [3]);
    let text = book.shown();
    assert!(text.contains("addresses of 1 of 1024 ranks are known, 1 were told that"), "{text}");
}

#[test]
fn what_is_no_address_of_the_rank_is_an_error() {
    let whole = card(PEER, &[7, 8]);
    let other = card(WorldRank(2), &[7, 8]);
    let cut = (0..whole.len()).map(|len| (whole[..len].to_vec(), NO_ADDRESS));
    let longer = (card(PEER, &[7, 8, 9]), NO_ADDRESS);
    for (told, why) in cut.chain([longer, (other, OF_ANOTHER)]) {
        let (book, _) = book(true);
        assert_eq!(book.address(PEER), Err(Missing::Awaited));
        book.told(PEER, &told);
        assert_eq!(book.address(PEER), Err(Missing::Unknown(why)), "{told:?}");
        let error = format!("{:?}", Missing::Unknown(why).submit(PEER));
        assert!(error.contains("rank 3") && error.contains(why), "{error}");
    }
}

#[test]
fn an_answer_without_a_query_is_not_kept() {
    let (book, queried) = book(true);
    book.told(PEER, &card(PEER, &[7, 8]));
    assert_eq!(book.address(PEER), Err(Missing::Awaited));
    assert_eq!(*lock(&queried), [3]);
}

#[test]
fn a_directory_that_is_gone_or_silent_is_an_error() {
    let (gone, _) = book(false);
    assert_eq!(gone.address(PEER), Err(Missing::Unknown(GONE)));
    let (silent, _) = book(true);
    let start = Instant::now();
    assert_eq!(silent.address_at(PEER, start), Err(Missing::Awaited));
    assert_eq!(silent.address_at(PEER, start + PATIENCE), Err(Missing::Awaited));
    let late = start + PATIENCE + Duration::from_millis(1);
    assert_eq!(silent.address_at(PEER, late), Err(Missing::Unknown(SILENT)));
    // A late answer is one.
    silent.told(PEER, &card(PEER, &[7, 8]));
    assert_eq!(&*silent.address_at(PEER, late).unwrap(), [7, 8]);
}

#[test]
fn a_peer_may_say_itself_where_it_is() {
    let (book, queried) = book(true);
    assert!(!book.learn(PEER, &[7]));
    assert!(book.learn(PEER, &[7, 8]));
    assert_eq!(&*book.address(PEER).unwrap(), [7, 8]);
    assert!(lock(&queried).is_empty());
    assert!(book.learn(PEER, &[1, 1]), "it is known already");
    assert_eq!(&*book.address(PEER).unwrap(), [7, 8]);
}
