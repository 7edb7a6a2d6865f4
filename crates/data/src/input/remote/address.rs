//! Parses URLs of objects into scheme, bucket and key.

use super::problem::RemoteProblem;

/// The kind of store that a URL belongs to, which decides how its requests are addressed and
/// signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    S3,
    Google,
    Http,
}

impl Scheme {
    pub(super) fn parse(input: &str) -> Option<Self> {
        let (scheme, _) = input.split_once("://")?;
        match scheme {
            "s3" => Some(Self::S3),
            "gs" => Some(Self::Google),
            "http" | "https" => Some(Self::Http),
            _ => None,
        }
    }
}

/// The bucket and key of an object in S3 or in Google Cloud Storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketKey<'a> {
    pub bucket: &'a str,
    pub key: &'a str,
}

/// Splits `s3://bucket/key` or `gs://bucket/key`.
pub(super) fn bucket_and_key(input: &str) -> Result<BucketKey<'_>, RemoteProblem> {
    let rest = input.split_once("://").map_or("", |(_, rest)| rest);
    match rest.split_once('/') {
        Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() && !key.ends_with('/') => {
            Ok(BucketKey { bucket, key })
        }
        _ => Err(RemoteProblem::Address { expected: "a bucket and the name of one object" }),
    }
}

/// Percent-encodes every byte that is not allowed in the path of a URL. Slashes are kept.
///
/// # Source
/// RFC 3986, section 2.3: letters, digits and `-._~` are never escaped.
pub(super) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{BucketKey, Scheme, bucket_and_key, percent_encode};

    #[test]
    fn file_paths_are_not_objects() {
        for file in ["train.csv", "/s3/x", "s3:/x", "-", "ftp://host/x", "c://x"] {
            assert_eq!(Scheme::parse(file), None, "{file}");
        }
        assert_eq!(Scheme::parse("gs://b/k"), Some(Scheme::Google));
    }

    #[test]
    fn an_address_names_a_bucket_and_an_object() {
        assert_eq!(
            bucket_and_key("s3://b/day 1/x.csv").unwrap(),
            BucketKey { bucket: "b", key: "day 1/x.csv" }
        );
        for wrong in ["s3://", "s3://b", "s3://b/", "s3:///k", "s3://b/folder/"] {
            assert!(bucket_and_key(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_escaped_byte_by_byte() {
        assert_eq!(percent_encode("a b/ü+~.csv"), "a%20b/%C3%BC%2B~.csv");
    }
}
