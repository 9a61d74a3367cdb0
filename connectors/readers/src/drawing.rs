//! Reads what slides and texts show beside their words: the texts of SmartArt, and the titles and numbers of charts.

use std::collections::HashMap;

use super::ReadError;
use super::archive::Archive;
use super::markup::{MOST_COLUMNS, Markdown};
use super::package::{Relations, texts};
use super::xml::{Event, Xml, attribute, end_name, name};

/// Maximum number of rows of a chart.
const MOST_ROWS: usize = 100_000;

/// What a drawing says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// The texts of SmartArt, in their order.
    Texts(Vec<String>),
    /// A chart: its title, and a row for each category after a row with the names of the series.
    Chart {
        /// The title; may be empty.
        title: String,
        /// The rows.
        rows: Vec<Vec<String>>,
    },
}

impl Figure {
    /// Writes what it says.
    pub(super) fn write(&self, markdown: &mut Markdown) -> Result<(), ReadError> {
        match self {
            Self::Texts(texts) => texts.iter().try_for_each(|text| markdown.item(0, "-", text)),
            Self::Chart { title, rows } => {
                markdown.paragraph(title)?;
                markdown.table(rows)
            }
        }
    }
}

/// The drawings that a part refers to, by the ids of its relationships.
pub(super) fn figures(archive: &mut Archive<'_>, relations: &Relations) -> Result<HashMap<String, Figure>, ReadError> {
    let mut figures = HashMap::new();
    for kind in ["diagramData", "chart"] {
        for (id, path) in relations.by_id(kind) {
            let Some(text) = archive.part(path)? else { continue };
            let figure = match kind {
                "chart" => chart(archive.format, &text)?,
                _ => diagram(archive.format, &text)?,
            };
            figures.insert(id.to_owned(), figure);
        }
    }
    Ok(figures)
}

/// The texts of SmartArt (ECMA-376-1, 21.4.3.5): those of its nodes, and not of the lines between them.
fn diagram(format: &'static str, text: &str) -> Result<Figure, ReadError> {
    let mut all = Vec::new();
    let mut xml = Xml::new(format, text);
    while let Some(event) = xml.next()? {
        let Event::Open(start) = event else { continue };
        if name(&start) == "pt" {
            let kind = attribute(&start, "type").unwrap_or_default();
            let words = texts(&mut xml, "pt")?;
            let is_node = matches!(kind.as_str(), "" | "node" | "asst");
            all.extend(Some(words).filter(|words| is_node && !words.trim().is_empty()));
        }
    }
    Ok(Figure::Texts(all))
}

/// A chart (ECMA-376-1, 21.2), with the numbers that the program has stored in it.
fn chart(format: &'static str, text: &str) -> Result<Figure, ReadError> {
    #[derive(Default)]
    struct Series {
        name: String,
        categories: HashMap<usize, String>,
        values: HashMap<usize, String>,
    }
    let (mut title, mut all) = (String::new(), Vec::<Series>::new());
    // The element that has the numbers, and the place of the next one.
    let (mut part, mut at) = (String::new(), 0_usize);
    let mut xml = Xml::new(format, text);
    while let Some(event) = xml.next()? {
        match event {
            Event::Open(start) => match name(&start) {
                "title" if all.is_empty() => title = texts(&mut xml, "title")?,
                // The titles of axes.
                "title" => xml.skip()?,
                "ser" => all.push(Series::default()),
                element @ ("tx" | "cat" | "val" | "xVal" | "yVal") => part = element.to_owned(),
                "pt" => at = attribute(&start, "idx").and_then(|at| at.parse().ok()).unwrap_or_default(),
                "v" => {
                    let value = xml.text_inside()?;
                    let Some(series) = all.last_mut().filter(|_| at < MOST_ROWS) else { continue };
                    match part.as_str() {
                        "tx" => series.name = value,
                        "cat" | "xVal" => drop(series.categories.insert(at, value)),
                        "val" | "yVal" => drop(series.values.insert(at, value)),
                        _ => {}
                    }
                }
                _ => {}
            },
            Event::Close(end) if matches!(end_name(&end), "tx" | "cat" | "val" | "xVal" | "yVal") => part.clear(),
            Event::Close(_) | Event::Text(_) => {}
        }
    }
    all.truncate(MOST_COLUMNS - 1);
    let mut rows = vec![std::iter::once(String::new()).chain(all.iter().map(|series| series.name.clone())).collect()];
    let count = all.iter().flat_map(|series| series.values.keys().chain(series.categories.keys())).max();
    for at in 0..count.map_or(0, |last| last + 1) {
        let category = all.iter().find_map(|series| series.categories.get(&at)).cloned().unwrap_or_default();
        let values = all.iter().map(|series| series.values.get(&at).cloned().unwrap_or_default());
        rows.push(std::iter::once(category).chain(values).collect::<Vec<_>>());
    }
    rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
    Ok(Figure::Chart { title, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_a_table() {
        let series = |name: &str, values: &[&str]| {
            let points = |texts: &[&str]| {
                let points =
                    texts.iter().enumerate().map(|(at, text)| format!("<c:pt idx='{at}'><c:v>{text}</c:v></c:pt>"));
                points.collect::<String>()
            };
            format!(
                "<c:ser><c:tx><c:strRef><c:f>S!B1</c:f><c:strCache>{}</c:strCache></c:strRef></c:tx><c:cat><c:strCache>{}\
                 </c:strCache></c:cat><c:val><c:numCache><c:formatCode>General</c:formatCode>{}</c:numCache></c:val></c:ser>",
                points(&[name]),
                points(&["Q1", "Q2"]),
                points(values),
            )
        };
        let text = format!(
            "<c:chartSpace xmlns:c='c' xmlns:a='a'><c:chart><c:title><c:tx><a:p><a:r><a:t>Revenue</a:t></a:r></a:p></c:tx></c:title>\
             <c:plotArea>{}{}<c:catAx><c:title><a:t>Quarter</a:t></c:title></c:catAx></c:plotArea></c:chart></c:chartSpace>",
            series("North", &["1.5", "2"]),
            series("South", &["3", "4"]),
        );
        let mut markdown = Markdown::default();
        chart("pptx", &text).unwrap().write(&mut markdown).unwrap();
        let text = markdown.finish(String::new(), Default::default()).text;
        assert_eq!(text, "Revenue\n\n| | North | South |\n| --- | --- | --- |\n| Q1 | 1.5 | 3 |\n| Q2 | 2 | 4 |");
    }

    #[test]
    fn the_nodes_of_smart_art_are_read() {
        let text = "<d:dataModel xmlns:d='d' xmlns:a='a'><d:ptLst><d:pt type='doc'><d:t><a:p/></d:t></d:pt>\
                    <d:pt><d:t><a:p><a:r><a:t>Draft</a:t></a:r></a:p></d:t></d:pt>\
                    <d:pt type='parTrans'><d:t><a:p><a:r><a:t>line</a:t></a:r></a:p></d:t></d:pt>\
                    <d:pt type='node'><d:t><a:p><a:r><a:t>Approve</a:t></a:r></a:p></d:t></d:pt></d:ptLst></d:dataModel>";
        let figure = diagram("pptx", text).unwrap();
        assert_eq!(figure, Figure::Texts(vec!["Draft".to_owned(), "Approve".to_owned()]));
    }
}
