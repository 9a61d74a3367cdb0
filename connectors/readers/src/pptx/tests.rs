//! Tests of the reader of pptx.

use super::*;
use crate::samples::zipped;

const TYPE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";

/// A shape with paragraphs, and with a place on the slide.
fn shape(place: &str, paragraphs: &[&str]) -> String {
    let place = if place.is_empty() { String::new() } else { format!("<p:ph {place}/>") };
    let texts: String = paragraphs.iter().map(|text| format!("<a:p>{text}</a:p>")).collect();
    format!("<p:sp><p:nvSpPr><p:nvPr>{place}</p:nvPr></p:nvSpPr><p:txBody>{texts}</p:txBody></p:sp>")
}

fn run(text: &str) -> String {
    format!("<a:r><a:rPr/><a:t>{text}</a:t></a:r>")
}

/// A presentation with these slides; the second slide has notes. The slides are listed in reverse.
fn file(slides: &[String]) -> Vec<u8> {
    let slide = |(number, shapes): (usize, &String)| {
        let show = if shapes.contains("hidden") { "0" } else { "1" };
        (format!("ppt/slides/slide{number}.xml"), format!("<p:sld show='{show}'><p:spTree>{shapes}</p:spTree></p:sld>"))
    };
    let mut parts: Vec<(String, String)> = slides.iter().enumerate().map(slide).collect();
    let ids: String =
        (0..slides.len()).rev().map(|number| format!("<p:sldId id='{number}' r:id='r{number}'/>")).collect();
    parts.push((
        "ppt/presentation.xml".to_owned(),
        format!("<p:presentation><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"),
    ));
    let targets = (0..slides.len())
        .map(|number| format!("<Relationship Id='r{number}' Type='{TYPE}/slide' Target='slides/slide{number}.xml'/>"));
    parts.push((
        "ppt/_rels/presentation.xml.rels".to_owned(),
        format!("<Relationships>{}</Relationships>", targets.collect::<String>()),
    ));
    parts.push((
        "ppt/slides/_rels/slide1.xml.rels".to_owned(),
        format!(
            "<Relationships><Relationship Id='n' Type='{TYPE}/notesSlide' Target='../notesSlides/n.xml'/></Relationships>"
        ),
    ));
    let notes = [
        shape("type='sldImg'", &[]),
        shape("type='body' idx='1'", &[&run("Say this.")]),
        shape("type='sldNum'", &[&run("7")]),
    ];
    parts.push(("ppt/notesSlides/n.xml".to_owned(), format!("<p:notes>{}</p:notes>", notes.concat())));
    zipped(&parts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>())
}

#[test]
fn slides_come_in_the_order_of_the_presentation() {
    let last = shape("type='ctrTitle'", &[&run("Last"), &run("slide")]) + &shape("type='subTitle'", &[&run("Sub")]);
    let items = [
        run("one"),
        format!("<a:pPr lvl='1'/>{}<a:br/>{}", run("two"), run("lines")),
        format!("<a:pPr><a:buNone/></a:pPr>{}", run("plain")),
        format!("<a:pPr><a:buAutoNum type='arabicPeriod'/></a:pPr>{}", run("first")),
        format!("<a:pPr><a:buAutoNum type='arabicPeriod'/></a:pPr>{}", run("second")),
    ];
    let items: Vec<&str> = items.iter().map(String::as_str).collect();
    let body = shape("idx='1'", &items);
    let middle = body
        + &shape("", &[&run("A box")])
        + &shape("type='sldNum'", &[&run("3")])
        + &shape("type='title'", &[&run("Ferries")]);
    let first = shape("", &[&run("Only text")]);
    let content = read(&file(&[last, middle, first, shape("", &[&run("hidden")])])).unwrap();
    assert_eq!(content.title, "Ferries");
    assert_eq!(
        content.text,
        "## Slide 2\n\nOnly text\n\n## Ferries\n\n- one\n    - two\n      lines\n\nplain\n\n1. first\n2. second\n\nA box\n\n\
         ### Notes\n\nSay this.\n\n## Last slide\n\nSub"
    );
}

#[test]
fn tables_of_slides_are_tables() {
    let cell = |attributes: &str, text: &str| {
        format!("<a:tc {attributes}><a:txBody><a:p>{}</a:p></a:txBody></a:tc>", run(text))
    };
    let rows = [
        cell("gridSpan='2'", "Port") + &cell("hMerge='1'", "") + &cell("", "Boats"),
        cell("rowSpan='2'", "Oban") + &cell("", "x") + &cell("", "1"),
        cell("vMerge='1'", "") + &cell("", "y") + &cell("", "2"),
    ];
    let rows: String = rows.iter().map(|row| format!("<a:tr>{row}</a:tr>")).collect();
    let frame = format!(
        "<p:graphicFrame><a:graphic><a:graphicData><a:tbl>{rows}</a:tbl></a:graphicData></a:graphic></p:graphicFrame>"
    );
    let expected = "## Slide 1\n\n| Port | | Boats |\n| --- | --- | --- |\n| Oban | x | 1 |\n| Oban | y | 2 |";
    assert_eq!(read(&file(&[frame])).unwrap().text, expected);
}

#[test]
fn a_slide_that_is_listed_again_and_again_is_read_once() {
    let ids = "<p:sldId id='1' r:id='r'/>".repeat(100_000);
    let bytes = zipped(&[
        ("ppt/presentation.xml", &format!("<p:presentation>{ids}</p:presentation>")),
        (
            "ppt/_rels/presentation.xml.rels",
            &format!("<R><Relationship Id='r' Type='{TYPE}/slide' Target='s.xml'/></R>"),
        ),
        ("ppt/s.xml", &format!("<p:sld>{}</p:sld>", shape("", &[&run("once")]))),
    ]);
    assert_eq!(read(&bytes).unwrap().text, "## Slide 1\n\nonce");
}

#[test]
fn what_is_missing_says_so() {
    let none = zipped(&[("a", "b")]);
    assert_eq!(read(&none).unwrap_err().to_string(), "broken pptx: it has no part `ppt/presentation.xml`");
    assert_eq!(read(&file(&[])).unwrap().text, "");
}

#[test]
fn smart_art_charts_and_raised_digits_of_a_slide_are_read() {
    let raised =
        "<a:r><a:t>10</a:t></a:r><a:r><a:rPr baseline='30000'/><a:t>5</a:t></a:r><a:r><a:rPr/><a:t> litres</a:t></a:r>";
    let slide = format!(
        "<p:sld><p:spTree>{}<p:graphicFrame><a:graphicData><d:relIds r:dm='s'/></a:graphicData></p:graphicFrame>\
         <p:graphicFrame><a:graphicData><c:chart r:id='c'/></a:graphicData></p:graphicFrame></p:spTree></p:sld>",
        shape("", &[raised])
    );
    let relation = |id: &str, kind: &str, target: &str| {
        format!("<Relationship Id='{id}' Type='{TYPE}/{kind}' Target='{target}'/>")
    };
    let relations = |all: &[String]| format!("<Relationships>{}</Relationships>", all.concat());
    let text = read(&zipped(&[
        (
            "ppt/presentation.xml",
            "<p:presentation><p:sldIdLst><p:sldId id='1' r:id='r1'/></p:sldIdLst></p:presentation>",
        ),
        ("ppt/_rels/presentation.xml.rels", &relations(&[relation("r1", "slide", "slides/slide1.xml")])),
        ("ppt/slides/slide1.xml", &slide),
        (
            "ppt/slides/_rels/slide1.xml.rels",
            &relations(&[relation("s", "diagramData", "../d.xml"), relation("c", "chart", "../c.xml")]),
        ),
        ("ppt/d.xml", "<d:dataModel><d:pt><d:t><a:p><a:r><a:t>Approve</a:t></a:r></a:p></d:t></d:pt></d:dataModel>"),
        ("ppt/c.xml", "<c:chart><c:title><a:p><a:r><a:t>Revenue</a:t></a:r></a:p></c:title></c:chart>"),
    ]));
    assert_eq!(text.unwrap().text, "## Slide 1\n\n10^5 litres\n\n- Approve\n\nRevenue");
}
