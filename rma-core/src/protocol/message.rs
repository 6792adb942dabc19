//! Layout of the messages that the core sends: one header for all, little-endian.
use super::wire::{U32, U64};
use crate::transport::{PersistError, RemoteKey};
use bytemuck::checked::try_pod_read_unaligned;
use bytemuck::{CheckedBitPattern, Pod, Zeroable, bytes_of, pod_read_unaligned};

/// Stands before the payload of every message.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Head {
    kind: u8,
    /// [`Op`](crate::Op) of an operation of the accumulate family.
    pub(crate) op: u8,
    /// [`BasicType`](crate::element::BasicType) of an operation of the accumulate family.
    pub(crate) basic: u8,
    /// [`Status`] of a reply.
    status: u8,
    /// Which message of a communicator; how many rows of an operation.
    pub(crate) tag: U32,
    /// Id of the communicator or window.
    pub(crate) object: U64,
    /// Where in the window part, or in the payload being assembled, in bytes.
    pub(crate) offset: U64,
    /// Length of the whole transfer, in bytes.
    pub(crate) length: U64,
    /// Slot of the origin that waits for the reply.
    pub(crate) slot: U64,
}

/// What a message is about.
///
/// The bytes at the target that an operation names are those from `offset` on, `length` of them;
/// or, if `tag` is not 0, those of so many rows at the beginning of the payload, `length` together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, CheckedBitPattern)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A piece of a collective's payload.
    Collective = 1,
    /// A piece of a put: the bytes in the payload; answered by [`Done`](Self::Done).
    Put = 2,
    /// Asks for bytes; answered by [`Data`](Self::Data), by one if they are rows.
    Get = 3,
    /// A piece of an accumulate: operands in the payload; answered by [`Done`](Self::Done).
    Accumulate = 4,
    /// A piece of a get_accumulate or fetch_and_op: operands in the payload, none for no_op;
    /// answered by one [`Data`](Self::Data).
    GetAccumulate = 5,
    /// Compare-and-swap: the two values in the payload; answered by one [`Data`](Self::Data).
    CompareSwap = 6,
    /// Asks for a lock of the receiver's part, or of all parts. It holds no credit while it waits,
    /// for a holder of the lock may need that: [`Granted`](Self::Granted) ends it.
    Lock = 7,
    /// Gives back what was granted, whose request had that slot; without a slot, what was taken by
    /// load and store. Not answered.
    Unlock = 8,
    /// A step of a home's pass to have its part locked exclusively; not answered.
    Pass = 9,
    /// The rest of what was asked for will not come; not answered.
    Cancel = 10,
    /// Asks where a dynamic window's part has a raw region attached; answered by `Value`.
    Query = 11,
    /// `length` bytes of a put have arrived.
    Done = 12,
    /// A piece of what was asked for; `offset` counts from its beginning.
    Data = 13,
    /// The answer to a query.
    Value = 14,
    /// The sender exposes its part to the receiver; not answered.
    Post = 15,
    /// The sender's operations of a start epoch are done; not answered.
    Complete = 16,
    /// Request to send: a put of `length` bytes by rendezvous; answered by `Done` when all have
    /// arrived.
    Rts = 17,
    /// Clear to send: `length` more bytes of a rendezvous may come.
    Cts = 18,
    /// Cleared bytes of a rendezvous; `offset` counts from where its bytes begin. Not answered.
    PutData = 19,
    /// How the request for a lock ended that had that slot; not answered.
    Granted = 20,
    /// Asks for the [`Card`] of the target's part, of a dynamic window for that of the region with
    /// the byte at `offset`; answered by one [`Data`](Self::Data).
    Card = 21,
}

impl Kind {
    /// What answers it, if it is a request.
    pub(crate) fn answer(self) -> Option<Self> {
        match self {
            Self::Put | Self::Accumulate | Self::Rts => Some(Self::Done),
            Self::Get | Self::GetAccumulate | Self::CompareSwap | Self::Card => Some(Self::Data),
            Self::Query => Some(Self::Value),
            Self::Collective | Self::Done | Self::Data | Self::Value => None,
            Self::Post | Self::Complete | Self::Cts | Self::PutData | Self::Cancel => None,
            Self::Lock | Self::Granted | Self::Unlock | Self::Pass => None,
        }
    }

    /// Whether it answers a request, and is all that this is about.
    pub(crate) fn answers(self) -> bool {
        matches!(self, Self::Done | Self::Data | Self::Value)
    }

    /// Whether it is of the accumulate family.
    pub(crate) fn accumulates(self) -> bool {
        matches!(self, Self::Accumulate | Self::GetAccumulate | Self::CompareSwap)
    }
}

/// What origins need to know of a part, or of a region of a dynamic window.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Card {
    /// Where it begins in the window: 0, or the address of a region.
    pub(crate) start: U64,
    /// Bytes of it.
    pub(crate) size: U64,
    /// Where it lies in its rank's process.
    pub(crate) base: U64,
    pub(crate) disp_unit: U32,
    /// Whether a device reaches it, by that key: 0 or 1.
    registered: U32,
    key: [u8; RemoteKey::LEN],
}

impl Card {
    /// Bytes in a message.
    pub(crate) const LEN: usize = size_of::<Self>();

    /// Of the bytes from `start` on, which lie at `base`.
    pub(crate) fn new(
        (start, size): (u64, u64),
        disp_unit: u32,
        base: u64,
        key: Option<RemoteKey>,
    ) -> Self {
        let registered = u32::from(key.is_some()).into();
        let key = key.map_or([0; RemoteKey::LEN], |key| key.0);
        let (start, size, base) = (start.into(), size.into(), base.into());
        Self { start, size, base, disp_unit: disp_unit.into(), registered, key }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        bytemuck::try_pod_read_unaligned(bytes).ok()
    }

    /// As it stands in a message.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytes_of(self)
    }

    /// Whether it has `len` bytes at `address`.
    pub(crate) fn has(&self, address: u64, len: u64) -> bool {
        let room = address.checked_sub(self.start.get());
        let room = room.and_then(|offset| self.size.get().checked_sub(offset));
        room.is_some_and(|room| len <= room)
    }

    /// By which a device reaches it, if one does.
    pub(crate) fn key(&self) -> Option<RemoteKey> {
        (self.registered.get() != 0).then_some(RemoteKey(self.key))
    }
}

/// How the target fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, CheckedBitPattern)]
#[repr(u8)]
pub(crate) enum Status {
    /// Done.
    Ok = 0,
    /// The range lies outside the target's part; nothing was touched.
    OutOfRange = 1,
    /// There is no such window at the target (any more).
    Freed = 2,
    /// The request does not make sense.
    Malformed = 3,
    /// It waits for what a process holds that has left: `offset` says which.
    HolderLeft = 4,
    /// Others have what was only to be tried.
    Busy = 5,
    /// An element is not aligned in the target's memory; nothing was touched.
    Misaligned = 6,
    /// The system refuses the target a fence of all ranks near it; nothing was touched.
    Unfenced = 7,
}

impl Status {
    pub(crate) fn parse(byte: u8) -> Option<Self> {
        try_pod_read_unaligned(&[byte]).ok()
    }
}

impl Head {
    /// Bytes of the header.
    pub(crate) const LEN: usize = size_of::<Self>();

    pub(crate) fn new(kind: Kind, object: u64, tag: u32) -> Self {
        Self {
            kind: kind as u8,
            op: 0,
            basic: 0,
            status: 0,
            tag: tag.into(),
            object: object.into(),
            offset: 0.into(),
            length: 0.into(),
            slot: 0.into(),
        }
    }

    /// A reply to this message.
    pub(crate) fn reply(&self, kind: Kind, status: Status) -> Self {
        Self { kind: kind as u8, status: status as u8, ..*self }
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        try_pod_read_unaligned(&[self.kind]).ok()
    }

    pub(crate) fn status(&self) -> Option<Status> {
        Status::parse(self.status)
    }

    /// As it stands in a message.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytes_of(self)
    }

    /// Splits a message into its header and its payload.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = bytes.split_at_checked(Self::LEN)?;
        Some((pod_read_unaligned(head), body))
    }
}

/// What a [`Kind::Query`] asks for, as its offset says.
pub(crate) mod query {
    /// Where the raw part lies whose address in the window is in the payload.
    pub(crate) const RAW_BASE: u64 = 0;
    /// Its bytes.
    pub(crate) const RAW_LEN: u64 = 1;
    /// To make the part durable; the answer says how that went, see [`Durable`](super::Durable).
    pub(crate) const PERSIST: u64 = 2;
}

/// How it went to make a part durable, as a number that a message has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durable(pub(crate) u64);

impl Durable {
    const CALL: &'static str = "a call at the target";

    pub(crate) fn new(done: Result<(), PersistError>) -> Self {
        let (kind, errno) = match done {
            Ok(()) => (0, 0),
            Err(PersistError::Volatile) => (1, 0),
            Err(PersistError::System { errno, .. } | PersistError::NoSpace { errno }) => (2, errno),
            Err(PersistError::Poisoned { errno, .. }) => (3, errno),
            // There is no room for the lengths.
            Err(PersistError::Cut { .. } | PersistError::CutThere) => (4, 0),
            // Of commits, which no rank asks for by a message.
            Err(
                PersistError::Elsewhere { .. }
                | PersistError::Mixed { .. }
                | PersistError::Regions
                | PersistError::Committing
                | PersistError::Refused { .. },
            ) => (3, 0),
        };
        Self(kind << 32 | u64::from(errno as u32))
    }

    /// `None` if no rank says so.
    pub(crate) fn get(self) -> Option<Result<(), PersistError>> {
        let (call, errno) = (Self::CALL, self.0 as u32 as i32);
        match self.0 >> 32 {
            0 if errno == 0 => Some(Ok(())),
            1 if errno == 0 => Some(Err(PersistError::Volatile)),
            2 => Some(Err(PersistError::System { call, errno })),
            3 => Some(Err(PersistError::Poisoned { call, errno })),
            4 if errno == 0 => Some(Err(PersistError::CutThere)),
            _ => None,
        }
    }
}

/// Bytes that one slot asks a target for: with the credit, this bounds what is on its way here.
pub(crate) const GET_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_durable_is_told_in_a_number() {
        let call = Durable::CALL;
        for done in [
            Ok(()),
            Err(PersistError::Volatile),
            Err(PersistError::System { call, errno: 5 }),
            Err(PersistError::Poisoned { call, errno: 28 }),
        ] {
            assert_eq!(Durable::new(done).get(), Some(done));
        }
        let cut = Durable::new(Err(PersistError::Cut { len: 1, needed: 2 })).get();
        assert_eq!(cut, Some(Err(PersistError::CutThere)));
        assert!([1, 1 << 32 | 1, 5 << 32].iter().all(|wrong| Durable(*wrong).get().is_none()));
    }

    #[test]
    fn header_layout_is_fixed() {
        let mut head = Head::new(Kind::Put, 0x0102, 7);
        head.slot = 0xAA.into();
        let bytes = head.as_bytes();
        assert_eq!(bytes.len(), 40);
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[9], bytes[32]), (2, 7, 2, 1, 0xAA));
    }

    /// The conformance suite reads the list, to forge messages of every kind.
    #[test]
    fn the_list_of_kinds_is_complete() {
        let kind = |byte: u8| try_pod_read_unaligned::<Kind>(&[byte]).ok();
        let line = |kind| format!("{} {kind:?}\n", kind as u8);
        let kinds: String = (0..=u8::MAX).filter_map(kind).map(line).collect();
        assert_eq!(kinds, include_str!("kinds.txt"), "write it to protocol/kinds.txt");
    }

    #[test]
    fn a_reply_says_how_the_target_fared() {
        let question = Head { slot: 5.into(), ..Head::new(Kind::Get, 3, 9) };
        use Status::{Busy, Freed, HolderLeft, Malformed, Misaligned, Ok, OutOfRange, Unfenced};
        for status in [Ok, OutOfRange, Freed, Malformed, HolderLeft, Busy, Misaligned, Unfenced] {
            let reply = question.reply(Kind::Data, status);
            assert_eq!((reply.kind(), reply.status()), (Some(Kind::Data), Some(status)));
            assert_eq!((reply.object, reply.tag, reply.slot), (3.into(), 9.into(), 5.into()));
        }
    }

    #[test]
    fn unknown_kinds_and_short_messages_do_not_parse() {
        for byte in 1..=Kind::Card as u8 {
            let mut bytes = Head::new(Kind::Put, 0, 0).as_bytes().to_vec();
            bytes[0] = byte;
            let (head, _) = Head::parse(&bytes).unwrap();
            assert_eq!(head.kind().map(|kind| kind as u8), Some(byte));
        }
        for byte in [0, Kind::Card as u8 + 1, u8::MAX] {
            let mut bytes = Head::new(Kind::Put, 0, 0).as_bytes().to_vec();
            (bytes[0], bytes[3]) = (byte, Status::Unfenced as u8 + 1);
            let (head, _) = Head::parse(&bytes).unwrap();
            assert_eq!((head.kind(), head.status()), (None, None));
        }
        let whole = Head::new(Kind::Put, 0, 0);
        assert!(Head::parse(&whole.as_bytes()[..39]).is_none());
    }
}
