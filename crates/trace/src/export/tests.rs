use std::path::Path;

use super::{Compression, Format, form};

#[test]
fn the_name_decides_format_and_compression() {
    let check = |name, expected| assert_eq!(form(Path::new(name)), expected, "{name}");
    check("merged.json", (Format::Kineto, Compression::None));
    check("a/merged.JSON.gz", (Format::Kineto, Compression::Gzip));
    check("merged", (Format::Kineto, Compression::None));
    check("merged.pftrace", (Format::Perfetto, Compression::None));
    check("merged.pftrace.gz", (Format::Perfetto, Compression::Gzip));
    check("merged.perfetto-trace.zst", (Format::Perfetto, Compression::Zstd));
}
