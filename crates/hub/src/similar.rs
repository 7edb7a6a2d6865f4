//! Finds the known names that an unknown one may stand for, for errors.

use schema::reference::distance;

/// Number of similar names in an error.
const SIMILAR_MAX: usize = 3;

/// Returns the known names that are most similar to a name, of which at most a third of the letters
/// differ.
pub fn similar_names<'a>(name: &str, known: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let most = 2.max(name.chars().count() / 3);
    let mut near: Vec<(usize, &String)> = known
        .into_iter()
        .filter(|known| !known.is_empty())
        .map(|known| (distance(name, known), known))
        .filter(|(letters, _)| *letters <= most)
        .collect();
    near.sort();
    near.into_iter().take(SIMILAR_MAX).map(|(_, known)| known.clone()).collect()
}

/// Formats similar names for the end of an error.
pub fn describe_similar(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        [name] => format!("; did you mean {name}?"),
        names => format!("; similar names are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_similar, similar_names};

    #[test]
    fn similar_names_are_few_and_near() {
        let known = ["gpu-1", "gpu-2", "gpu-17", "storage", "", "gpu-99"].map(str::to_owned);
        let similar = similar_names("gpu-7", &known);
        assert_eq!(similar, ["gpu-1", "gpu-17", "gpu-2"]);
        assert_eq!(describe_similar(&similar), "; similar names are gpu-1, gpu-17, gpu-2");
        assert_eq!(describe_similar(&similar_names("storag", &known)), "; did you mean storage?");
        assert_eq!(describe_similar(&similar_names("login", &known)), "");
    }
}
