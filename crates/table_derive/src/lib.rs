//! Derives `schema::table::TableRow` and `CellType`, which give the columns of a table from the
//! struct of its rows and its serde attributes. The file `schema/table.rs` defines what a column
//! is.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::ParseStream;
use syn::{Data, DeriveInput, Error, Field, Fields, LitStr, Result, Token, parse_macro_input};

/// Derives `TableRow` for a struct with named fields: one column per serialized field.
///
/// The macro supports serde's `rename`, `flatten`, `skip`, `skip_serializing` and
/// `skip_serializing_if`. Any other attribute that changes what is serialized is a compile error.
#[proc_macro_derive(TableRow)]
pub fn derive_table_row(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    table_row(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `CellType` for the type of one cell. An enum whose variants have no fields becomes text,
/// a tuple struct takes the type of its only field, and a struct with named fields becomes a nested
/// value.
#[proc_macro_derive(CellType)]
pub fn derive_cell_type(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    cell_type(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn table_row(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "expected a struct for a row"));
    };
    // An attribute that renames all fields would need serde's own conversion of names.
    if let Some(attribute) = input.attrs.iter().find(|one| one.path().is_ident("serde")) {
        return Err(Error::new_spanned(
            attribute,
            "TableRow supports serde attributes only on fields",
        ));
    }
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(&input.ident, "expected named fields for a row"));
    };
    let columns: Vec<_> = fields.named.iter().map(push_columns).collect::<Result<_>>()?;
    let (name, (generics, arguments, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        impl #generics ::schema::table::TableRow for #name #arguments #bounds {
            fn columns() -> ::std::vec::Vec<::schema::table::Column> {
                let mut columns = ::std::vec::Vec::new();
                #(#columns)*
                columns
            }
        }
    })
}

/// Returns the statement that appends the columns of one field.
fn push_columns(field: &Field) -> Result<TokenStream> {
    let value_type = &field.ty;
    let mut name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
    let (mut is_skipped, mut is_flat, mut is_optional) = (false, false, false);
    for attribute in field.attrs.iter().filter(|one| one.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            let key = meta.path.require_ident()?.to_string();
            match key.as_str() {
                "skip" | "skip_serializing" => is_skipped = true,
                "flatten" => is_flat = true,
                "rename" => name = meta.value()?.parse::<LitStr>()?.value(),
                "skip_serializing_if" => {
                    is_optional = true;
                    meta.value()?.parse::<LitStr>()?;
                }
                "default" => skip_value(meta.input)?,
                _ => return Err(meta.error("TableRow does not support this serde attribute")),
            }
            Ok(())
        })?;
    }
    Ok(match (is_skipped, is_flat) {
        (true, _) => TokenStream::new(),
        (_, true) => quote! {
            columns.extend(<#value_type as ::schema::table::TableRow>::columns());
        },
        _ => quote! {
            let mut column = ::schema::table::Column::new::<#value_type>(#name);
            column.is_nullable |= #is_optional;
            columns.push(column);
        },
    })
}

fn skip_value(input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        input.parse::<LitStr>()?;
    }
    Ok(())
}

fn cell_type(input: &DeriveInput) -> Result<TokenStream> {
    let value_type = match &input.data {
        Data::Enum(data) if data.variants.iter().all(|one| one.fields.is_empty()) => {
            quote!(::schema::table::ColumnType::Text)
        }
        Data::Struct(data) => match &data.fields {
            Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                let inner = fields.unnamed.iter().map(|field| &field.ty);
                quote!(#(<#inner as ::schema::table::CellType>::TYPE)*)
            }
            _ => quote!(::schema::table::ColumnType::Nested),
        },
        _ => {
            return Err(Error::new_spanned(
                &input.ident,
                "expected variants without fields for a cell",
            ));
        }
    };
    let (name, (generics, arguments, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        impl #generics ::schema::table::CellType for #name #arguments #bounds {
            const TYPE: ::schema::table::ColumnType = #value_type;
        }
    })
}
