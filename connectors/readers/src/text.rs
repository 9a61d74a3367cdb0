//! Reads text files: the whole content is text, without a title.

use turnflow_engine::document::Markup;

use super::Content;

/// Content with the unchanged text.
pub fn read(text: String) -> Content {
    Content { title: String::new(), text, markup: Markup::Plain, metadata: Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_interpreted() {
        let content = read("# no title\n\n<b>".to_owned());
        assert_eq!((content.title.as_str(), content.text.as_str()), ("", "# no title\n\n<b>"));
        assert_eq!(content.markup, Markup::Plain);
    }
}
