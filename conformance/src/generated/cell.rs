//! Layouts of generated operations: as the library's, and, independently of that, as positions.
use super::values::{Type, typed};
use rma_core::{Layout, LayoutError};

/// The fields of a cell: position, width of an element, number of elements.
type Field = (i64, usize, u64);

/// What a layout repeats. Both sides of an operation have the same elements in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// One unsigned integer of so many bytes.
    Word(usize),
    /// One element of that type.
    Element(Type),
    /// One `u8`, one `u32` and three `u16`, each aligned.
    Record,
    /// The same without gaps, in another order in memory.
    Packed,
    /// The same, with bytes before position 0.
    Below,
}

impl Cell {
    /// Bytes that take part.
    pub const fn size(self) -> usize {
        match self {
            Self::Word(width) => width,
            Self::Element(element) => element.width(),
            Self::Record | Self::Packed | Self::Below => 11,
        }
    }

    const fn extent(self) -> i64 {
        match self {
            Self::Word(_) | Self::Element(_) => self.size() as i64,
            Self::Packed => 11,
            Self::Record | Self::Below => 16,
        }
    }

    fn fields(self) -> Vec<Field> {
        match self {
            Self::Word(_) | Self::Element(_) => vec![(0, self.size(), 1)],
            Self::Record => vec![(0, 1, 1), (4, 4, 1), (8, 2, 3)],
            Self::Packed => vec![(10, 1, 1), (6, 4, 1), (0, 2, 3)],
            Self::Below => vec![(-1, 1, 1), (2, 4, 1), (7, 2, 3)],
        }
    }

    fn layout(self) -> Result<Layout, LayoutError> {
        let word = |width| match width {
            1 => Layout::element::<u8>(),
            2 => Layout::element::<u16>(),
            4 => Layout::element::<u32>(),
            _ => Layout::element::<u64>(),
        };
        match self {
            Self::Word(width) => return Ok(word(width)),
            Self::Element(element) => return Ok(typed!(element, E => Layout::element::<E>())),
            Self::Record | Self::Packed | Self::Below => {}
        }
        let fields = self.fields().into_iter().map(|(at, width, count)| (at, count, word(width)));
        let lower = if self == Self::Below { -2 } else { 0 };
        Layout::structure(&fields.collect::<Vec<_>>())?.resized(lower, self.extent())
    }
}

/// How cells lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other.
    Dense,
    /// Blocks of `length`, `gap` cells apart.
    Rows {
        /// Cells.
        length: u64,
        /// Cells.
        gap: u64,
        /// Whether the first block is the highest.
        backwards: bool,
    },
    /// As rows, in the order of the type map from block `first` on and around.
    Scattered {
        /// Cells.
        length: u64,
        /// Cells.
        gap: u64,
        /// A block.
        first: u64,
    },
    /// Rows of rows of single cells with one cell's gap.
    Nested {
        /// Cells of an inner row.
        length: u64,
        /// Cells.
        gap: u64,
        /// Whether the first row is the highest.
        backwards: bool,
    },
}

/// One side of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Where position 0 is, in bytes from the beginning of the part or the buffer.
    pub start: usize,
    /// What is repeated.
    pub cell: Cell,
    /// How many.
    pub cells: u64,
    /// How they lie.
    pub pattern: Pattern,
}

impl Side {
    /// So many bytes in a row.
    pub const fn bytes(start: usize, count: usize) -> Self {
        Self { start, cell: Cell::Word(1), cells: count as u64, pattern: Pattern::Dense }
    }

    /// So many elements in a row.
    pub const fn elements(element: Type, start: usize, count: usize) -> Self {
        let cell = Cell::Element(element);
        Self { start, cell, cells: count as u64, pattern: Pattern::Dense }
    }

    /// Whether it is bytes or elements in a row, as calls without layouts take them.
    pub fn is_plain(&self) -> bool {
        let single = matches!(self.cell, Cell::Word(1) | Cell::Element(_));
        single && self.pattern == Pattern::Dense
    }

    /// Bytes that take part.
    pub fn size(&self) -> usize {
        self.cells as usize * self.cell.size()
    }

    /// Whole blocks only, so that every pattern holds the same number of cells.
    const fn blocks(&self, length: u64) -> u64 {
        self.cells / length
    }

    /// Positions of the cells, in extents, in the order of the type map.
    fn cells_at(&self) -> Vec<i64> {
        let at = |i: u64| -> i64 {
            let place = |length: u64, distance: u64, block: i64| {
                block * distance as i64 + (i % length) as i64
            };
            match self.pattern {
                Pattern::Dense => i as i64,
                Pattern::Rows { length, gap, backwards } => {
                    let block = (i / length) as i64;
                    place(length, length + gap, if backwards { -block } else { block })
                }
                Pattern::Scattered { length, gap, first } => {
                    let block = (i / length + first) % self.blocks(length);
                    place(length, length + gap, block as i64)
                }
                Pattern::Nested { length, gap, backwards } => {
                    let block = (i / length) as i64 * if backwards { -1 } else { 1 };
                    block * (2 * length + gap) as i64 + 2 * (i % length) as i64
                }
            }
        };
        (0..self.cells).map(at).collect()
    }

    /// Position and length of what takes part, relative to `start`, in the order of the type map.
    fn relative(&self) -> impl Iterator<Item = (i64, usize)> {
        let (extent, fields) = (self.cell.extent(), self.cell.fields());
        let cells = self.cells_at().into_iter();
        cells.flat_map(move |cell| {
            let bytes = |(at, width, count): Field| (cell * extent + at, width * count as usize);
            fields.clone().into_iter().map(bytes).collect::<Vec<_>>()
        })
    }

    /// First byte and the one after the last, relative to `start`.
    pub fn span(&self) -> (i64, i64) {
        if self.is_plain() {
            return (0, self.size() as i64);
        }
        let low = self.relative().map(|(at, _)| at).min().unwrap_or(0);
        (low, self.relative().map(|(at, len)| at + len as i64).max().unwrap_or(0))
    }

    /// Position and length of what takes part, in the order of the type map.
    pub fn runs(&self) -> Vec<(usize, usize)> {
        if self.is_plain() {
            return vec![(self.start, self.size())];
        }
        let absolute = |(at, len)| ((self.start as i64 + at) as usize, len);
        self.relative().map(absolute).collect()
    }

    /// Position of every byte that takes part, in the order of the type map.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.runs().into_iter().flat_map(|(at, len)| at..at + len)
    }

    /// The library's layout, and how many of it.
    pub fn layout(&self) -> Result<(Layout, u64), LayoutError> {
        let cell = self.cell.layout()?;
        let sign = |backwards: bool| if backwards { -1 } else { 1 };
        let layout = match self.pattern {
            Pattern::Dense => return Ok((cell, self.cells)),
            Pattern::Rows { length, gap, backwards } => {
                let stride = (length + gap) as i64 * sign(backwards);
                cell.vector(self.blocks(length), length, stride)?
            }
            Pattern::Scattered { length, gap, first } => {
                let blocks = self.blocks(length);
                let at = |block| ((block + first) % blocks * (length + gap)) as i64;
                let blocks: Vec<_> = (0..blocks).map(|block| (at(block), length)).collect();
                cell.indexed(&blocks)?
            }
            Pattern::Nested { length, gap, backwards } => {
                let row = cell.vector(length, 1, 2)?;
                let stride = (2 * length + gap) as i64 * self.cell.extent();
                row.hvector(self.blocks(length), 1, stride * sign(backwards))?
            }
        };
        Ok((layout, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions and the library's layout are made apart; they agree. S-J1 S-J2
    #[test]
    fn positions_are_those_of_the_layout() {
        let words = [Cell::Word(1), Cell::Word(4), Cell::Element(Type::PairF64I64)];
        let cells = [&words[..], &[Cell::Record, Cell::Packed, Cell::Below]].concat();
        let patterns = [
            Pattern::Dense,
            Pattern::Rows { length: 2, gap: 1, backwards: false },
            Pattern::Rows { length: 3, gap: 2, backwards: true },
            Pattern::Scattered { length: 2, gap: 1, first: 2 },
            Pattern::Nested { length: 3, gap: 0, backwards: true },
            Pattern::Nested { length: 2, gap: 3, backwards: false },
        ];
        for cell in cells {
            for pattern in patterns {
                let side = Side { start: 500, cell, cells: 6, pattern };
                let (layout, count) = side.layout().unwrap();
                let runs = layout.runs(count).unwrap();
                let bytes = runs.flat_map(|(at, len)| at + 500..at + 500 + len as i64);
                let mine = side.positions().map(|at| at as i64);
                assert!(bytes.eq(mine), "{side:?}");
                assert_eq!(side.size(), side.positions().count());
            }
        }
    }
}
