//! The code for a struct.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, Expr, ExprLit, Field, Fields, Ident, ItemStruct, Lit, Result, Type, parse_quote};

use crate::attributes::{self, Default, Said, is_option};
use crate::code::Code;

/// A field with all that is said of it.
pub struct Known {
    pub ident: Ident,
    pub kind: Type,
    /// Its name in files.
    pub name: String,
    /// The name of the function that returns its default.
    pub default: Ident,
    pub said: Said,
    pub doc: String,
}

pub fn expand(mut item: ItemStruct, all_default: bool) -> Result<TokenStream> {
    if !item.generics.params.is_empty() || matches!(item.fields, Fields::Unnamed(_)) {
        return Err(Error::new_spanned(&item, "`#[config]` is for structs with named fields, without parameters"));
    }
    let owner = item.ident.clone();
    let fields = item.fields.iter_mut().map(|field| known(field, &owner, "")).collect::<Result<Vec<_>>>()?;
    if all_default
        && let Some(field) = fields.iter().find(|field| field.said.default.is_none() && !is_option(&field.kind))
    {
        return Err(Error::new_spanned(&field.ident, "`#[config(default)]` needs a default for every field"));
    }
    let doc = crate::doc(&item.attrs);
    let entries = fields.iter().map(|field| entry(field, &owner)).collect();
    let functions = fields.iter().filter_map(default_of).collect();
    let (ranges, shown) = (fields.iter().filter_map(check_own), fields.iter().filter_map(shown_own));
    let ranges = quote!(#(#ranges)*);
    let shown = quote!(::turnflow_engine::component::fields::line(&[#(#shown),*]));
    let code = Code { doc, is_choice: false, entries, functions, ranges, shown }.written(&owner, &item);
    let whole_default = all_default.then(|| whole_default(&owner, &fields));
    Ok(quote!(#code #whole_default))
}

/// Reads a field, and gives it the attributes for serde. The field of a variant of an enum has a prefix.
pub fn known(field: &mut Field, owner: &Ident, prefix: &str) -> Result<Known> {
    let ident = field.ident.clone().ok_or_else(|| Error::new_spanned(&*field, "a field needs a name"))?;
    let (said, doc) = (attributes::read(field)?, crate::doc(&field.attrs));
    if doc.is_empty() {
        return Err(Error::new_spanned(&ident, "this field has no doc comment, and the reference needs one"));
    }
    let written = ident.to_string();
    let plain = written.trim_start_matches('_').to_owned();
    if said.renamed.is_none() && plain != written {
        field.attrs.push(parse_quote!(#[serde(rename = #plain)]));
    }
    let default = format_ident!("default_{prefix}{plain}");
    match &said.default {
        Some(Default::OfType) => field.attrs.push(parse_quote!(#[serde(default)])),
        Some(Default::Is(_)) => {
            let function = format!("{owner}::{default}");
            field.attrs.push(parse_quote!(#[serde(default = #function)]));
        }
        None => {}
    }
    // For the pages of rustdoc, which have no table.
    let said_so = said.in_words();
    if !said_so.is_empty() {
        field.attrs.push(parse_quote!(#[doc = #said_so]));
    }
    let name = said.renamed.clone().unwrap_or(plain);
    Ok(Known { ident, kind: field.ty.clone(), name, default, said, doc })
}

/// The function that returns the default of a field.
pub fn default_of(field: &Known) -> Option<TokenStream> {
    let Some(Default::Is(value)) = &field.said.default else { return None };
    let (function, kind, value) = (&field.default, &field.kind, value_of(value));
    Some(quote! {
        #[doc(hidden)]
        pub fn #function() -> #kind { #value }
    })
}

/// A literal text is for any type of text.
fn value_of(value: &Expr) -> TokenStream {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => quote!(::core::convert::Into::into(#value)),
        _ => quote!(#value),
    }
}

fn whole_default(owner: &Ident, fields: &[Known]) -> TokenStream {
    let values = fields.iter().map(|field| {
        let ident = &field.ident;
        match &field.said.default {
            Some(Default::Is(value)) => {
                let value = value_of(value);
                quote!(#ident: #value)
            }
            _ => quote!(#ident: ::core::default::Default::default()),
        }
    });
    quote!(impl ::core::default::Default for #owner { fn default() -> Self { Self { #(#values),* } } })
}

/// The entry of the table.
pub fn entry(field: &Known, owner: &Ident) -> TokenStream {
    let Known { kind, name, default: function, said, doc, .. } = field;
    let fields_in = quote!(::turnflow_engine::component::fields);
    let required = said.default.is_none() && !is_option(kind);
    let default = match (&said.default, &said.unset) {
        (Some(Default::Is(_)), _) => quote!(Some(|| #fields_in::shown(&#owner::#function()))),
        (Some(Default::OfType), _) => {
            quote!(Some(|| #fields_in::shown(&<#kind as ::core::default::Default>::default())))
        }
        (None, Some(words)) => quote!(Some(|| #words.to_owned())),
        (None, None) => quote!(None),
    };
    let range = match &said.range {
        Some((low, Some(high))) => quote!(Some(|| ((#low).to_string(), Some((#high).to_string())))),
        Some((low, None)) => quote!(Some(|| ((#low).to_string(), None))),
        None => quote!(None),
    };
    quote! {
        #fields_in::Field {
            name: #name,
            help: #doc,
            required: #required,
            kind: <#kind as #fields_in::Setting>::kind,
            default: #default,
            range: #range,
        }
    }
}

/// The check of a field's range, or of those inside it. `at` is a reference to its value.
pub fn check(field: &Known, at: &TokenStream) -> Option<TokenStream> {
    let Known { kind, name, said, .. } = field;
    let test = match &said.range {
        Some((low, Some(high))) => quote!(check.range(#name, *value, #low, #high)),
        Some((low, None)) => quote!(check.at_least(#name, *value, #low)),
        None if said.within => {
            quote!(check.within(#name, |check| ::turnflow_engine::component::Configured::check_ranges(value, check)))
        }
        None => return None,
    };
    Some(match is_option(kind) {
        true => quote!(if let Some(value) = #at { #test; }),
        false => quote!({ let value = #at; #test; }),
    })
}

fn check_own(field: &Known) -> Option<TokenStream> {
    let ident = &field.ident;
    check(field, &quote!(&self.#ident))
}

/// What `explain` shows of a field, with its name. `at` is a reference to its value.
pub fn shown(field: &Known, at: &TokenStream) -> Option<TokenStream> {
    let Known { name, said, .. } = field;
    if said.hidden || ["input", "inputs"].contains(&name.as_str()) {
        return None;
    }
    let shown = match &said.show {
        Some(function) => quote!(::turnflow_engine::component::fields::Setting::shown(&#function(#at))),
        None => quote!(::turnflow_engine::component::fields::Setting::shown(#at)),
    };
    Some(match &said.unset {
        Some(words) => quote!((#name, #shown.or_else(|| Some(#words.to_owned())))),
        None => quote!((#name, #shown)),
    })
}

fn shown_own(field: &Known) -> Option<TokenStream> {
    let ident = &field.ident;
    shown(field, &quote!(&self.#ident))
}
