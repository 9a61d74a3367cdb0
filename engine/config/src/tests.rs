//! What the attribute makes, and what it refuses. `fields.rs` of the engine has tests of the code as it runs.

use quote::quote;

use super::*;

/// The code for an item, without white space.
fn made(item: TokenStream) -> String {
    let code = expand(TokenStream::new(), item).unwrap();
    syn::parse2::<syn::File>(code.clone()).unwrap();
    code.to_string().replace([' ', '\n'], "")
}

fn refused(arguments: TokenStream, item: TokenStream) -> String {
    expand(arguments, item).unwrap_err().to_string()
}

/// A struct with one field `k` of this type, with these attributes.
fn one(attributes: TokenStream, kind: TokenStream) -> TokenStream {
    quote!(
        struct OneConfig {
            /// A field.
            #attributes
            k: #kind,
        }
    )
}

#[test]
fn a_default_is_a_function_that_serde_calls() {
    let code = made(one(quote!(#[field(default = 60.0)]), quote!(f32)));
    assert!(code.contains("#[serde(default=\"OneConfig::default_k\")]"), "{code}");
    assert!(code.contains("pubfndefault_k()->f32{60.0}"), "{code}");
    assert!(code.contains("required:false"), "{code}");
    let code = made(one(quote!(#[field(default = "sub")]), quote!(Arc<str>)));
    assert!(code.contains("{::core::convert::Into::into(\"sub\")}"), "{code}");
    let code = made(one(quote!(#[field(default)]), quote!(Vec<String>)));
    assert!(code.contains("#[serde(default)]") && !code.contains("pubfn"), "{code}");
}

#[test]
fn a_field_without_a_default_is_required_unless_it_is_an_option() {
    for (kind, required) in [(quote!(f32), true), (quote!(Option<f32>), false)] {
        let code = made(one(quote!(), kind));
        assert_eq!(code.contains("required:true"), required, "{code}");
    }
}

#[test]
fn ranges_are_checked_for_values_and_for_options() {
    let code = made(one(quote!(#[field(range = 1..=10)]), quote!(usize)));
    assert!(code.contains("{letvalue=&self.k;check.range(\"k\",*value,1,10);}"), "{code}");
    let code = made(one(quote!(#[field(range = 1..)]), quote!(Option<usize>)));
    assert!(code.contains("ifletSome(value)=&self.k{check.at_least(\"k\",*value,1);}"), "{code}");
}

#[test]
fn names_come_from_the_field_or_from_serde() {
    let item = quote!(
        struct NamedConfig {
            /// A node.
            _input: String,
            /// A field.
            #[serde(rename = "type")]
            kind: String,
        }
    );
    let code = made(item);
    assert!(code.contains("#[serde(rename=\"input\")]") && code.contains("name:\"type\""), "{code}");
    assert!(code.contains("name:\"named\""), "{code}");
    assert!(!code.contains("(\"input\","), "`explain` does not show an input: {code}");
}

#[test]
fn all_defaults_make_the_default_of_the_struct() {
    let item = one(quote!(#[field(default = 3)]), quote!(u32));
    let code = expand(quote!(default), item).unwrap().to_string();
    assert!(code.contains(":: core :: default :: Default for OneConfig"), "{code}");
    let item = one(quote!(), quote!(u32));
    assert_eq!(refused(quote!(default), item), "`#[config(default)]` needs a default for every field");
}

#[test]
fn variants_show_their_names_and_what_is_in_them() {
    let item = quote!(
        enum Program {
            /// None.
            Off,
            /// A program.
            Jq(#[field(hidden)] String),
            /// By a column.
            Cursor {
                /// Seconds.
                #[field(default = 1.0, range = 0.1..=9.0)]
                every_s: f64,
            },
        }
    );
    let code = made(item);
    assert!(code.contains("fndefault_cursor_every_s()->f64{1.0}"), "{code}");
    assert!(code.contains("with(\"Jq\",&[{let_=value0;None::<String>}])"), "{code}");
    assert!(code.contains("check.range(\"every_s\",*value,0.1,9.0)"), "{code}");
    assert!(code.contains("Self::Off=>\"Off\".to_owned()"), "{code}");
}

#[test]
fn misuse_is_told() {
    for (attributes, kind, message) in [
        (quote!(#[field(rnage = 1..=2)]), quote!(u32), "expected `default`, `default = …`, `range = …`"),
        (quote!(#[field(range = 1..2)]), quote!(u32), "expected `low..=high` or `low..`"),
        (quote!(#[field(range = 5)]), quote!(u32), "expected `low..=high` or `low..`"),
        (quote!(#[field(hidden = true)]), quote!(u32), "expected `default`"),
        (quote!(#[field(unset = "all")]), quote!(u32), "`unset` is for an `Option`"),
        (quote!(#[field(default)]), quote!(Option<u32>), "an `Option` needs no `default`"),
        (quote!(#[serde(default = "f")]), quote!(u32), "write `#[field(default)]` or `#[field(default = …)]`"),
    ] {
        let told = refused(quote!(), one(attributes, kind));
        assert!(told.contains(message), "{told}");
    }
    let bare = quote!(
        struct Bare {
            k: u32,
        }
    );
    assert_eq!(refused(quote!(), bare), "this field has no doc comment, and the reference needs one");
    for (item, message) in [
        (
            quote!(
                struct Pair(u32, u32);
            ),
            "`#[config]` is for structs with named fields, without parameters",
        ),
        (quote!(union Bits { a: u8, b: i8 }), "`#[config]` is for structs with named fields, and for enums"),
        (
            quote!(
                enum Of<T> {
                    One(T),
                }
            ),
            "`#[config]` is for enums without parameters",
        ),
        (
            quote!(
                enum Value {
                    One(#[field(range = 1..)] u8),
                }
            ),
            "a value without a name can only be `hidden` or `within`",
        ),
    ] {
        assert_eq!(refused(quote!(), item), message);
    }
    let item = one(quote!(), quote!(u32));
    assert_eq!(refused(quote!(all), item), "expected `#[config]` or `#[config(default)]`");
}
