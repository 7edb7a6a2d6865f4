//! Rewrites messages of libraries and of the operating system for users. Error numbers are removed,
//! and names of Rust types are replaced by words.

/// Start of the error number in messages of the standard library, such as ` (os error 13)`.
const MARK: &str = " (os error ";
/// Start of the messages in which serde reports values of a wrong type.
const WRONG: [&str; 2] = ["invalid type: ", "invalid value: "];
const EXPECTED: &str = ", expected ";

/// Rewrites a message for users. Text without error numbers and types stays unchanged.
pub fn plain(text: &str) -> String {
    reordered(&without_numbers(text))
}

fn without_numbers(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(MARK) {
        let (before, marked) = rest.split_at(at);
        let number = &marked[MARK.len()..];
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let is_number = digits > 0 && number.as_bytes().get(digits) == Some(&b')');
        plain += before;
        plain += if is_number { "" } else { MARK };
        rest = if is_number { &number[digits + 1..] } else { number };
    }
    plain + rest
}

/// Rewrites `invalid type: string "x", expected u64` as `expected a whole number, got the text
/// "x"`.
fn reordered(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((at, mark)) = first_of(rest) {
        let (before, marked) = rest.split_at(at);
        plain += before;
        let said = &marked[mark.len()..];
        let line = said.find('\n').unwrap_or(said.len());
        // The value comes first and may itself contain `, expected `, so the last occurrence is
        // serde's.
        let Some(middle) = said[..line].rfind(EXPECTED) else {
            plain += mark;
            rest = said;
            continue;
        };
        let (got, expected) = (&said[..middle], &said[middle + EXPECTED.len()..line]);
        let end = expected.find(" at line ").unwrap_or(expected.len());
        plain += &format!("expected {}, got {}", type_words(&expected[..end]), value_words(got));
        rest = &said[middle + EXPECTED.len() + end..];
    }
    plain + rest
}

fn first_of(text: &str) -> Option<(usize, &'static str)> {
    WRONG.into_iter().filter_map(|mark| text.find(mark).map(|at| (at, mark))).min()
}

fn type_words(name: &str) -> &str {
    match name {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" => "text such as \"a\"",
        "a boolean" | "bool" => "true or false",
        "a sequence" => "a list such as [1, 2]",
        "a map" => "keys with values",
        other if other.starts_with("struct ") || other.contains("tagged enum ") => {
            "keys with values"
        }
        other if other.starts_with("enum ") => "one of the allowed names",
        other => other,
    }
}

fn value_words(got: &str) -> String {
    for kind in ["integer `", "floating point `", "boolean `"] {
        if let Some(value) = got.strip_prefix(kind).and_then(|rest| rest.strip_suffix('`')) {
            return value.to_owned();
        }
    }
    match got {
        "sequence" => "a list".to_owned(),
        "map" => "keys with values".to_owned(),
        other => match other.strip_prefix("string ") {
            Some(text) => format!("the text {text}"),
            None => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn errors_of_the_operating_system_lose_their_numbers() {
        let error = std::io::Error::from_raw_os_error(2).to_string();
        assert_eq!(plain(&format!("a: {error}; b: {error}")).matches("os error").count(), 0);
        assert_eq!(plain("x (os error 13): y"), "x: y");
        for text in ["", "x (os error", "x (os error 1", "x (os error )", "é (os error x)"] {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn rust_types_become_words() {
        let check = |text: &str, expected: &str| assert_eq!(plain(text), expected);
        let error = serde_json::from_str::<Vec<u64>>("[3, \"a, expected b\"]").unwrap_err();
        check(
            &format!("plan.json: {error}"),
            "plan.json: expected a whole number from 0 on, got the text \"a, expected b\" \
             at line 1 column 19",
        );
        check("invalid type: integer `3`, expected a boolean", "expected true or false, got 3");
        check(
            "x\ninvalid type: map, expected f64\ny",
            "x\nexpected a number, got keys with values\ny",
        );
        check(
            "invalid value: integer `-1`, expected u32",
            "expected a whole number from 0 on, got -1",
        );
        for text in ["invalid type: ", "invalid value: x expected y", "expected u64"] {
            check(text, text);
        }
    }
}
