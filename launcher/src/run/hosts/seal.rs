//! Frames of a connection between hosts: each carries a number and a keyed checksum, so that what
//! was altered, made up or sent before is not taken for a message. What is said is not hidden.

use std::io;

use crate::wire::{self, Nonce, Proof};

/// Bytes that a sealed frame has besides its message.
pub(super) const SEAL: usize = NUMBER + CHECKSUM;
const NUMBER: usize = 8;
const CHECKSUM: usize = 32;
/// So many frames are refused until the connection is given up.
const REFUSED_MAX: u64 = 100;

/// Which end has sealed a frame: no frame is taken by the end that it comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Launcher,
    Host,
}

/// What an end seals by, and opens by what the other one has sealed; both have drawn a nonce.
pub(super) fn pair(
    secret: &[u8; 32],
    launcher: &Nonce,
    host: &Nonce,
    own: Side,
) -> (Sealer, Opener) {
    let other = match own {
        Side::Launcher => Side::Host,
        Side::Host => Side::Launcher,
    };
    let opener = Opener::new(secret, launcher, host, other);
    (Sealer::new(secret, launcher, host, own), opener)
}

/// The same of a connection of a remote shell, by a key that the launcher has drawn for it and said
/// there.
pub(super) fn by_key(key: &[u8; 32], own: Side) -> (Sealer, Opener) {
    pair(key, &[0; 32], &[0; 32], own)
}

/// A key for what one end says in one connection: both ends have drawn a nonce.
fn key(secret: &[u8; 32], launcher: &Nonce, host: &Nonce, from: Side) -> [u8; 32] {
    let of: &[u8] = match from {
        Side::Launcher => b"rma join 1: frames of the launcher",
        Side::Host => b"rma join 1: frames of the host",
    };
    wire::mac(secret, &[of, launcher, host]).0
}

fn checksum(key: &[u8; 32], number: u64, message: &[u8]) -> Proof {
    wire::mac(key, &[&number.to_le_bytes(), message])
}

/// Seals what one end says.
pub(super) struct Sealer {
    key: [u8; 32],
    next: u64,
}

impl Sealer {
    fn new(secret: &[u8; 32], launcher: &Nonce, host: &Nonce, from: Side) -> Sealer {
        Sealer { key: key(secret, launcher, host, from), next: 0 }
    }

    /// A frame, its length in front, with its seal behind the message.
    pub(super) fn seal(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
        let number = self.next;
        self.next += 1;
        let Some((prefix, message)) = frame.split_first_chunk_mut::<4>() else { return frame };
        let checksum = checksum(&self.key, number, message);
        *prefix = (u32::from_le_bytes(*prefix) + SEAL as u32).to_le_bytes();
        frame.extend(number.to_le_bytes());
        frame.extend(checksum.0);
        frame
    }
}

/// Looks at what the other end has sealed.
pub(super) struct Opener {
    key: [u8; 32],
    next: u64,
    refused: u64,
}

impl Opener {
    /// `from` is the other end.
    fn new(secret: &[u8; 32], launcher: &Nonce, host: &Nonce, from: Side) -> Opener {
        Opener { key: key(secret, launcher, host, from), next: 0, refused: 0 }
    }

    /// How many frames were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// The message in the body of a frame; `None` if that is refused.
    ///
    /// # Errors
    ///
    /// A message is missing, or too many frames were refused.
    pub(super) fn open<'a>(&mut self, body: &'a [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some((number, message)) =
            self.authentic(body).filter(|(number, _)| *number >= self.next)
        else {
            self.refused += 1;
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
        (checksum(&self.key, number, message) == Proof(*proof)).then_some((number, message))
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
pub(super) fn read<T: crate::codec::Wire>(
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

    fn sealer() -> Sealer {
        Sealer::new(&SECRET, &NONCES[0], &NONCES[1], Side::Host)
    }

    fn opener() -> Opener {
        Opener::new(&SECRET, &NONCES[0], &NONCES[1], Side::Host)
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
        let others = [
            Sealer::new(&[0; 32], &NONCES[0], &NONCES[1], Side::Host),
            Sealer::new(&SECRET, &[0; 32], &NONCES[1], Side::Host),
            Sealer::new(&SECRET, &NONCES[0], &[0; 32], Side::Host),
            Sealer::new(&SECRET, &NONCES[0], &NONCES[1], Side::Launcher),
        ];
        let mut opener = opener();
        for mut other in others {
            assert_eq!(opener.open(&sealed(&mut other, &["a"])[0]).unwrap(), None);
        }
        assert_eq!(opener.refused(), 4);
        assert!(opener.open(&sealed(&mut sealer(), &["a"])[0]).unwrap().is_some());
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
