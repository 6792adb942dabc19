//! What is taken for a message of the job, and what is not.

use super::{JobKey, JobSecret, KEPT, Numbers, Opener, Refused, Sealer, has_tag, is_of, tag};
use crate::frame::{HEADER, TAG};
use highway::{HighwayHasher, Key};
use rma_core::transport::WorldRank;

const A: WorldRank = WorldRank(3);
const B: WorldRank = WorldRank(5);

fn key() -> JobKey {
    JobKey([7; 32])
}

#[test]
fn a_key_is_of_the_secret_and_the_seed() {
    let of = |secret, seed| JobKey::new(&JobSecret([secret; 32]), &[seed; 32]).0;
    assert_eq!(of(1, 2), of(1, 2));
    assert_ne!(of(1, 2), of(2, 2));
    assert_ne!(of(1, 2), of(1, 1));
    assert_eq!(format!("{:?}", JobSecret([17; 32])), "(secret)");
}

fn sealed(sealer: &Sealer) -> Vec<u8> {
    let mut message = vec![1; HEADER + 3];
    sealer.seal(&mut message);
    message
}

#[test]
fn a_message_is_taken_once() {
    let (mut sealer, mut opener) = (Sealer::new(&key(), A, B), Opener::new(&key(), A, B));
    let first = sealed(&sealer);
    // The provider had no room: the message that is offered next has the number.
    assert_eq!(sealed(&sealer), first);
    sealer.sent();
    let second = sealed(&sealer);
    assert_ne!(second, first);
    assert!(is_of(&key(), (A, B), &first));
    // They may overtake each other.
    for message in [&second, &first] {
        assert_eq!(opener.open(message), Ok(()));
    }
    for message in [&second, &first] {
        assert_eq!(opener.open(message), Err(Refused::Again));
    }
}

#[test]
fn a_tag_is_of_all_bytes_the_key_the_ranks_and_the_direction() {
    let message = sealed(&Sealer::new(&key(), A, B));
    let openers = || {
        let other = JobKey([8; 32]);
        [(other, A, B), (key(), B, A), (key(), A, A), (key(), B, B)]
    };
    for (key, from, to) in openers() {
        assert_eq!(Opener::new(&key, from, to).open(&message), Err(Refused::Foreign));
        assert!(!is_of(&key, (from, to), &message));
    }
    let mut opener = Opener::new(&key(), A, B);
    for at in 0..message.len() {
        let mut other = message.clone();
        other[at] ^= 1;
        assert_eq!(opener.open(&other), Err(Refused::Foreign), "byte {at}");
        assert_eq!(opener.open(&message[..at]), Err(Refused::Foreign), "{at} bytes of it");
    }
    let longer = [&message[..], &[0]].concat();
    assert_eq!(opener.open(&longer), Err(Refused::Foreign));
    // None of them kept it from being taken.
    assert_eq!(opener.open(&message), Ok(()));
}

/// The second of the vectors in highwayhash's own test.
#[test]
fn a_tag_is_that_of_highwayhash() {
    let [a, b] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let [c, d] = [0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918];
    let hasher = HighwayHasher::new(Key([a, b, c, d]));
    let message = [0; TAG + 1];
    let expected: u64 = 0x7eab_43aa_c7cd_dd78;
    assert_eq!(tag(&hasher, &message), expected);
    let message = [&expected.to_le_bytes(), &message[TAG..]].concat();
    assert!(has_tag(&hasher, &message));
}

#[test]
fn each_number_counts_once_in_whatever_order() {
    let mut numbers = Numbers::default();
    assert!(!numbers.is_new(0));
    for number in [1, 3, 2, KEPT, KEPT + 1] {
        assert!(numbers.is_new(number), "{number}");
        assert!(!numbers.is_new(number), "{number} again");
    }
    assert!(!numbers.is_new(1), "too old to be known");
    assert!(numbers.is_new(4), "late");
    assert!(numbers.is_new(u64::MAX - KEPT) && numbers.is_new(u64::MAX - KEPT - 1));
    assert!(!numbers.is_new(u64::MAX - KEPT) && !numbers.is_new(5));
    let mut each = Numbers::default();
    assert!((1..5 * KEPT).all(|number| each.is_new(number)));
    assert!((1..5 * KEPT).all(|number| !each.is_new(number)));
}
