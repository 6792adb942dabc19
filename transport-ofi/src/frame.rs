//! What is in front of each message: what proves that it is of the job ([`seal`](crate::seal)),
//! which rank sent it, and what it is.

use rma_core::transport::WorldRank;

/// Bytes in front of a message.
pub(crate) const HEADER: usize = 24;

/// Bytes of the tag, which is first and of all that follows.
pub(crate) const TAG: usize = 8;

/// Where the number of the message is, a `u64`.
pub(crate) const NUMBER_AT: usize = TAG;

const FROM_AT: usize = NUMBER_AT + 8;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of the core.
    Data,
    /// The sender leaves: how many of those it sent here follows, a `u64`, and its address. Asks
    /// for `Heard`.
    Farewell,
    /// All of those have arrived.
    Heard,
    /// Is memory of the key that follows still reached? Asks for `KeyTold`.
    KeyQuery,
    /// Of the key that follows: a byte behind it, 1 if it is.
    KeyTold,
    /// The sender's address follows, so that it can be answered.
    Here,
}

/// Which rank sent a message, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: WorldRank,
    pub(crate) kind: Kind,
}

impl Header {
    /// As it stands in front of a message that is not sealed yet.
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let kind: u32 = match self.kind {
            Kind::Data => 1,
            Kind::Farewell => 2,
            Kind::Heard => 3,
            Kind::KeyQuery => 4,
            Kind::KeyTold => 5,
            Kind::Here => 6,
        };
        let mut bytes = [0; HEADER];
        let (from, its_kind) = bytes[FROM_AT..].split_at_mut(4);
        from.copy_from_slice(&self.from.0.to_le_bytes());
        its_kind.copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// The header of a message that claims to be of a rank among `size`, and what follows.
    pub(crate) fn parse(message: &[u8], size: u32) -> Option<(Self, &[u8])> {
        let (head, rest) = message.split_first_chunk::<HEADER>()?;
        let (from, kind) = head[FROM_AT..].split_first_chunk()?;
        let kind = match u32::from_le_bytes(kind.try_into().ok()?) {
            1 => Kind::Data,
            2 => Kind::Farewell,
            3 => Kind::Heard,
            4 => Kind::KeyQuery,
            5 => Kind::KeyTold,
            6 => Kind::Here,
            _ => return None,
        };
        let header = Self { from: WorldRank(u32::from_le_bytes(*from)), kind };
        (header.from.0 < size).then_some((header, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::{FROM_AT, HEADER, Header, Kind};
    use rma_core::transport::WorldRank;

    #[test]
    fn a_header_is_what_it_was() {
        let of_keys = [Kind::KeyQuery, Kind::KeyTold];
        for kind in [Kind::Data, Kind::Farewell, Kind::Heard, Kind::Here].into_iter().chain(of_keys)
        {
            let header = Header { from: WorldRank(6), kind };
            let mut message = header.to_bytes().to_vec();
            message.extend(b"rest");
            assert_eq!(Header::parse(&message, 7), Some((header, &b"rest"[..])));
            assert_eq!(Header::parse(&message, 6), None, "no rank of it");
            assert_eq!(Header::parse(&message[..HEADER - 1], 7), None);
            message[FROM_AT + 4] = 9;
            assert_eq!(Header::parse(&message, 7), None, "no kind");
        }
    }
}
