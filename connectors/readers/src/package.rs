//! What office files have in common: relationships between parts, and properties.

use turnflow_engine::metadata::Metadata;

use super::archive::{Archive, resolve};
use super::fields::{Fields, tidy};
use super::raised::{Height, Heights};
use super::xml::{Event, Xml, attribute, end_name, name};
use super::{ReadError, xml};

/// Titles that programs write by themselves.
const NO_TITLES: &[&str] = &[
    "PowerPoint Presentation",
    "PowerPoint-Präsentation",
    "Présentation PowerPoint",
    "Presentación de PowerPoint",
    "Presentazione standard di PowerPoint",
    "Apresentação do PowerPoint",
    "Word Document",
];

/// Relationships of one part to others.
#[derive(Default)]
pub(super) struct Relations(Vec<Relation>);

struct Relation {
    id: String,
    kind: String,
    path: String,
}

impl Relations {
    /// Reads the relationships of a part; of the whole file if the path is empty. There may be none.
    pub(super) fn of(archive: &mut Archive<'_>, path: &str) -> Result<Self, ReadError> {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let separator = if folder.is_empty() { "" } else { "/" };
        let Some(text) = archive.part(&format!("{folder}{separator}_rels/{file}.rels"))? else {
            return Ok(Self::default());
        };
        let mut relations = Vec::new();
        let mut xml = Xml::new(archive.format, &text);
        while let Some(event) = xml.next()? {
            let Event::Open(start) = event else { continue };
            let is_external = attribute(&start, "TargetMode").as_deref() == Some("External");
            if name(&start) != "Relationship" || is_external {
                continue;
            }
            let [id, kind, target] = ["Id", "Type", "Target"].map(|name| attribute(&start, name).unwrap_or_default());
            let kind = kind.rsplit('/').next().unwrap_or_default().to_owned();
            relations.push(Relation { id, kind, path: resolve(path, &target) });
        }
        Ok(Self(relations))
    }

    /// The path of the first part of a kind, such as `styles`.
    pub(super) fn first(&self, kind: &str) -> Option<&str> {
        self.0.iter().find(|relation| relation.kind == kind).map(|relation| relation.path.as_str())
    }

    /// The paths by id, of one kind.
    pub(super) fn by_id(&self, kind: &str) -> std::collections::HashMap<&str, &str> {
        let of_kind = self.0.iter().filter(|relation| relation.kind == kind);
        of_kind.map(|relation| (relation.id.as_str(), relation.path.as_str())).collect()
    }
}

/// The main part of an office file, with its relationships, and the file's title and metadata.
pub(super) struct Package {
    /// Path of the main part.
    pub(super) main: String,
    /// Relationships of the main part.
    pub(super) relations: Relations,
    /// The title; empty if there is none.
    pub(super) title: String,
    /// The author and other properties.
    pub(super) metadata: Metadata,
}

impl Package {
    /// Reads what comes before the main part. `main` is the usual path of the main part.
    pub(super) fn open(archive: &mut Archive<'_>, main: &str) -> Result<Self, ReadError> {
        let relations = Relations::of(archive, "")?;
        let main = relations.first("officeDocument").unwrap_or(main).to_owned();
        let core = relations.first("core-properties").unwrap_or("docProps/core.xml");
        let (title, metadata) = match archive.part(core)? {
            Some(core) => properties(archive.format, &core)?,
            None => Default::default(),
        };
        let relations = Relations::of(archive, &main)?;
        Ok(Self { main, relations, title, metadata })
    }
}

/// Reads the core properties: the title and the metadata.
fn properties(format: &'static str, core: &str) -> Result<(String, Metadata), ReadError> {
    let mut fields = Fields::default();
    let mut title = String::new();
    let mut xml = Xml::new(format, core);
    while let Some(event) = xml.next()? {
        let Event::Open(start) = event else { continue };
        let field = match name(&start) {
            "title" => "",
            "creator" => "author",
            "modified" => "updated",
            "lastModifiedBy" => "updated_by",
            "created" => "created",
            "description" => "description",
            "keywords" => "keywords",
            "language" => "language",
            "subject" => "subject",
            "category" => "category",
            _ => continue,
        };
        let text = xml.text_inside()?;
        match field {
            "" => title = tidy(&text),
            "keywords" => fields.keywords(&text),
            field => fields.text(field, &text),
        }
    }
    if NO_TITLES.contains(&title.as_str()) {
        title.clear();
    }
    Ok((title, fields.finish()))
}

/// The text of the elements `t` up to the end of an element, without the reading aids of Asian scripts.
pub(super) fn texts(xml: &mut Xml<'_>, until: &str) -> Result<String, ReadError> {
    let mut text = String::new();
    let (mut heights, mut height) = (Heights::default(), Height::Line);
    loop {
        match xml.next()? {
            Some(Event::Open(start)) => match xml::name(&start) {
                "t" => heights.push(&mut text, height, &xml.text_inside()?),
                "r" => height = Height::Line,
                "vertAlign" => height = Height::named(&attribute(&start, "val").unwrap_or_default()),
                "rPh" | "rt" | "del" | "moveFrom" | "Fallback" => xml.skip()?,
                "p" | "br" | "cr" | "tab" if !text.is_empty() => text.push(' '),
                _ => {}
            },
            Some(Event::Close(end)) if end_name(&end) == until => return Ok(text),
            Some(_) => {}
            None => return Ok(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn properties_become_metadata() {
        let core = "<cp:coreProperties xmlns:cp='c' xmlns:dc='d' xmlns:dcterms='t'><dc:title> A  title</dc:title>\
                    <dc:creator>Ada</dc:creator><cp:keywords>a, b</cp:keywords><dc:language>en-GB</dc:language>\
                    <cp:revision>4</cp:revision><dcterms:created>2026-01-02T03:04:05Z</dcterms:created>\
                    <dcterms:modified>2026-02-03T04:05:06Z</dcterms:modified><dc:subject/></cp:coreProperties>";
        let (title, metadata) = properties("docx", core).unwrap();
        assert_eq!(title, "A title");
        let expected = json!({"author": "Ada", "keywords": ["a", "b"], "language": "en-GB",
                              "created": "2026-01-02T03:04:05Z", "updated": "2026-02-03T04:05:06Z"});
        assert_eq!(Value::Object(metadata.to_json()), expected);
        let (title, _) = properties("pptx", "<a><title>PowerPoint Presentation</title></a>").unwrap();
        assert_eq!(title, "");
    }
}
