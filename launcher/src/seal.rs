//! Frames of a connection, of a launcher to a host or to a rank: each carries a number and a keyed
//! checksum, so that what was altered, made up or sent before is not taken for a message. What is
//! said is not hidden.

use std::io;
use std::sync::Arc;

use hmac_sha256::Hash;

use crate::codec::Wire;
use crate::wire::{self, Frame, Nonce, Proof};

/// Bytes that a sealed frame has besides its message.
pub(crate) const SEAL: usize = NUMBER + CHECKSUM;
const NUMBER: usize = 8;
const CHECKSUM: usize = 32;
/// So many frames are refused until the connection is given up.
const REFUSED_MAX: u64 = 100;
/// Messages of more bytes, which go to several ranks, are copied for none.
const COPIED_MAX: usize = 16 << 10;

/// Whom the launcher, its agent, or the rank that serves, has the connection with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum With {
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "rma-run has hosts"))]
    Host,
    Rank(u32),
}

/// Which end has sealed a frame: no frame is taken by the end that it comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Launcher,
    /// The host, or the rank.
    Other,
}

/// What an end seals by, and opens by what the other one has sealed; both have drawn a nonce, the
/// launcher the first.
pub(crate) fn pair(
    secret: &[u8; 32],
    with: With,
    nonces: [&Nonce; 2],
    own: Side,
) -> (Sealer, Opener) {
    let other = match own {
        Side::Launcher => Side::Other,
        Side::Other => Side::Launcher,
    };
    let key = |from| key(secret, with, nonces, from);
    let is_kept_up = matches!(with, With::Host);
    (Sealer::new(key(own)), Opener { key: key(other), next: 0, refused: 0, is_kept_up })
}

/// The same of a connection of a remote shell, by a key that the launcher has drawn for it and said
/// there.
#[cfg(feature = "server")]
pub(crate) fn by_key(key: &[u8; 32], own: Side) -> (Sealer, Opener) {
    pair(key, With::Host, [&[0; 32]; 2], own)
}

/// A key for what one end says in one connection.
struct SealKey([u8; 32]);

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(key)")
    }
}

/// The one for that connection.
fn key(secret: &[u8; 32], with: With, [launcher, other]: [&Nonce; 2], from: Side) -> SealKey {
    let (with, rank): (&[u8], u32) = match with {
        With::Host => (b"with a host", 0),
        With::Rank(rank) => (b"with a rank", rank),
    };
    let of: &[u8] = match from {
        Side::Launcher => b"rma frames 1: of the launcher ",
        Side::Other => b"rma frames 1: of the other end ",
    };
    SealKey(wire::mac(secret, &[of, with, &rank.to_le_bytes(), launcher, other]).0)
}

fn checksum(key: &SealKey, number: u64, digest: &[u8; 32]) -> Proof {
    wire::mac(&key.0, &[&number.to_le_bytes(), digest])
}

/// A message for several ranks.
#[derive(Debug)]
pub(crate) struct SharedFrame {
    message: Vec<u8>,
    digest: [u8; 32],
}

impl SharedFrame {
    /// # Errors
    ///
    /// It is too long for a frame.
    pub(crate) fn of<T: Wire>(message: &T) -> io::Result<Frame> {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        SharedFrame::from_bytes(bytes)
    }

    /// Of a message that was written down.
    ///
    /// # Errors
    ///
    /// It is too long for a frame.
    pub(crate) fn from_bytes(message: Vec<u8>) -> io::Result<Frame> {
        wire::is_within(message.len(), wire::FRAME_MAX)?;
        let digest = Hash::hash(&message);
        Ok(Arc::new(SharedFrame { message, digest }))
    }

    #[cfg(feature = "server")]
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// Bytes that are to be written: of one connection, or those that others share.
#[derive(Debug)]
pub(crate) enum FramePart {
    Own(Vec<u8>),
    Shared(Frame),
}

impl AsRef<[u8]> for FramePart {
    fn as_ref(&self) -> &[u8] {
        match self {
            FramePart::Own(bytes) => bytes,
            FramePart::Shared(frame) => &frame.message,
        }
    }
}

/// Seals what one end says.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: SealKey,
    next: u64,
}

impl Sealer {
    fn new(key: SealKey) -> Sealer {
        Sealer { key, next: 0 }
    }

    /// A frame, its length in front, with its seal behind the message.
    pub(crate) fn seal(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
        let Some((prefix, message)) = frame.split_first_chunk_mut::<4>() else { return frame };
        *prefix = sealed_prefix(message.len());
        let seal = self.next_seal(&Hash::hash(message));
        frame.extend(seal);
        frame
    }

    /// The same of a message that others get, too: its parts.
    pub(crate) fn seal_shared(&mut self, frame: &Frame) -> Vec<FramePart> {
        let seal = self.next_seal(&frame.digest);
        let prefix = sealed_prefix(frame.message.len());
        if frame.message.len() <= COPIED_MAX {
            return vec![FramePart::Own([&prefix, &frame.message[..], &seal].concat())];
        }
        let (prefix, seal) = (prefix.to_vec(), seal.to_vec());
        vec![FramePart::Own(prefix), FramePart::Shared(Arc::clone(frame)), FramePart::Own(seal)]
    }

    fn next_seal(&mut self, digest: &[u8; 32]) -> [u8; SEAL] {
        let number = self.next;
        self.next += 1;
        let mut seal = [0; SEAL];
        seal[..NUMBER].copy_from_slice(&number.to_le_bytes());
        seal[NUMBER..].copy_from_slice(&checksum(&self.key, number, digest).0);
        seal
    }
}

/// The length of a sealed frame; a message has at most [`wire::FRAME_MAX`] bytes.
fn sealed_prefix(message: usize) -> [u8; 4] {
    (message as u32 + SEAL as u32).to_le_bytes()
}

/// Looks at what the other end has sealed.
#[derive(Debug)]
pub(crate) struct Opener {
    /// That of the other end.
    key: SealKey,
    next: u64,
    refused: u64,
    /// The other end says something at all times, by which one notices that a message is missing:
    /// so what was altered or made up is read over. Else it may have been what this end waits for,
    /// and the connection ends.
    is_kept_up: bool,
}

impl Opener {
    /// How many frames were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// What to tell of the first frame that was refused: `told` is how many were told of.
    pub(crate) fn note(&self, told: &mut u64) -> Option<&'static str> {
        let is_first = *told == 0 && self.refused > 0;
        *told = self.refused;
        is_first.then_some(
            "messages on its connection that are altered, made up, or were sent before, are \
             refused; somebody interferes with it",
        )
    }

    /// The message in the body of a frame; `None` if that is refused.
    ///
    /// # Errors
    ///
    /// A message is missing, or too many frames were refused.
    pub(crate) fn open<'a>(&mut self, body: &'a [u8]) -> io::Result<Option<&'a [u8]>> {
        let authentic = self.authentic(body);
        let is_foreign = authentic.is_none();
        let Some((number, message)) = authentic.filter(|(number, _)| *number >= self.next) else {
            self.refused += 1;
            if is_foreign && !self.is_kept_up {
                return Err(self.broken("a message is not of the other end"));
            }
            return match self.refused {
                REFUSED_MAX.. => {
                    Err(self.broken(&format!("{} messages were refused", self.refused)))
                }
                _ => Ok(None),
            };
        };
        if number > self.next {
            return Err(self.broken(&format!("message {} is missing", self.next)));
        }
        self.next += 1;
        Ok(Some(message))
    }

    fn authentic<'a>(&self, body: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let (rest, proof) = body.split_last_chunk::<CHECKSUM>()?;
        let (message, number) = rest.split_last_chunk::<NUMBER>()?;
        let number = u64::from_le_bytes(*number);
        (checksum(&self.key, number, &Hash::hash(message)) == Proof(*proof))
            .then_some((number, message))
    }

    fn broken(&self, what: &str) -> io::Error {
        let refused = match self.refused {
            0 => String::new(),
            count => format!(" ({count} refused: altered, made up, or sent before)"),
        };
        io::Error::other(format!("{what}{refused}: somebody interferes with the connection"))
    }
}

/// Reads one frame of at most `max` bytes that is not refused, whatever comes before it.
pub(crate) fn read<T: Wire>(
    mut from: impl io::Read,
    max: usize,
    opener: &mut Opener,
) -> io::Result<T> {
    loop {
        let body = wire::read_body(&mut from, max + SEAL)?;
        if let Some(message) = opener.open(&body)? {
            return wire::decode(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: [u8; 32] = [1; 32];
    const NONCES: [Nonce; 2] = [[2; 32], [3; 32]];

    fn nonces() -> [&'static Nonce; 2] {
        [&NONCES[0], &NONCES[1]]
    }

    fn sealer() -> Sealer {
        pair(&SECRET, With::Host, nonces(), Side::Other).0
    }

    fn opener() -> Opener {
        pair(&SECRET, With::Host, nonces(), Side::Launcher).1
    }

    /// Bodies of frames with those messages.
    fn sealed(sealer: &mut Sealer, messages: &[&str]) -> Vec<Vec<u8>> {
        let seal = |text: &&str| {
            let frame = sealer.seal(wire::encode(&(*text).to_owned()).unwrap());
            assert_eq!(frame[..4], (frame.len() as u32 - 4).to_le_bytes());
            frame[4..].to_vec()
        };
        messages.iter().map(seal).collect()
    }

    fn text(message: Option<&[u8]>) -> Option<String> {
        message.map(|body| wire::decode(body).unwrap())
    }

    #[test]
    fn messages_arrive_in_order() {
        let mut opener = opener();
        for (body, said) in sealed(&mut sealer(), &["a", "", "c"]).iter().zip(["a", "", "c"]) {
            assert_eq!(text(opener.open(body).unwrap()).as_deref(), Some(said));
        }
        assert_eq!(opener.refused(), 0);
    }

    #[test]
    fn what_was_sent_before_is_refused_and_counted() {
        let (mut opener, bodies) = (opener(), sealed(&mut sealer(), &["a", "b", "c"]));
        for at in [0, 0, 1, 0, 1] {
            opener.open(&bodies[at]).unwrap();
        }
        assert_eq!(opener.refused(), 3);
        assert_eq!(text(opener.open(&bodies[2]).unwrap()).as_deref(), Some("c"));
    }

    #[test]
    fn a_message_that_is_missing_ends_the_connection() {
        let (mut opener, bodies) = (opener(), sealed(&mut sealer(), &["a", "b", "c"]));
        opener.open(&bodies[0]).unwrap();
        let error = opener.open(&bodies[2]).unwrap_err().to_string();
        assert!(error.contains("message 1 is missing"), "{error}");
    }

    #[test]
    fn frames_of_others_are_refused() {
        let [launcher, other] = nonces();
        let host = With::Host;
        let others = [
            (&[0; 32], host, [launcher, other], Side::Other),
            (&SECRET, host, [&[0; 32], other], Side::Other),
            (&SECRET, host, [launcher, &[0; 32]], Side::Other),
            (&SECRET, host, [launcher, other], Side::Launcher),
            (&SECRET, With::Rank(0), [launcher, other], Side::Other),
        ];
        let mut opener = opener();
        for (secret, with, nonces, from) in others {
            let (mut other, _) = pair(secret, with, nonces, from);
            assert_eq!(opener.open(&sealed(&mut other, &["a"])[0]).unwrap(), None);
        }
        assert_eq!(opener.refused(), 5);
        assert!(opener.open(&sealed(&mut sealer(), &["a"])[0]).unwrap().is_some());
    }

    #[test]
    fn between_a_rank_and_its_launcher_nothing_is_read_over_but_what_was_sent_before() {
        let of = |rank, own| pair(&SECRET, With::Rank(rank), nonces(), own);
        let ((mut rank, _), (_, mut opener)) = (of(3, Side::Other), of(3, Side::Launcher));
        let bodies = sealed(&mut rank, &["a", "b"]);
        assert!(opener.open(&bodies[0]).unwrap().is_some());
        assert_eq!(opener.open(&bodies[0]).unwrap(), None);
        let of_another = sealed(&mut of(4, Side::Other).0, &["x", "b"]).remove(1);
        let error = opener.open(&of_another).unwrap_err().to_string();
        assert!(error.contains("a message is not of the other end (2 refused"), "{error}");
    }

    #[test]
    fn noise_without_end_ends_the_connection() {
        let mut opener = opener();
        let noise = || [7; SEAL + 1];
        for _ in 1..REFUSED_MAX {
            assert_eq!(opener.open(&noise()).unwrap(), None);
        }
        let error = opener.open(&noise()).unwrap_err().to_string();
        assert!(error.contains("100 messages were refused"), "{error}");
    }

    #[test]
    fn refused_frames_are_read_over() {
        let mut sealer = sealer();
        let mut frames = Vec::new();
        for text in ["a", "b"] {
            let frame = sealer.seal(wire::encode(&text.to_owned()).unwrap());
            frames.extend([&frame[..], &frame].concat());
        }
        let (mut opener, mut from) = (opener(), &frames[..]);
        for expected in ["a", "b"] {
            let text: String = read(&mut from, 64, &mut opener).unwrap();
            assert_eq!(text, expected);
        }
        assert!(wire::is_end(&read::<String>(from, 64, &mut opener).unwrap_err()));
        assert_eq!(opener.refused(), 2);
    }

    #[test]
    fn what_several_get_is_sealed_for_each() {
        for len in [3, COPIED_MAX + 1] {
            let text = "x".repeat(len);
            let frame = SharedFrame::of(&text).unwrap();
            let (mut sealer, mut opener, mut all) = (sealer(), opener(), Vec::new());
            for _ in 0..2 {
                let parts = sealer.seal_shared(&frame);
                parts.iter().for_each(|part| all.extend(part.as_ref()));
            }
            let mut from = &all[..];
            for _ in 0..2 {
                let said: String = read(&mut from, wire::FRAME_MAX, &mut opener).unwrap();
                assert_eq!(said, text);
            }
            assert_eq!((from.len(), opener.refused()), (0, 0));
        }
        assert!(SharedFrame::of(&"x".repeat(wire::FRAME_MAX)).is_err());
    }

    proptest! {
        #[test]
        fn an_altered_byte_is_refused(message: Vec<u8>, at: prop::sample::Index, by in 1u8..) {
            let mut frame = sealer().seal(wire::encode(&message).unwrap()).split_off(4);
            let at = at.index(frame.len());
            frame[at] ^= by;
            prop_assert_eq!(opener().open(&frame).unwrap(), None);
        }
    }
}
