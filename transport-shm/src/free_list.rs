//! Which spans of an arena are free: first fit, kept in the owner's private memory.

/// Free spans, sorted, never touching each other.
#[derive(Debug)]
pub(crate) struct FreeList {
    capacity: usize,
    /// (start, length), length never 0.
    spans: Vec<(usize, usize)>,
}

impl FreeList {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, spans: vec![(0, capacity)] }
    }

    /// The lowest span of `len` bytes that starts at a multiple of `align`. `len` is not 0.
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        debug_assert!(len > 0 && align.is_power_of_two());
        let (index, start) =
            self.spans.iter().enumerate().find_map(|(index, &(start, free))| {
                let aligned = start.next_multiple_of(align);
                (aligned - start + len <= free).then_some((index, aligned))
            })?;
        let (span_start, span_len) = self.spans[index];
        let before = (span_start, start - span_start);
        let after = (start + len, span_start + span_len - start - len);
        let left = [before, after].into_iter().filter(|&(_, len)| len > 0);
        self.spans.splice(index..=index, left);
        Some(start)
    }

    /// Takes back what `take` gave.
    pub(crate) fn give_back(&mut self, start: usize, len: usize) {
        let index = self.spans.partition_point(|&(other, _)| other < start);
        debug_assert!(start + len <= self.capacity);
        debug_assert!(self.spans.get(index).is_none_or(|&(next, _)| start + len <= next));
        self.spans.insert(index, (start, len));
        if index + 1 < self.spans.len() && start + len == self.spans[index + 1].0 {
            self.spans[index].1 += self.spans.remove(index + 1).1;
        }
        if index > 0 && self.spans[index - 1].0 + self.spans[index - 1].1 == start {
            self.spans[index - 1].1 += self.spans.remove(index).1;
        }
    }

    /// Whether nothing is taken.
    pub(crate) fn is_unused(&self) -> bool {
        self.spans == [(0, self.capacity)]
    }
}

#[cfg(test)]
mod tests {
    use super::FreeList;

    #[test]
    fn a_full_list_refuses_and_becomes_whole_again() {
        let mut list = FreeList::new(256);
        let taken: Vec<_> = (0..4).map(|_| list.take(64, 64).unwrap()).collect();
        assert_eq!(taken, [0, 64, 128, 192]);
        assert_eq!(list.take(1, 1), None);
        for start in [64, 192, 0, 128] {
            assert!(!list.is_unused());
            list.give_back(start, 64);
        }
        assert!(list.is_unused());
        assert_eq!(list.take(256, 128), Some(0));
    }

    #[test]
    fn alignment_leaves_the_gap_usable() {
        let mut list = FreeList::new(8192);
        assert_eq!(list.take(64, 64), Some(0));
        assert_eq!(list.take(64, 4096), Some(4096));
        assert_eq!(list.take(4032, 64), Some(64));
        assert_eq!(list.take(8192, 64), None);
    }

    /// Against a bitmap, on a random walk.
    #[test]
    fn taken_spans_never_overlap() {
        let mut list = FreeList::new(4096);
        let mut used = [false; 4096];
        let mut held: Vec<(usize, usize)> = Vec::new();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let random = state as usize;
            if random.is_multiple_of(3) && !held.is_empty() {
                let (start, len) = held.swap_remove(random / 3 % held.len());
                list.give_back(start, len);
                used[start..start + len].fill(false);
                continue;
            }
            let (len, align) = (random / 8 % 500 + 1, 1 << (random / 4096 % 9));
            let fits = (0..=4096 - len)
                .step_by(align)
                .find(|&start| !used[start..start + len].contains(&true));
            assert_eq!(list.take(len, align), fits);
            if let Some(start) = fits {
                used[start..start + len].fill(true);
                held.push((start, len));
            }
        }
        for (start, len) in held {
            list.give_back(start, len);
        }
        assert!(list.is_unused());
    }
}
