//! Counts files of a crate that import each other in a circle, because none of them can be read,
//! tested or moved without the others.
//!
//! A file imports another file if a `use` or a path names an item of that file, even through
//! re-exports. The re-exports themselves (`pub use`) and test modules do not count. Paths in
//! arguments of macros are not found.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{File, ItemImpl, ItemMod, ItemUse, UseTree, Visibility};

use crate::tidy::count::Count;
use crate::tidy::source::{Sources, is_test};

/// The path of a module, or of an item in one, from the root of the crate.
type Path = Vec<String>;

/// Counts the files of each package that are part of a circle.
pub fn count(sources: &Sources) -> Count {
    let files_in_circles = sources.iter().map(|(package, files)| {
        let circles = find_circles(package, files);
        (package.clone(), circles.concat())
    });
    let places = files_in_circles.collect();
    Count { rule: "circle", table: "circles", what: "files in circles", places }
}

/// Finds the circles of a package, each as a list of module names.
fn find_circles(package: &str, files: &[(String, File)]) -> Vec<Vec<String>> {
    let below = format!("{package}/src/").len();
    let files = files.iter().map(|(path, file)| (module_path(&path[below..]), file));
    let files: BTreeMap<Path, &File> = files.collect();
    let re_exports = find_re_exports(&files);
    let modules: BTreeSet<&Path> = files.keys().collect();
    let edges: BTreeMap<Path, BTreeSet<Path>> = files
        .iter()
        .map(|(own, file)| {
            let paths = Imports::collect(own, &modules, file).into_iter();
            let owners = paths.map(|path| resolve_owner(&path, &modules, &re_exports, 0));
            (own.clone(), owners.filter(|other| other != own && modules.contains(other)).collect())
        })
        .collect();
    let name = |module: &Path| match module.is_empty() {
        true => "lib".to_owned(),
        false => module.join("::"),
    };
    let all = find_groups(&edges).into_iter();
    all.map(|files| files.iter().map(name).collect()).collect()
}

/// Returns the module path of a file below `src/`.
fn module_path(file: &str) -> Path {
    let file = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match file {
        "lib" | "main" => Vec::new(),
        _ => file.split('/').map(str::to_owned).collect(),
    }
}

/// Finds the re-exports of a package. The result maps the path of a re-exported name to the path of
/// its item.
fn find_re_exports(files: &BTreeMap<Path, &File>) -> BTreeMap<Path, Path> {
    let modules: BTreeSet<&Path> = files.keys().collect();
    let mut found = BTreeMap::new();
    for (own, file) in files {
        let public = file.items.iter().filter_map(|item| match item {
            syn::Item::Use(one) if !matches!(one.vis, Visibility::Inherited) => Some(one),
            _ => None,
        });
        for item in public {
            let mut names = Vec::new();
            expand_use(&item.tree, &mut Vec::new(), &mut names);
            for (name, path) in names {
                let Some(path) = resolve_path(own, &modules, &path) else { continue };
                found.insert([own.as_slice(), &[name]].concat(), path);
            }
        }
    }
    found
}

/// Lists every name that a `use` imports, with its path.
fn expand_use(tree: &UseTree, before: &mut Path, names: &mut Vec<(String, Path)>) {
    let with = |last: String| [before.as_slice(), &[last]].concat();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            expand_use(&path.tree, before, names);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            names.push((before.last().cloned().unwrap_or_default(), before.clone()));
        }
        UseTree::Name(name) => names.push((name.ident.to_string(), with(name.ident.to_string()))),
        UseTree::Rename(name) => {
            names.push((name.rename.to_string(), with(name.ident.to_string())));
        }
        UseTree::Glob(_) => names.push(("*".to_owned(), before.clone())),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| expand_use(tree, before, names));
        }
    }
}

/// Resolves a path in the module `own` to a path from the crate's root, or returns `None` if it
/// leads out of the crate.
fn resolve_path(own: &Path, modules: &BTreeSet<&Path>, path: &[String]) -> Option<Path> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([own.as_slice(), rest].concat()),
        "super" => {
            let (_, parent) = own.split_last()?;
            let parent = parent.to_vec();
            match rest.first().map(String::as_str) {
                Some("super") => resolve_path(&parent, modules, rest),
                _ => Some([parent.as_slice(), rest].concat()),
            }
        }
        _ => {
            // A path without `crate`, `self` or `super` starts at a child module or at another
            // crate.
            let child = [own.as_slice(), std::slice::from_ref(first)].concat();
            modules.contains(&child).then(|| [child.as_slice(), rest].concat())
        }
    }
}

/// Returns the module that defines the item of a path, after following re-exports.
fn resolve_owner(
    path: &[String],
    modules: &BTreeSet<&Path>,
    re_exports: &BTreeMap<Path, Path>,
    depth: usize,
) -> Path {
    // Re-exports may form a cycle without a definition, so the number of steps is limited.
    const DEEPEST: usize = 8;
    let mut module = Path::new();
    for (at, name) in path.iter().enumerate() {
        let next = [module.as_slice(), std::slice::from_ref(name)].concat();
        if modules.contains(&next) {
            module = next;
        } else if let Some(other) = re_exports.get(&next).filter(|_| depth < DEEPEST) {
            let other = [other.as_slice(), &path[at + 1..]].concat();
            return resolve_owner(&other, modules, re_exports, depth + 1);
        } else {
            break;
        }
    }
    module
}

/// Collects the paths that a file names, from the root of the crate.
struct Imports<'a> {
    /// The current module, which is the file's own module or an inline module in it.
    module: Path,
    modules: &'a BTreeSet<&'a Path>,
    found: BTreeSet<Path>,
}

impl<'a> Imports<'a> {
    fn collect(own: &Path, modules: &'a BTreeSet<&'a Path>, file: &File) -> BTreeSet<Path> {
        let mut imports = Self { module: own.clone(), modules, found: BTreeSet::new() };
        imports.visit_file(file);
        imports.found
    }

    fn take(&mut self, path: &[String]) {
        self.found.extend(resolve_path(&self.module, self.modules, path));
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() || is_test(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A `pub use` only passes an item on. The files that use the item count as its importers.
        if is_test(&item.attrs) || !matches!(item.vis, Visibility::Inherited) {
            return;
        }
        let mut names = Vec::new();
        expand_use(&item.tree, &mut Vec::new(), &mut names);
        names.iter().for_each(|(_, path)| self.take(path));
    }

    /// Ignores visibilities: `pub(in crate::ops)` names a module but does not import from it.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single name is a local item or was imported by a `use`, which is visited on its own.
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let names: Path = path.segments.iter().map(|one| one.ident.to_string()).collect();
            self.take(&names);
        }
        visit::visit_path(self, path);
    }
}

/// Finds groups of at least two nodes that reach each other.
fn find_groups(edges: &BTreeMap<Path, BTreeSet<Path>>) -> Vec<Vec<Path>> {
    // A crate has at most a few hundred files, so storing the set of reachable files for each file
    // is cheap enough.
    // Two files are in the same circle if each reaches the other.
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        edges.keys().map(|from| (from, find_reachable(edges, from))).collect();
    let mut left: BTreeSet<&Path> = edges.keys().collect();
    let mut groups = Vec::new();
    while let Some(first) = left.pop_first() {
        let mutual =
            |other: &&&Path| reached[first].contains(**other) && reached[**other].contains(first);
        let others: Vec<&Path> = left.iter().filter(mutual).copied().collect();
        if others.is_empty() {
            continue;
        }
        left.retain(|other| !others.contains(other));
        groups.push(std::iter::once(first).chain(others).cloned().collect());
    }
    groups
}

fn find_reachable<'a>(
    edges: &'a BTreeMap<Path, BTreeSet<Path>>,
    from: &Path,
) -> BTreeSet<&'a Path> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Path> = edges[from].iter().collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(&edges[next]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::tidy::source;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn found(list: &str, files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(path, _)| format!("crates/data/src/{path}")).collect();
        let mut all = vec![("crates/data/Cargo.toml", ""), ("xtask/ratchet.toml", list)];
        all.extend(paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)));
        let tree = SourceTree::new(&all);
        shown(&count(&source::parse(&tree).unwrap()).check(&tree).unwrap())
    }

    #[test]
    fn files_that_import_each_other_are_named() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;\n"),
            ("a.rs", "use crate::B;\npub struct A(B);\n"),
            ("b.rs", "mod d;\npub struct B;\nfn f() { d::g() }\n"),
            ("b/d.rs", "pub fn g() { crate::a::f(); }\n"),
            ("c.rs", "use super::{a::A, b};\n"),
        ];
        let circle = "expected no files in circles, got 3: a, b, b::d";
        assert_eq!(found("", &files), [format!("crates/data:0 circle: {circle}")]);
        assert_eq!(found("[circles]\n\"crates/data\" = 3\n", &files), Vec::<String>::new());
        let grown = found("[circles]\n\"crates/data\" = 2\n", &files);
        assert!(grown[0].contains("may only shrink, got 3"), "{grown:?}");
        let shrunk = found("[circles]\n\"crates/data\" = 9\n\"crates/x\" = 1\n", &files);
        assert!(shrunk[0].contains("set \"crates/data\" = 3 in [circles]"), "{shrunk:?}");
        assert!(shrunk[1].contains("\"crates/x\" is not a package"), "{shrunk:?}");
    }

    #[test]
    fn re_exports_and_tests_close_no_circle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\nfn f() {}\n"),
            (
                "a.rs",
                "pub(in crate::b) struct A;\npub use crate::b::B;\n#[cfg(test)]\nmod tests { use crate::b::B; }\n",
            ),
            ("b.rs", "use crate::a::A;\nmod inner { use super::super::a; use std::fs; }\n"),
        ];
        assert_eq!(found("", &files), Vec::<String>::new());
    }
}
