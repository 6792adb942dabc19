//! What is asked, once, and what is taken for an answer.

use super::{Book, GONE, Missing, NO_ADDRESS, OF_ANOTHER, card};
use crate::port::lock;
use rma_core::transport::WorldRank;
use std::sync::{Arc, Mutex, OnceLock};

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

/// Also where it has ended after a query, which it does not answer: no wait is without an end.
#[test]
fn a_directory_that_is_gone_is_an_error() {
    let (gone, _) = book(false);
    assert_eq!(gone.address(PEER), Err(Missing::Unknown(GONE)));
    let (ended, _) = book(true);
    let known = WorldRank(4);
    assert!(ended.learn(known, &[7, 8]));
    assert_eq!(ended.address(PEER), Err(Missing::Awaited));
    ended.end();
    assert_eq!(ended.address(PEER), Err(Missing::Unknown(GONE)));
    assert_eq!(&*ended.address(known).unwrap(), [7, 8], "what is known stays so");
    assert!(ended.learn(PEER, &[1, 2]), "it says it itself");
    assert_eq!(&*ended.address(PEER).unwrap(), [1, 2]);
}

/// A directory that cannot be asked, while the peer says where it is, and a thread looks, too.
#[test]
fn what_a_peer_says_meanwhile_is_kept() {
    let (book, seen) = (Arc::<OnceLock<Arc<Book>>>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (its, sees) = (book.clone(), seen.clone());
    let query = move |peer: WorldRank| {
        let book = its.get().unwrap();
        lock(&sees).push(book.address(peer));
        assert!(book.learn(peer, &[7, 8]));
        false
    };
    let made = Book::new((1024, 2), Box::new(query), Arc::new(OnceLock::new()));
    let book = book.get_or_init(|| Arc::new(made));
    assert_eq!(&*book.address(PEER).unwrap(), [7, 8]);
    assert_eq!(*lock(&seen), [Err(Missing::Awaited)], "nobody asks twice");
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
