//! Whether a buffer stays in place is for the library to say.
struct Inline([u64; 4]);

impl rma::OriginBuffer for Inline {
    type Element = u64;
}

fn main() {}
