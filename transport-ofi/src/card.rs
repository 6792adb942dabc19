//! What each rank tells the others of its endpoint, before anything is sent.

use crate::sys::Atomics;

/// What a rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Card {
    /// It can be reached.
    Open {
        /// A random number; rank 0's is the job's.
        number: u64,
        provider: String,
        address: Vec<u8>,
        /// Whether its memory is reached there, too.
        has_memory: bool,
        /// What its provider combines there.
        atomics: Atomics,
    },
    /// It cannot, and why.
    Closed(String),
}

const OPEN: u8 = 1;
const CLOSED: u8 = 2;

impl Card {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Open { number, provider, address, has_memory, atomics } => {
                let name = provider.as_bytes();
                let mut bytes = vec![OPEN, u8::from(*has_memory)];
                bytes.extend(atomics.to_bytes());
                bytes.extend(number.to_le_bytes());
                for part in [name, address] {
                    let len = u8::try_from(part.len()).unwrap_or(u8::MAX);
                    bytes.push(len);
                    bytes.extend(&part[..len.into()]);
                }
                bytes
            }
            Self::Closed(why) => [&[CLOSED], why.as_bytes()].concat(),
        }
    }

    /// `None` if they are no card.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&OPEN, rest) => {
                let (has_memory, rest) = rest.split_first()?;
                let (atomics, rest) = rest.split_first_chunk()?;
                let (number, rest) = rest.split_first_chunk()?;
                let (name, rest) = part(rest)?;
                let (address, rest) = part(rest)?;
                let card = Self::Open {
                    number: u64::from_le_bytes(*number),
                    provider: str::from_utf8(name).ok()?.to_owned(),
                    address: address.to_vec(),
                    has_memory: *has_memory == 1,
                    atomics: Atomics::from_bytes(*atomics),
                };
                rest.is_empty().then_some(card)
            }
            (&CLOSED, why) => Some(Self::Closed(String::from_utf8_lossy(why).into_owned())),
            _ => None,
        }
    }
}

/// Bytes behind their length, and the rest.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

#[cfg(test)]
mod tests {
    use super::Card;
    use crate::sys::Atomics;

    #[test]
    fn a_card_is_what_it_was() {
        let (number, provider) = (7 << 40, "tcp;ofi_rxm".to_owned());
        let address = vec![1, 2, 3];
        let atomics = Atomics::from_bytes([1, 2, 3, 4, 5, 6]);
        let open = Card::Open { number, provider, address, has_memory: true, atomics };
        let closed = Card::Closed("no libfabric".to_owned());
        for card in [open.clone(), closed] {
            assert_eq!(Card::parse(&card.to_bytes()), Some(card));
        }
        let bytes = open.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Card::parse(&bytes[..len]), None, "{len} bytes of it");
        }
        assert_eq!(Card::parse(&[3, 1, 2]), None);
    }
}
