//! The program `rowmill-hub`.

fn main() {}
