//! Sets values in the tree of a pipeline file, as `--set` does.

use turnflow_engine::spec::{Entry, Kind, Name, Tree};

/// Sets a value by its path, as `--set` does. If the path does not exist, returns the unknown part and
/// the valid names in its place.
pub(crate) fn put(tree: &mut Tree, path: &str, value: Tree) -> Result<(), (String, Vec<String>)> {
    let mut at = tree;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let names = at.entries().unwrap_or_default().iter().map(|entry| entry.key.text.clone()).collect();
        let last = parts.peek().is_none();
        let next = match &mut at.kind {
            Kind::Map(entries) | Kind::Struct(_, entries) => {
                match entries.iter().position(|entry| entry.key.text == part) {
                    Some(found) => Some(&mut entries[found].value),
                    None if last => {
                        entries.push(Entry { key: Name { text: part.to_owned(), span: value.span }, value });
                        return Ok(());
                    }
                    None => None,
                }
            }
            Kind::Seq(items) | Kind::Tuple(_, items) => part.parse().ok().and_then(|at: usize| items.get_mut(at)),
            Kind::Scalar(_) => None,
        };
        at = next.ok_or_else(|| (part.to_owned(), names))?;
    }
    *at = value;
    Ok(())
}
