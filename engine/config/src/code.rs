//! What is written for every struct and enum.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::Ident;

/// The parts in which structs and enums differ.
pub struct Code {
    pub doc: String,
    pub is_choice: bool,
    /// The entries of the table.
    pub entries: Vec<TokenStream>,
    /// The functions that return defaults.
    pub functions: Vec<TokenStream>,
    /// The checks of ranges.
    pub ranges: TokenStream,
    /// The line of `explain`.
    pub shown: TokenStream,
}

impl Code {
    /// The item with its traits.
    pub fn written(self, owner: &Ident, item: &impl ToTokens) -> TokenStream {
        let Self { doc, is_choice, entries, functions, ranges, shown } = self;
        let name = plain(&owner.to_string());
        let component = quote!(::turnflow_engine::component);
        quote! {
            #[derive(Clone, Debug, #component::fields::serde::Deserialize)]
            #[serde(crate = "::turnflow_engine::component::fields::serde", deny_unknown_fields)]
            #item
            #[allow(dead_code)]
            impl #owner { #(#functions)* }
            impl #component::Configured for #owner {
                fn fields() -> &'static #component::fields::Fields {
                    static FIELDS: #component::fields::Fields = #component::fields::Fields {
                        name: #name,
                        help: #doc,
                        is_choice: #is_choice,
                        fields: &[#(#entries),*],
                    };
                    &FIELDS
                }
                fn check_ranges(&self, check: &mut #component::Check<'_>) {
                    let _ = &check;
                    #ranges
                }
                fn effective(&self) -> String {
                    #shown
                }
            }
            impl #component::fields::Setting for #owner {
                fn kind() -> #component::fields::Kind {
                    #component::fields::Kind::of(<Self as #component::Configured>::fields())
                }
                fn shown(&self) -> Option<String> {
                    #component::fields::inside(self)
                }
            }
        }
    }
}

/// The name of a type in words: `VectorFeedback` is "vector feedback".
fn plain(name: &str) -> String {
    let name = name.strip_suffix("Config").unwrap_or(name);
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
