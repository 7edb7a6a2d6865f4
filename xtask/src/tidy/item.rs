//! Lists the items of a file outside tests with their documentation, for the rules about names and
//! comments. Items inside macros are not found.

use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprLit, Field, File, ImplItemConst, ImplItemFn, Item as SynItem, ItemConst,
    ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStatic, ItemStruct, ItemTrait, ItemType, ItemUnion,
    Lit, Local, Meta, Pat, TraitItemFn, Variant, Visibility,
};

use crate::tidy::source::is_test;

/// Derives of clap that turn doc comments into help texts.
const HELP_DERIVES: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];

/// The kind of an item, as far as the rules distinguish kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A struct, an enum, a union or a type alias.
    Type,
    Trait,
    Function,
    /// A closure bound to a name.
    Closure,
    /// A field, a variant or a constant.
    Value,
}

/// One item of a file, with its name and its doc comment.
pub struct Item {
    pub name: String,
    pub kind: ItemKind,
    /// Whether the item is declared `pub`, without a restriction such as `pub(crate)`.
    pub is_public: bool,
    /// Whether the item's comment is a help text, because clap derives it.
    pub is_help: bool,
    /// All lines of the doc comment, joined by spaces; empty if the item has no doc comment.
    pub doc: String,
}

/// Finds the items of one file, in order of appearance.
pub fn find_items(file: &File) -> Vec<Item> {
    let mut items = Items::default();
    items.visit_file(file);
    items.found
}

/// Returns the lines of a doc comment, joined by spaces.
pub fn doc_text(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join(" ").trim().to_owned()
}

/// The visitor that collects the items of a file.
#[derive(Default)]
struct Items {
    found: Vec<Item>,
    is_help: bool,
}

impl Items {
    fn push(&mut self, name: String, kind: ItemKind, vis: Option<&Visibility>, doc: &[Attribute]) {
        let is_public = matches!(vis, Some(Visibility::Public(_)));
        let (is_help, doc) = (self.is_help, doc_text(doc));
        self.found.push(Item { name, kind, is_public, is_help, doc });
    }
}

/// Whether clap derives an item, which makes its comments help texts.
fn is_help(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let derives = list.tokens.to_string();
            let mut words = derives.split(|c: char| !c.is_alphanumeric());
            words.any(|word| HELP_DERIVES.contains(&word))
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item(&mut self, item: &'ast SynItem) {
        let attributes: &[Attribute] = match item {
            SynItem::Struct(ItemStruct { attrs, .. })
            | SynItem::Enum(ItemEnum { attrs, .. })
            | SynItem::Union(ItemUnion { attrs, .. })
            | SynItem::Type(ItemType { attrs, .. })
            | SynItem::Trait(ItemTrait { attrs, .. })
            | SynItem::Const(ItemConst { attrs, .. })
            | SynItem::Static(ItemStatic { attrs, .. })
            | SynItem::Impl(ItemImpl { attrs, .. })
            | SynItem::Mod(ItemMod { attrs, .. })
            | SynItem::Fn(ItemFn { attrs, .. }) => attrs,
            _ => &[],
        };
        let is_unit_test = attributes.iter().any(|one| one.path().is_ident("test"));
        if is_test(attributes) || is_unit_test {
            return;
        }
        // Fields and variants of the item are visited below and inherit the flag.
        self.is_help = is_help(attributes);
        let named = match item {
            SynItem::Struct(item) => Some((&item.ident, ItemKind::Type, &item.vis)),
            SynItem::Enum(item) => Some((&item.ident, ItemKind::Type, &item.vis)),
            SynItem::Union(item) => Some((&item.ident, ItemKind::Type, &item.vis)),
            SynItem::Type(item) => Some((&item.ident, ItemKind::Type, &item.vis)),
            SynItem::Trait(item) => Some((&item.ident, ItemKind::Trait, &item.vis)),
            SynItem::Const(item) => Some((&item.ident, ItemKind::Value, &item.vis)),
            SynItem::Static(item) => Some((&item.ident, ItemKind::Value, &item.vis)),
            SynItem::Fn(item) => Some((&item.sig.ident, ItemKind::Function, &item.vis)),
            _ => None,
        };
        if let Some((name, kind, vis)) = named {
            self.push(name.to_string(), kind, Some(vis), attributes);
        }
        visit::visit_item(self, item);
        self.is_help = false;
    }

    fn visit_field(&mut self, field: &'ast Field) {
        let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        self.push(name, ItemKind::Value, Some(&field.vis), &field.attrs);
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.push(variant.ident.to_string(), ItemKind::Value, None, &variant.attrs);
        visit::visit_variant(self, variant);
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.push(item.ident.to_string(), ItemKind::Value, Some(&item.vis), &item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_test(&item.attrs) {
            let name = item.sig.ident.to_string();
            self.push(name, ItemKind::Function, Some(&item.vis), &item.attrs);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.push(item.sig.ident.to_string(), ItemKind::Function, None, &item.attrs);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let is_closure =
            local.init.as_ref().is_some_and(|init| matches!(*init.expr, Expr::Closure(_)));
        if let (true, Pat::Ident(name)) = (is_closure, &local.pat) {
            self.push(name.ident.to_string(), ItemKind::Closure, None, &[]);
        }
        visit::visit_local(self, local);
    }
}
