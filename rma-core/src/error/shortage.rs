//! What a call that does not wait found too little of.
use core::fmt;

/// What a `try_` form found too little of, see [`RmaError::WouldBlock`](crate::RmaError). As text
/// it says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// Messages of this rank that may be unanswered at once, by all targets.
    Messages {
        /// Messages of the operation.
        needed: u32,
        /// How many more could be sent.
        free: u32,
        /// [`Config::outstanding_messages`](crate::Config::outstanding_messages).
        limit: u32,
    },
    /// Messages of this rank that the target may leave unanswered.
    Credit {
        /// Messages of the operation.
        needed: u32,
        /// How many more could be sent.
        free: u32,
        /// [`Config::credit_messages`](crate::Config::credit_messages).
        limit: u32,
    },
    /// Room in the queue of messages to the target.
    Queue,
    /// Transfers that the device has under way at once.
    Transfers,
    /// The lock that the operation is under: others have it.
    Grant,
    /// The post of the target, in a start epoch.
    Post,
    /// The answer to an earlier accumulate on the same elements, which comes first.
    Order,
    /// What the target says of its memory, for which it was asked.
    Memory,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages { needed, free, limit } => {
                return write!(
                    f,
                    "it takes {needed} messages, and {free} of the {limit} that this rank may have \
                     unanswered are free; try again later, flush, complete requests, or raise \
                     Config::outstanding_messages (rma-run --config outstanding_messages=N)"
                );
            }
            Self::Credit { needed, free, limit } => {
                return write!(
                    f,
                    "it takes {needed} messages, and {free} of the {limit} that the target may \
                     leave unanswered are free: it serves other ranks, or none; try again later, \
                     flush, complete requests, or raise Config::credit_messages (rma-run --config \
                     credit_messages=N)"
                );
            }
            Self::Queue => {
                "there is no room in the target's queue of messages, which it does not read just \
                 now; try again later, or flush"
            }
            Self::Transfers => {
                "the device has as many transfers under way as it takes; try again later, flush, \
                 or complete requests"
            }
            Self::Grant => "others have the lock that it is under; try again later, or flush",
            Self::Post => "the target has not posted yet; try again later",
            Self::Order => {
                "an earlier accumulate on the same elements comes first, and is not answered; try \
                 again later, or flush"
            }
            Self::Memory => {
                "the target was asked how its memory lies, and has not answered yet; try again \
                 later"
            }
        })
    }
}

/// What there is never enough of for a `try_` form, see
/// [`RmaError::TooLargeToTry`](crate::RmaError). As text it says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryLimit {
    /// Messages that may be unanswered at once.
    Messages {
        /// Messages of the operation, at least.
        needed: u32,
        /// The lower of [`Config::credit_messages`](crate::Config::credit_messages) and
        /// [`Config::outstanding_messages`](crate::Config::outstanding_messages).
        limit: u32,
    },
    /// Bytes, one behind the other, of one atomic transfer of the device.
    Transfer {
        /// That many.
        bytes: u64,
    },
    /// Bytes of a layout that wait packed.
    Packed {
        /// That many.
        bytes: u64,
    },
}

impl fmt::Display for TryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages { needed, limit } => write!(
                f,
                "it takes {needed} messages or more, and {limit} may be unanswered by a target; \
                 issue it in smaller pieces, call the form that waits, or raise \
                 Config::credit_messages and Config::outstanding_messages"
            ),
            Self::Transfer { bytes } => write!(
                f,
                "the device combines {bytes} bytes at once, one behind the other; issue it in such \
                 pieces, or call the form that waits"
            ),
            Self::Packed { bytes } => write!(
                f,
                "of a layout, {bytes} bytes at most wait packed; issue it in smaller pieces, or \
                 call the form that waits"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_what_to_do() {
        let (needed, free, limit) = (3, 1, 8);
        let all = [
            Shortage::Messages { needed, free, limit },
            Shortage::Credit { needed, free, limit },
            Shortage::Queue,
            Shortage::Transfers,
            Shortage::Grant,
            Shortage::Post,
            Shortage::Order,
            Shortage::Memory,
        ];
        let texts = all.map(|shortage| shortage.to_string());
        assert!(texts.iter().all(|text| text.contains("try again later")), "{texts:?}");
        assert!(texts[0].contains("takes 3 messages, and 1 of the 8"), "{}", texts[0]);
        assert!(texts[1].contains("credit_messages=N"), "{}", texts[1]);
        let (messages, bytes) = (TryLimit::Messages { needed, limit }, 64);
        for limit in [messages, TryLimit::Transfer { bytes }, TryLimit::Packed { bytes }] {
            assert!(limit.to_string().contains("the form that waits"), "{limit}");
        }
    }
}
