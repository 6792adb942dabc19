//! Which calls are allowed while which epochs are open: one table, which the checks read and from
//! which the conformance suite makes its cases.

/// An epoch that a rank may have open on a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochKind {
    /// A fence epoch.
    Fence,
    /// An access epoch to chosen targets.
    Start,
    /// An exposure epoch to chosen origins.
    Exposure,
    /// A lock of the rank's own part.
    LockOwn,
    /// A lock of another rank's part.
    LockOther,
    /// An epoch to all targets.
    LockAll,
}

/// A call that opens an epoch of a window, or needs that none is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochCall {
    /// [`Window::fence`](crate::Window::fence)
    Fence,
    /// [`Window::start`](crate::Window::start)
    Start,
    /// [`Window::post`](crate::Window::post)
    Post,
    /// [`Window::lock`](crate::Window::lock) of the rank's own part
    LockOwn,
    /// [`Window::lock`](crate::Window::lock) of another rank's part
    LockOther,
    /// [`Window::lock_all`](crate::Window::lock_all)
    LockAll,
    /// [`Window::free`](crate::Window::free)
    Free,
    /// [`Window::seal`](crate::Window::seal)
    Seal,
}

const Y: bool = true;
const N: bool = false;

/// Rows are what is open, columns what is asked, both in the order of their `ALL`. The
/// documentation of `epoch` says it in words. An epoch that has ended stands in no row: the next
/// may be of any kind. S-M3
///
/// - In a fence epoch, its next fence: what a mode switch opens ends it before. S-C7
/// - In a start or exposure epoch, no second one. S-D7
/// - In a start epoch, and with the own part locked, no lock of that. S-E9
/// - In `lock_all`, no lock, and beside a lock no `lock_all`. S-E10
/// - Nowhere the last two, free and seal. S-A10
const ALLOWED: [[bool; 8]; 6] = [
    [Y, N, N, N, N, N, N, N],
    [N, N, Y, N, N, N, N, N],
    [N, Y, N, N, Y, N, N, N],
    [N, N, N, N, Y, N, N, N],
    [N, N, Y, Y, Y, N, N, N],
    [N, N, N, N, N, N, N, N],
];

impl EpochKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Fence, Self::Start, Self::Exposure, Self::LockOwn, Self::LockOther, Self::LockAll];

    /// As errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "a fence epoch",
            Self::Start => "a start epoch",
            Self::Exposure => "an exposure epoch",
            Self::LockOwn | Self::LockOther => "a lock epoch",
            Self::LockAll => "a lock_all epoch",
        }
    }
}

impl EpochCall {
    /// All calls.
    pub const ALL: [Self; 8] = [
        Self::Fence,
        Self::Start,
        Self::Post,
        Self::LockOwn,
        Self::LockOther,
        Self::LockAll,
        Self::Free,
        Self::Seal,
    ];

    /// As errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "a fence",
            Self::Start => "a start",
            Self::Post => "a post",
            Self::LockOwn | Self::LockOther => "a lock",
            Self::LockAll => "lock_all",
            Self::Free => "free",
            Self::Seal => "seal",
        }
    }

    /// Whether a rank may do this while it has an epoch of that kind open on the same window.
    /// With several open, all must allow it.
    #[inline]
    pub const fn allowed_in(self, open: EpochKind) -> bool {
        ALLOWED[open as usize][self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the documentation of `epoch`, made from the one above.
    fn rendered() -> String {
        let head = "//! | open on this rank | fence | start | post | lock own | lock other | \
                    lock_all | free | seal |\n\
                    //! | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
        let names = ["`Fence`", "`Start`", "`Exposure`", "`Lock` own", "`Lock` other", "`LockAll`"];
        let row = |(open, name): (EpochKind, &str)| {
            let word = |call: EpochCall| if call.allowed_in(open) { " yes |" } else { " no |" };
            format!("//! | {name} |{}\n", EpochCall::ALL.map(word).concat())
        };
        EpochKind::ALL.into_iter().zip(names).map(row).fold(head.to_owned(), |all, row| all + &row)
    }

    #[test]
    fn documentation_shows_the_table() {
        let documented = include_str!("../epoch/mod.rs");
        assert!(documented.contains(&rendered()), "should be\n{}", rendered());
    }

    #[test]
    fn orders_are_those_of_the_table() {
        for (row, kind) in EpochKind::ALL.into_iter().enumerate() {
            assert_eq!(row, kind as usize);
        }
        for (column, call) in EpochCall::ALL.into_iter().enumerate() {
            assert_eq!(column, call as usize);
        }
    }

    /// Whether two epochs may be open together does not depend on which is opened first.
    #[test]
    fn epochs_that_go_together_do_so_in_any_order() {
        use EpochCall as Call;
        let calls =
            [Call::Fence, Call::Start, Call::Post, Call::LockOwn, Call::LockOther, Call::LockAll];
        for (a, call_a) in EpochKind::ALL.into_iter().zip(calls) {
            for (b, call_b) in EpochKind::ALL.into_iter().zip(calls) {
                assert_eq!(call_a.allowed_in(b), call_b.allowed_in(a), "{a:?} {b:?}");
            }
        }
    }
}
