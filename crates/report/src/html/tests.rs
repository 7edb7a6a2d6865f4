use super::{PageOrigin, embed, hash, policy, text};

#[test]
fn names_cannot_end_the_enclosing_element() {
    let mut bytes = Vec::new();
    embed(&"</script><!--\u{2028}&\"", &mut bytes).unwrap();
    let safe = String::from_utf8(bytes).unwrap();
    assert!(!safe.contains(['<', '>', '&', '\u{2028}']), "{safe}");
    let back: String = serde_json::from_str(&safe).unwrap();
    assert_eq!(back, "</script><!--\u{2028}&\"");
    assert_eq!(text("</title><b> & c"), "&lt;/title&gt;&lt;b&gt; &amp; c");
}

#[test]
fn policy_has_hashes_and_allows_only_the_server() {
    let file = policy(&PageOrigin::File);
    assert!(file.starts_with("default-src 'none'; script-src 'sha256-"), "{file}");
    assert!(!file.contains("unsafe") && !file.contains("connect-src"), "{file}");
    let server = PageOrigin::Server { trace: "/t".into(), file_name: "t.json".into() };
    assert!(policy(&server).contains("connect-src 'self'"));
    // The expected value is the SHA-256 hash of the empty text, as its standard gives it.
    assert_eq!(hash(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
}
