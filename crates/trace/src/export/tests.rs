use std::path::Path;

use super::{Compression, form};
use crate::format::timeline::WriteTimeline;
use crate::format::{kineto, perfetto};

#[test]
fn the_name_decides_format_and_compression() {
    let check = |name, expected: (&WriteTimeline, Compression)| {
        let (format, compression) = form(Path::new(name));
        assert!(std::ptr::eq(format, expected.0), "{name}");
        assert_eq!(compression, expected.1, "{name}");
    };
    check("merged.json", (&kineto::WRITER, Compression::None));
    check("a/merged.JSON.gz", (&kineto::WRITER, Compression::Gzip));
    check("merged", (&kineto::WRITER, Compression::None));
    check("merged.pftrace", (&perfetto::WRITER, Compression::None));
    check("merged.pftrace.gz", (&perfetto::WRITER, Compression::Gzip));
    check("merged.perfetto-trace.zst", (&perfetto::WRITER, Compression::Zstd));
}
