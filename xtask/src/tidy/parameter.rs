//! Counts functions with more than seven parameters, members of tuples included. The parameters of
//! such a function should become a struct with a name of the domain. Parameters that are tuples are
//! counted too, because they usually bundle unrelated values to stay below the limit.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{FnArg, ImplItemFn, ItemFn, ItemMod, Signature, TraitItemFn, Type};

use crate::tidy::count::Count;
use crate::tidy::source::{Sources, is_test};

const PARAMETERS: usize = 7;

/// Counts the functions with too many parameters, and the parameters that are tuples.
pub fn count(sources: &Sources) -> [Count; 2] {
    let (mut long, mut tuples) = (BTreeMap::new(), BTreeMap::new());
    for (package, files) in sources {
        let mut functions = Functions::default();
        for (path, file) in files {
            functions.path.clone_from(path);
            functions.visit_file(file);
        }
        long.insert(package.clone(), functions.long);
        tuples.insert(package.clone(), functions.tuples);
    }
    let rule = "parameters";
    let what = "functions of more than seven parameters, members of tuples included";
    [
        Count { rule, table: "parameters", what, places: long },
        Count { rule, table: "tuples", what: "parameters that are tuples", places: tuples },
    ]
}

/// The visitor that collects functions outside test modules, as `file::name`.
#[derive(Default)]
struct Functions {
    path: String,
    long: Vec<String>,
    tuples: Vec<String>,
}

impl Functions {
    fn take(&mut self, signature: &Signature) {
        let types = signature.inputs.iter().filter_map(|argument| match argument {
            FnArg::Typed(typed) => Some(&*typed.ty),
            FnArg::Receiver(_) => None,
        });
        let place = format!("{}::{}", self.path, signature.ident);
        let mut count = 0;
        for members in types.map(members) {
            count += members;
            if members > 1 {
                self.tuples.push(place.clone());
            }
        }
        if count > PARAMETERS {
            self.long.push(place);
        }
    }
}

/// Returns the number of parameters for which a type counts. Each member of a tuple counts as one.
fn members(parameter: &Type) -> usize {
    match parameter {
        Type::Tuple(tuple) if !tuple.elems.is_empty() => tuple.elems.iter().map(members).sum(),
        Type::Reference(reference) => members(&reference.elem),
        Type::Paren(inner) => members(&inner.elem),
        _ => 1,
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            self.take(&item.sig);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_test(&item.attrs) {
            self.take(&item.sig);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.take(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::tidy::source;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn found(tree: &SourceTree) -> Vec<String> {
        let counts = count(&source::parse(tree).unwrap());
        shown(&counts.map(|count| count.check(tree).unwrap()).concat())
    }

    #[test]
    fn members_of_tuples_are_parameters() {
        let text = "fn f(a: u8, (b, c): (u8, &str), d: &(u8, u8), e: [u8; 9], f: u8, g: u8) {}\n\
                    trait T { fn g(&self, a: fn(u8, u8), b: ()); }\n\
                    #[cfg(test)]\nmod tests { fn h(a: (u8, u8)) {} }\n";
        let files = |list: &'static str| {
            SourceTree::new(&[
                ("crates/data/Cargo.toml", ""),
                ("crates/data/src/lib.rs", text),
                ("xtask/ratchet.toml", list),
            ])
        };
        let place = "crates/data/src/lib.rs::f";
        let shown = found(&files(""));
        assert_eq!(
            shown,
            [
                format!(
                    "crates/data:0 parameters: expected no functions of more than seven parameters, \
                     members of tuples included, got 1: {place}"
                ),
                format!(
                    "crates/data:0 parameters: expected no parameters that are tuples, got 2: \
                     {place}, {place}"
                ),
            ]
        );
        let listed = "[parameters]\n\"crates/data\" = 1\n[tuples]\n\"crates/data\" = 3\n";
        let shown = found(&files(listed));
        assert!(shown[0].contains("set \"crates/data\" = 2 in [tuples]"), "{shown:?}");
        assert_eq!(shown.len(), 1);
    }
}
