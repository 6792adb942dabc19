//! Windows of generated programs: made, looked at, sealed, and given back.
#![allow(unsafe_code)] // room: vouches for memory that windows are made of

use super::program::{Flavour, Memory, Path, WindowPlan};
use bytemuck::{cast_slice, cast_slice_mut};
use core::mem::ManuallyDrop;
use rma_core::{
    Attached, Communicator, RawPart, Refused, RmaError, View, Window, WindowBuilder, WindowError,
};

/// Bytes around raw memory, and behind buffers that are longer than their window.
const AROUND: usize = 16;
/// What they hold.
const FILL: u8 = 0x5A;

/// A window, what this rank brought along, and where the parts begin.
pub(super) struct Made {
    window: Window,
    brought: Brought,
    /// What displacements are counted from, by rank.
    bases: Vec<u64>,
}

enum Brought {
    Nothing,
    Vector,
    Boxed,
    Raw(Raw),
    Region(Region),
}

/// Attached memory.
enum Region {
    Vector(Attached<Vec<u8>>),
    Boxed(Attached<Box<[u8]>>),
    Raw(Attached<RawPart>, Raw),
}

/// Memory that stays where it is, in the middle of `words`.
///
/// It is only dropped once it is no part of a window any more, not when a rank panics.
struct Raw {
    words: ManuallyDrop<Vec<u64>>,
    len: usize,
}

impl Raw {
    fn new(contents: &[u8]) -> (Self, RawPart) {
        let len = contents.len();
        let words = vec![u64::from_ne_bytes([FILL; 8]); len.div_ceil(8) + 2 * AROUND / 8];
        let mut raw = Self { words: ManuallyDrop::new(words), len };
        cast_slice_mut(&mut raw.words)[AROUND..][..len].copy_from_slice(contents);
        let base = raw.words.as_mut_ptr().cast::<u8>().wrapping_add(AROUND);
        // SAFETY: `words` is initialised and `len + AROUND` bytes long, nothing refers to it before
        // `back`, which comes when the window is freed or the part detached, and if that never
        // comes, it is leaked.
        let part = unsafe { RawPart::new(base, len) };
        (raw, part)
    }

    /// The contents, after the window.
    fn back(self, part: RawPart) -> Vec<u8> {
        let words = ManuallyDrop::into_inner(self.words);
        let (before, rest) = cast_slice::<u64, u8>(&words).split_at(AROUND);
        let (contents, after) = rest.split_at(self.len);
        assert_eq!((part.as_ptr().cast_const(), part.len()), (contents.as_ptr(), self.len));
        assert!(before.iter().chain(after).all(|byte| *byte == FILL), "written beside a part");
        contents.to_vec()
    }
}

/// `contents` with bytes behind that the window does not have.
fn longer(contents: &[u8]) -> Vec<u8> {
    [contents, &[FILL; AROUND]].concat()
}

fn shorter(buffer: &[u8]) -> Vec<u8> {
    let (contents, rest) = buffer.split_at(buffer.len() - AROUND);
    assert_eq!(rest, [FILL; AROUND], "written behind a window");
    contents.to_vec()
}

impl Region {
    fn new(window: &Window, memory: Memory, contents: &[u8]) -> Self {
        match memory {
            Memory::Vector => Self::Vector(window.attach(contents.to_vec()).expect("a vector")),
            Memory::Boxed => Self::Boxed(window.attach(contents.into()).expect("a boxed slice")),
            Memory::Raw => {
                let (raw, part) = Raw::new(contents);
                Self::Raw(window.attach(part).expect("memory of its own"), raw)
            }
        }
    }

    fn address(&self) -> u64 {
        match self {
            Self::Vector(attached) => attached.address(),
            Self::Boxed(attached) => attached.address(),
            Self::Raw(attached, _) => attached.address(),
        }
    }

    fn view<'w>(&'w self, window: &'w Window) -> View<'w> {
        let view = match self {
            Self::Vector(attached) => window.region(attached),
            Self::Boxed(attached) => window.region(attached),
            Self::Raw(attached, _) => window.region(attached),
        };
        view.expect("it is attached")
    }

    fn detach(self, window: &Window) -> Vec<u8> {
        match self {
            Self::Vector(attached) => window.detach(attached).expect("it is attached"),
            Self::Boxed(attached) => window.detach(attached).expect("it is attached").into_vec(),
            Self::Raw(attached, raw) => raw.back(window.detach(attached).expect("it is attached")),
        }
    }
}

/// Whether the hint for copies between processes can be given. **Collective.**
pub(super) fn reaches(comm: &Communicator) -> bool {
    let builder = comm.window(0, 1).hint("rma_path", "cma").expect("a path");
    match builder.allocate() {
        Ok(window) => {
            window.free().expect("no epoch is open");
            true
        }
        Err(WindowError::NoPath { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

impl Made {
    /// **Collective.**
    pub(super) fn new(
        builder: WindowBuilder<'_>,
        comm: &Communicator,
        plan: &WindowPlan,
        flavour: Flavour,
    ) -> Self {
        let me = usize::from(comm.rank());
        let (initial, memory) = (plan.initial(me), plan.parts[me].memory);
        let (window, brought) = match flavour {
            Flavour::Allocated | Flavour::Shared => {
                let shared = flavour == Flavour::Shared;
                let window = if shared { builder.allocate_shared() } else { builder.allocate() };
                let window = window.expect("a small window can be made");
                window.local().write(0, &initial).expect("as long as the part");
                (window, Brought::Nothing)
            }
            Flavour::Created => match memory {
                Memory::Vector => {
                    (builder.create(longer(&initial)).expect("a vector"), Brought::Vector)
                }
                Memory::Boxed => {
                    let boxed = initial.into_boxed_slice();
                    (builder.create(boxed).expect("a boxed slice"), Brought::Boxed)
                }
                Memory::Raw => {
                    let (raw, part) = Raw::new(&initial);
                    (builder.create(part).expect("memory of its own"), Brought::Raw(raw))
                }
            },
            Flavour::Dynamic => {
                let window = builder.create_dynamic().expect("a small window can be made");
                let region = Region::new(&window, memory, &initial);
                (window, Brought::Region(region))
            }
        };
        let mut made = Self { window, brought, bases: Vec::new() };
        made.tell_bases(comm);
        made
    }

    /// Every rank tells all where its part begins. **Collective.**
    fn tell_bases(&mut self, comm: &Communicator) {
        let mine = if let Brought::Region(region) = &self.brought { region.address() } else { 0 };
        self.bases = comm.allgather(&[mine]).expect("all ranks are there");
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// What displacements at a target are counted from.
    pub(super) fn base(&self, target: u32) -> u64 {
        self.bases[target as usize]
    }

    /// This rank's part.
    pub(super) fn view(&self) -> View<'_> {
        match &self.brought {
            Brought::Region(region) => region.view(&self.window),
            _ => self.window.local(),
        }
    }

    /// Looks at this rank's part and stores there, while no rank can operate; what is attached is
    /// detached for that, and gets another address. **Collective.**
    pub(super) fn seal(
        self,
        comm: &Communicator,
        memory: Memory,
        stores: &[(usize, Vec<u8>)],
    ) -> (Vec<u8>, Self) {
        let Self { window, brought, bases } = self;
        let store = |part: &mut [u8]| {
            for (at, bytes) in stores {
                part[*at..][..bytes.len()].copy_from_slice(bytes);
            }
        };
        if let Brought::Region(region) = brought {
            let mut part = region.detach(&window);
            let look = part.clone();
            store(&mut part);
            let brought = Brought::Region(Region::new(&window, memory, &part));
            let mut made = Self { window, brought, bases };
            made.tell_bases(comm);
            return (look, made);
        }
        let mut look = vec![0; window.size() as usize];
        let window = match window.seal() {
            Ok(mut sealed) => {
                look.copy_from_slice(sealed.bytes());
                store(sealed.bytes_mut());
                sealed.unseal().expect("all ranks come here")
            }
            // Some rank's part stays where its user put it.
            Err(Refused { value: window, error }) => {
                let raw = matches!(brought, Brought::Raw(_));
                assert_eq!(raw, matches!(error, RmaError::WrongFlavor { .. }), "{error}");
                let window = *window.expect("all ranks agree");
                let view = window.local();
                view.read(0, &mut look).expect("inside");
                let mut part = look.clone();
                store(&mut part);
                view.write(0, &part).expect("inside");
                comm.barrier().expect("all ranks come here");
                window
            }
        };
        (look, Self { window, brought, bases })
    }

    /// Frees the window; gives what this rank's part held. **Collective.**
    pub(super) fn free(self) -> Vec<u8> {
        let window = self.window;
        let idle = "no epoch is open";
        match self.brought {
            Brought::Nothing => window.free_into().expect(idle),
            Brought::Vector => shorter(&window.free_into::<Vec<u8>>().expect(idle)),
            Brought::Boxed => window.free_into::<Box<[u8]>>().expect(idle).into_vec(),
            Brought::Raw(raw) => raw.back(window.free_into().expect(idle)),
            Brought::Region(region) => {
                let part = region.detach(&window);
                window.free().expect(idle);
                part
            }
        }
    }
}

/// What makes a window of that plan, with its hints.
pub(super) fn builder<'c>(
    comm: &'c Communicator,
    plan: &WindowPlan,
    reaches: bool,
) -> WindowBuilder<'c> {
    let part = plan.parts[usize::from(comm.rank())];
    let count = if plan.flavour == Flavour::Dynamic { 0 } else { part.size / part.unit };
    let path = match plan.path {
        Path::Messages => Some("messages"),
        Path::Cma if reaches && plan.flavour != Flavour::Dynamic => Some("cma"),
        _ => None,
    };
    let ordering = (!plan.ordered).then_some("none");
    let hints = [("rma_path", path), ("accumulate_ordering", ordering)];
    let given = hints.into_iter().filter_map(|(key, value)| Some((key, value?)));
    given.fold(comm.window(count, part.unit), |builder, (key, value)| {
        builder.hint(key, value).expect("a value of the hint")
    })
}
