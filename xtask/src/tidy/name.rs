//! Refuses names of files and types that do not describe their content, such as `utils`.

use crate::mask::{is_word, line_of, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "name";

const BANNED: [&str; 10] = [
    "utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "handler",
    "handlers",
];

/// Finds files and types with refused names.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        for part in path.split('/') {
            let stem = part.split('.').next().unwrap_or(part).to_lowercase();
            if stem.split(['_', '-']).any(|word| BANNED.contains(&word)) || is_numbered(&stem) {
                let problem = format!("{part:?} describes nothing; name what it holds");
                found.push(Violation::new(RULE, path, 0, problem));
            }
        }
        if !path.ends_with(".rs") {
            continue;
        }
        let code = mask(text).code;
        for keyword in ["struct", "enum", "trait", "type", "mod"] {
            for at in words(&code, keyword) {
                let name = name_after(&code, at + keyword.len());
                if is_banned_type(name) {
                    let problem = format!("`{name}` describes nothing; name what it holds");
                    found.push(Violation::new(RULE, path, line_of(&code, at), problem));
                }
            }
        }
    }
    found
}

fn name_after(code: &str, at: usize) -> &str {
    let rest = code[at..].trim_start();
    let length = rest.bytes().take_while(|&byte| is_word(byte)).count();
    &rest[..length]
}

/// Whether a name is a numbered variant such as `impl2` or `kernel3`. Of several variants, the best
/// one should keep the plain name.
fn is_numbered(name: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    ["impl", "kernel"].iter().any(|stem| name.strip_prefix(stem).is_some_and(digits))
}

/// Whether the last word of a type's name is banned. `BatchManager` is banned, but `BaseTime` is
/// not.
fn is_banned_type(name: &str) -> bool {
    let last = name.rfind(|c: char| c.is_uppercase() || c == '_').unwrap_or(0);
    let last = name[last..].trim_start_matches('_').to_lowercase();
    BANNED.contains(&last.as_str()) || is_numbered(&name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tree::SourceTree;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        find_violations(&SourceTree::new(&[(path, text)]))
            .into_iter()
            .map(|violation| violation.line)
            .collect()
    }

    #[test]
    fn banned_files() {
        assert_eq!(lines("crates/data/src/utils.rs", ""), [0]);
        assert_eq!(lines("crates/data/src/io_helpers/mod.rs", ""), [0]);
        assert_eq!(lines("crates/device/src/kernel3.cu", ""), [0]);
        assert_eq!(lines("crates/data/src/database.rs", ""), Vec::<usize>::new());
    }

    #[test]
    fn banned_types() {
        let text = "struct BatchManager;\nstruct BaseTime;\nenum Handler {}\n// struct Helper;\n\
                    struct Avx2;\nmod common {}\nstruct Kernel3;";
        assert_eq!(lines("crates/data/src/a.rs", text), [1, 7, 3, 6]);
    }
}
