//! Tests of the HTML file: its size, its reproducible bytes, and the escaping of names.

use report::html::{self, PageOrigin};

use crate::fixture::{HOSTILE, compared, dlrm8, large, page, small, training};

/// Largest allowed size of a page in bytes.
const BYTES_MAX: usize = 3_000_000;

#[test]
fn page_of_eight_ranks_is_small_enough_to_mail() {
    let Some(job) = dlrm8() else { return };
    let bytes = page(&job, &PageOrigin::File).len();
    println!("eight ranks: {bytes} bytes");
    assert!(bytes <= BYTES_MAX, "{bytes}");
}

#[test]
fn page_with_200000_events_is_small_enough() {
    let bytes = page(&large(), &PageOrigin::File).len();
    println!("200 k events: {bytes} bytes");
    assert!(bytes <= BYTES_MAX, "{bytes}");
}

#[test]
fn the_same_job_gives_the_same_bytes() {
    assert_eq!(page(&small(), &PageOrigin::File), page(&small(), &PageOrigin::File));
    assert_eq!(compared(&small(), &large()), compared(&small(), &large()));
}

#[test]
fn names_and_titles_are_escaped() {
    let page = page(&small(), &PageOrigin::File);
    assert!(!page.contains(HOSTILE) && !page.contains("<b>of tests") && !page.contains("<img"));
    assert!(page.contains("\\u003cscript\\u003ealert(1)"));
    assert!(page.contains("<title>a job &lt;b&gt;of tests"));
    // The page has one element each for the data, the server's options and the script.
    assert_eq!(page.matches("<script").count(), 3);
}

#[test]
fn nothing_is_fetched() {
    let training = html::training_page(&training()).unwrap();
    for page in [page(&small(), &PageOrigin::File), compared(&small(), &small()), training] {
        nothing_is_fetched_by(&page);
    }
}

fn nothing_is_fetched_by(page: &str) {
    for word in ["src=\"", "href=\"", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn trace_quality_has_the_same_texts_as_the_terminal() {
    let Some(job) = dlrm8() else { return };
    let page = page(&job, &PageOrigin::File);
    // One of the eight ranks ran work from before the recording during its only step, so its issue
    // differs.
    let words = "rank 0: 1 step recorded (7 of 8 ranks have this, 1 more the like)";
    assert!(page.contains(words), "{words}");
}
