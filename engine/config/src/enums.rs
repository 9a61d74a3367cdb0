//! The code for an enum: a choice, whose variants may have values or fields.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, Field, Fields, Ident, ItemEnum, Result, Variant};

use crate::attributes;
use crate::code::Code;
use crate::structs::{self, Known, check, default_of, known};

pub fn expand(mut item: ItemEnum) -> Result<TokenStream> {
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(&item.generics, "`#[config]` is for enums without parameters"));
    }
    let owner = item.ident.clone();
    let doc = crate::doc(&item.attrs);
    let variants = item.variants.iter_mut().map(|variant| Choice::new(variant, &owner)).collect::<Result<Vec<_>>>()?;
    let functions = variants.iter().flat_map(|variant| variant.fields.iter().filter_map(default_of)).collect();
    let entries = variants.iter().map(Choice::entry).collect();
    let (ranges, shown) = (variants.iter().map(Choice::ranges), variants.iter().map(Choice::shown));
    let (ranges, shown) = (quote!(match self { #(#ranges),* }), quote!(match self { #(#shown),* }));
    Ok(Code { doc, is_choice: true, entries, functions, ranges, shown }.written(&owner, &item))
}

/// A variant.
struct Choice {
    ident: Ident,
    doc: String,
    is_named: bool,
    /// Its fields, or its values, which have names that no file has.
    fields: Vec<Known>,
}

impl Choice {
    /// The defaults of its fields are functions of the enum.
    fn new(variant: &mut Variant, owner: &Ident) -> Result<Self> {
        let prefix = format!("{}_", variant.ident.to_string().to_lowercase());
        let fields = match &mut variant.fields {
            Fields::Unit => Vec::new(),
            Fields::Named(fields) => {
                fields.named.iter_mut().map(|field| known(field, owner, &prefix)).collect::<Result<_>>()?
            }
            Fields::Unnamed(values) => {
                values.unnamed.iter_mut().enumerate().map(|(at, value)| unnamed(at, value)).collect::<Result<_>>()?
            }
        };
        let is_named = matches!(variant.fields, Fields::Named(_));
        Ok(Self { ident: variant.ident.clone(), doc: crate::doc(&variant.attrs), is_named, fields })
    }

    /// The entry of the table: the variant with the types or the names of what is in its parentheses.
    fn entry(&self) -> TokenStream {
        let Self { ident, doc, .. } = self;
        let fields_in = quote!(::turnflow_engine::component::fields);
        let (name, kinds) = (ident.to_string(), self.fields.iter().map(|field| &field.kind));
        let kinds = quote!(vec![#(<#kinds as #fields_in::Setting>::kind()),*]);
        let kind = match self.is_named {
            true => {
                let names = self.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
                quote!(|| #fields_in::Kind::named(#names, #kinds))
            }
            false if self.fields.is_empty() => quote!(#fields_in::Kind::default),
            false => quote!(|| #fields_in::Kind::several(#kinds)),
        };
        quote! {
            #fields_in::Field { name: #name, help: #doc, required: false, kind: #kind, default: None, range: None }
        }
    }

    /// The pattern that binds its fields or values.
    fn pattern(&self) -> TokenStream {
        let Self { ident, .. } = self;
        let idents = self.fields.iter().map(|field| &field.ident);
        match self.is_named {
            true => quote!(Self::#ident { #(#idents),* }),
            false if self.fields.is_empty() => quote!(Self::#ident),
            false => quote!(Self::#ident(#(#idents),*)),
        }
    }

    /// The arm that checks its ranges.
    fn ranges(&self) -> TokenStream {
        let ident = &self.ident;
        let checks: Vec<TokenStream> = self.fields.iter().filter_map(range).collect();
        if checks.is_empty() {
            return quote!(Self::#ident { .. } => {});
        }
        let (pattern, idents) = (self.pattern(), self.fields.iter().map(|field| &field.ident));
        quote!(#pattern => { let _ = (#(&#idents),*); #(#checks)* })
    }

    /// The arm that shows it.
    fn shown(&self) -> TokenStream {
        let fields_in = quote!(::turnflow_engine::component::fields);
        let (pattern, name) = (self.pattern(), self.ident.to_string());
        if self.is_named {
            let idents = self.fields.iter().map(|field| &field.ident);
            let shown = self.fields.iter().filter_map(|field| {
                let ident = &field.ident;
                structs::shown(field, &quote!(#ident))
            });
            let line = quote!(format!("{}({})", #name, #fields_in::line(&[#(#shown),*])));
            return quote!(#pattern => { let _ = (#(#idents),*); #line });
        }
        if self.fields.is_empty() {
            return quote!(#pattern => #name.to_owned());
        }
        let shown = self.fields.iter().map(|field| {
            let ident = &field.ident;
            match field.said.hidden {
                true => quote!({ let _ = #ident; None::<String> }),
                false => quote!(#fields_in::Setting::shown(#ident)),
            }
        });
        quote!(#pattern => #fields_in::with(#name, &[#(#shown),*]))
    }
}

/// A value in the parentheses of a variant.
fn unnamed(at: usize, value: &mut Field) -> Result<Known> {
    let said = attributes::read(value)?;
    if said.default.is_some() || said.range.is_some() || said.unset.is_some() || said.show.is_some() {
        return Err(Error::new_spanned(value, "a value without a name can only be `hidden` or `within`"));
    }
    let (ident, default) = (format_ident!("value{at}"), format_ident!("default_value{at}"));
    Ok(Known { ident, kind: value.ty.clone(), name: String::new(), default, said, doc: String::new() })
}

/// The check of a field or a value of a variant. What is in parentheses without a name is where the variant is.
fn range(field: &Known) -> Option<TokenStream> {
    let ident = &field.ident;
    if field.name.is_empty() {
        let check = quote!(::turnflow_engine::component::Configured::check_ranges(#ident, check));
        return field.said.within.then(|| quote!(#check;));
    }
    check(field, &quote!(#ident))
}
