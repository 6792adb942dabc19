//! Whether a buffer stays in place is for the library to say.
struct Inline([u64; 4]);

impl rma::OriginBuffer for Inline {
    type Element = u64;
    fn elements(&self) -> &[u64] {
        &self.0
    }
    fn elements_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

fn main() {}
