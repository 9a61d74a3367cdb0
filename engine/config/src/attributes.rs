//! Reads `#[field(…)]` and the other attributes of a field.

use quote::ToTokens;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, ExprPath, ExprRange, Field, Ident, LitStr, RangeLimits, Result, Type};

/// The default of a field.
pub enum Default {
    /// That of its type.
    OfType,
    /// This value.
    Is(Expr),
}

/// What the attributes of a field say.
#[derive(std::default::Default)]
pub struct Said {
    pub default: Option<Default>,
    pub range: Option<(Expr, Option<Expr>)>,
    pub within: bool,
    pub unset: Option<LitStr>,
    pub show: Option<ExprPath>,
    pub hidden: bool,
    /// The name in files, if it is another one.
    pub renamed: Option<String>,
}

/// Reads the attributes of a field, and removes `#[field(…)]`.
pub fn read(field: &mut Field) -> Result<Said> {
    let mut said = Said::default();
    for attribute in &field.attrs {
        if attribute.path().is_ident("field") {
            attribute.parse_nested_meta(|meta| said.add(&meta))?;
        } else if attribute.path().is_ident("serde") {
            said.renamed = renamed(attribute)?.or(said.renamed.take());
        }
    }
    field.attrs.retain(|attribute| !attribute.path().is_ident("field"));
    if said.unset.is_some() && !is_option(&field.ty) {
        return Err(Error::new_spanned(&field.ty, "`unset` is for an `Option`: other fields always have a value"));
    }
    if is_option(&field.ty) && matches!(said.default, Some(Default::OfType)) {
        return Err(Error::new_spanned(&field.ty, "an `Option` needs no `default`: without a value it is `None`"));
    }
    Ok(said)
}

impl Said {
    /// The default and the range as they are written.
    pub fn in_words(&self) -> String {
        let mut words = String::new();
        if let Some(Default::Is(value)) = &self.default {
            words += &format!(" Default: `{}`.", value.to_token_stream());
        }
        if let Some((low, high)) = &self.range {
            let high = high.as_ref().map(|high| format!(" and at most `{}`", high.to_token_stream()));
            words += &format!(" At least `{}`{}.", low.to_token_stream(), high.unwrap_or_default());
        }
        words
    }

    fn add(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let is_value = meta.input.peek(syn::Token![=]);
        let name = meta.path.get_ident().map(Ident::to_string).unwrap_or_default();
        match (name.as_str(), is_value) {
            ("default", true) => self.default = Some(Default::Is(meta.value()?.parse()?)),
            ("default", false) => self.default = Some(Default::OfType),
            ("range", true) => self.range = Some(range(meta.value()?.parse()?)?),
            ("within", false) => self.within = true,
            ("unset", true) => self.unset = Some(meta.value()?.parse()?),
            ("show", true) => self.show = Some(meta.value()?.parse()?),
            ("hidden", false) => self.hidden = true,
            _ => {
                let expected =
                    "expected `default`, `default = …`, `range = …`, `within`, `unset = \"…\"`, `show = …` or `hidden`";
                return Err(meta.error(expected));
            }
        }
        Ok(())
    }
}

/// The bounds of `low..=high` or `low..`.
fn range(expression: Expr) -> Result<(Expr, Option<Expr>)> {
    let expected = "expected `low..=high` or `low..`";
    let Expr::Range(ExprRange { start: Some(low), end, limits, .. }) = &expression else {
        return Err(Error::new_spanned(expression, expected));
    };
    match (end, limits) {
        (Some(high), RangeLimits::Closed(_)) => Ok((Expr::clone(low), Some(Expr::clone(high)))),
        (None, _) => Ok((Expr::clone(low), None)),
        _ => Err(Error::new_spanned(expression, expected)),
    }
}

/// The name that serde gives a field. Refuses a default of serde's: the reference would not have it.
fn renamed(attribute: &Attribute) -> Result<Option<String>> {
    let mut renamed = None;
    attribute.parse_nested_meta(|meta| {
        if meta.path.is_ident("default") {
            return Err(meta.error("write `#[field(default)]` or `#[field(default = …)]`"));
        }
        if meta.input.peek(syn::Token![=]) {
            let value: Expr = meta.value()?.parse()?;
            if meta.path.is_ident("rename") {
                renamed = Some(value.to_token_stream().to_string().trim_matches('"').to_owned());
            }
        }
        Ok(())
    })?;
    Ok(renamed)
}

/// Whether a type is an `Option`, as it is written.
pub fn is_option(kind: &Type) -> bool {
    matches!(kind, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}
