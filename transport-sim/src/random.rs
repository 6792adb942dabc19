//! The only source of chance: splitmix64.

/// Spreads every bit of `word` over the whole result.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A stream of numbers that its seed determines, on every platform.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// As [`below`](Self::below), for an index.
    pub(crate) fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// True `of` times out of `out_of`.
    pub(crate) fn chance(&mut self, of: u64, out_of: u64) -> bool {
        self.below(out_of) < of
    }

    /// How long something travels: mostly short, so that messages race; at times long, so that one
    /// is overtaken by many.
    pub(crate) fn delay(&mut self, longest: u64) -> u64 {
        let bound = if self.chance(7, 8) { longest / 16 } else { longest };
        self.below(bound.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let stream = [random.next(), random.next(), random.next()];
        // The first outputs for this seed of the reference implementation.
        assert_eq!(
            stream,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut random = Random::new(0);
        let mut seen = [0; 7];
        for _ in 0..700 {
            seen[random.index(7)] += 1;
        }
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }
}
