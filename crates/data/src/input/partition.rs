//! Parses columns that are encoded in the path of a file, such as `device=phone/part-0.parquet`, as
//! Hive and Spark write them. This module does not open files.

use std::path::Path;

/// Hive's name for a missing value.
const MISSING: &[u8] = b"__HIVE_DEFAULT_PARTITION__";

/// Parses the folders of `path` that have the form `key=value`, the outermost first.
pub(crate) fn parse_keys(path: &Path) -> Vec<(String, Vec<u8>)> {
    let folders = path.parent().into_iter().flat_map(Path::components);
    let pair = |folder: std::path::Component<'_>| {
        let (key, value) = folder.as_os_str().to_str()?.split_once('=')?;
        let value = percent_decode(value);
        let value = if value == MISSING { Vec::new() } else { value };
        let key = String::from_utf8(percent_decode(key)).ok()?;
        (!key.is_empty()).then_some((key, value))
    };
    folders.filter_map(pair).collect()
}

/// Parses the keys of `path` that are not among `names`, the columns of the file itself.
pub(crate) fn keys_missing_from(names: &[String], path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut keys = parse_keys(path);
    keys.retain(|(key, _)| !names.contains(key));
    keys
}

/// Decodes `%2F` and other percent escapes.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let code = behind.get(..2).filter(|_| byte == b'%');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &behind[2..] } else { behind };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse_keys;

    #[test]
    fn partition_folders_give_columns_and_values() {
        let check = |path: &str, expected: &[(&str, &str)]| {
            let expected: Vec<(String, Vec<u8>)> =
                expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            assert_eq!(parse_keys(Path::new(path)), expected, "{path}");
        };
        check(
            "dt=2024-05-01/device=phone/part-0.parquet",
            &[("dt", "2024-05-01"), ("device", "phone")],
        );
        check("s3://bucket/at=a%2Fb%/x.csv", &[("at", "a/b%")]);
        check("/a/device=__HIVE_DEFAULT_PARTITION__/b=/x.csv", &[("device", ""), ("b", "")]);
        check("a/=x/b/c=d.csv", &[]);
    }
}
