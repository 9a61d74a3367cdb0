//! The attribute [`macro@config`]: a configuration says each thing about a field once, at the field.
//!
//! ```ignore
//! /// Fields of `Rrf`.
//! #[config]
//! pub struct RrfConfig {
//!     /// Input nodes that produce hits.
//!     pub inputs: Vec<String>,
//!     /// Rank constant. The larger it is, the less the first ranks stand out.
//!     #[field(default = 60.0, range = 0.001..=1_000_000.0)]
//!     pub k: f32,
//! }
//! ```
//!
//! Of this it makes how the struct is read (`Deserialize`, without unknown fields), the default, the check of the range,
//! the line of `explain`, and the entry of the reference.
//!
//! `attributes.rs` reads `#[field(…)]`, `structs.rs` and `enums.rs` make the parts of the code, and `code.rs` writes them.
//! The code is little: a table, and calls of functions that are in the engine.

mod attributes;
mod code;
mod enums;
mod structs;

use proc_macro2::TokenStream;
use syn::{Attribute, Error, Item, Result};

/// Makes a struct or an enum part of the configuration of a component.
///
/// It derives `Clone`, `Debug` and `Deserialize`; list further traits in `#[derive]` below it. Every field needs a doc
/// comment, which the reference shows. A field without a default is required, unless it is an `Option`. A field
/// `_name` has the name `name` in files, for values that only the engine reads.
///
/// `#[config(default)]` derives `Default`, too, if every field has a default.
///
/// A field may have `#[field(…)]` with:
///
/// - `default = VALUE`, or `default` for that of its type. `Self::default_NAME()` returns the value.
/// - `range = LOW..=HIGH` or `range = LOW..`: other values are reported as `out-of-range`. For numbers, and options of them.
/// - `within`: the ranges of the fields inside it are checked.
/// - `unset = "WORDS"`: what `explain` says of an option that is not set; otherwise nothing.
/// - `show = FUNCTION`: what `explain` says of it, a `fn(&T) -> Option<String>`; for what has secrets or is long.
/// - `hidden`: `explain` does not show it. `input` and `inputs` are hidden always: `explain` shows the graph.
#[proc_macro_attribute]
pub fn config(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(arguments.into(), item.into()).unwrap_or_else(Error::into_compile_error).into()
}

/// The code for an item with the attribute.
fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let all_default = match arguments.to_string().as_str() {
        "" => false,
        "default" => true,
        _ => return Err(Error::new_spanned(arguments, "expected `#[config]` or `#[config(default)]`")),
    };
    match syn::parse2(item)? {
        Item::Struct(item) => structs::expand(item, all_default),
        Item::Enum(item) if !all_default => enums::expand(item),
        other => Err(Error::new_spanned(other, "`#[config]` is for structs with named fields, and for enums")),
    }
}

/// The text of the doc comments.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
        let syn::Meta::NameValue(doc) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &doc.value else { return None };
        Some(text.value().trim().to_owned())
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests;
