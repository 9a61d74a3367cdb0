//! Tests of the reader of eml.

use serde_json::{Value, json};

use super::*;

const MAIL: &str = "From: Ada Lovelace <ada@example.org>\r\nTo: =?utf-8?q?B=C3=B6b?= <bob@example.org>, carl@example.org\r\n\
     Subject: =?utf-8?b?RsOkaHJl?= at\r\n ten\r\nDate: Wed, 25 Nov 2026 21:56:49 +0100\r\nMIME-Version: 1.0\r\n\
     Content-Type: multipart/mixed; boundary=outer\r\n\r\n\
     --outer\r\nContent-Type: multipart/alternative; boundary=inner\r\n\r\n\
     --inner\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
     The F=E4hre leaves at ten=\r\n sharp.\r\n\r\nAda\r\n\
     --inner\r\nContent-Type: text/html\r\n\r\n<p>Not <b>this</b></p>\r\n--inner--\r\n\
     --outer\r\nContent-Type: application/pdf; name=\"map.pdf\"\r\nContent-Disposition: attachment; filename=\"map.pdf\"\r\n\
     Content-Transfer-Encoding: base64\r\n\r\nJVBERi0xLjQ=\r\n--outer--\r\n";

#[test]
fn a_message_has_a_subject_a_text_and_names_of_attachments() {
    let content = read(MAIL.as_bytes()).unwrap();
    assert_eq!(content.title, "Fähre at ten");
    assert_eq!(content.text, "The Fähre leaves at ten sharp.\n\nAda");
    assert_eq!(content.markup, Markup::Plain);
    let expected = json!({
        "from": "Ada Lovelace <ada@example.org>", "to": ["Böb <bob@example.org>", "carl@example.org"],
        "date": "2026-11-25T21:56:49+01:00", "attachments": ["map.pdf"],
    });
    assert_eq!(Value::Object(content.metadata.to_json()), expected);
}

#[test]
fn html_is_read_where_there_is_no_plain_text() {
    let mail = "Subject: x\nContent-Type: text/html; charset=utf-8\n\n<h1>Ferry</h1><p>At ten";
    let content = read(mail.as_bytes()).unwrap();
    assert_eq!((&*content.text, content.markup), ("# Ferry\n\nAt ten", Markup::Markdown));
}

#[test]
fn other_texts_are_read_too() {
    for (mail, text) in [
        ("Subject: x\n\nplain\ntext\n", "plain\ntext"),
        ("Subject: x\n\n", ""),
        ("Subject: x\nContent-Type: text/plain; charset=big5\nContent-Transfer-Encoding: base64\n\npMCk5Q==\n", "分文"),
    ] {
        assert_eq!(read(mail.as_bytes()).unwrap().text, text, "{mail}");
    }
    assert_eq!(read(b"").unwrap_err().to_string(), "broken eml: it has no headers");
}

#[test]
fn a_message_that_was_cut_off_keeps_its_text() {
    let cut =
        "Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\nnever closed\n";
    assert_eq!(read(cut.as_bytes()).unwrap().text, "never closed");
    let parts = "Content-Type: multipart/mixed; boundary=b\n\n".to_owned()
        + &"--b\nContent-Type: multipart/mixed; boundary=c\n\n--\n".repeat(9000)
        + &"y\n".repeat(1 << 20);
    assert!(read(parts.as_bytes()).is_ok());
}

#[test]
fn messages_with_millions_of_parts_or_headers_are_errors() {
    let start = "Content-Type: multipart/mixed; boundary=b\n\n";
    for (mail, reason) in [
        (format!("{start}{}", "--b\n\nx\n".repeat(30_000)), "more than 20000 lines that start with `--`"),
        ("a:\n".repeat(600_000), "more than 500000 lines that look like headers"),
        (format!("To: {}", "a,".repeat(5 << 20)), "more than 8388608 bytes of headers"),
        (format!("To: a\n{}", " a,a,a,a,a,a,a\n".repeat(1 << 20)), "more than 8388608 bytes of headers"),
    ] {
        assert_eq!(read(mail.as_bytes()).unwrap_err().to_string(), reason);
    }
    // Messages inside messages, also in a coded part.
    let inner = "Content-Type: message/rfc822\n\n".repeat(100_000);
    assert_eq!(read(inner.as_bytes()).unwrap().text, "");
    let coded = "Content-Type: message/rfc822\nContent-Transfer-Encoding: quoted-printable\n\n".to_owned() + &inner;
    assert_eq!(read(coded.as_bytes()).unwrap().text, "");
    // As many parts as are allowed, one inside the other, take no more time than others.
    let nested: String =
        (0..9000).map(|level| format!("Content-Type: multipart/mixed; boundary=b{level}\n\n--b{level}\n")).collect();
    assert!(read(nested.as_bytes()).is_ok());
}

/// A message with a plain and an HTML form.
fn in_two_forms(plain: &str, page: &str) -> String {
    format!(
        "Subject: Bill\r\nMIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n--b\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\r\n{plain}\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n\
         {page}\r\n--b--\r\n"
    )
}

#[test]
fn the_form_that_has_the_text_is_read() {
    let page = "<p>The ferry bill of this month is 43 euro and 20 cents.<p>It is due on the first of June.";
    let read_page = "The ferry bill of this month is 43 euro and 20 cents.\n\nIt is due on the first of June.";
    for plain in
        ["", " \r\n\r\n", "\u{A0}\u{A0}", "Your mail program cannot show HTML.", &"View this in a browser. ".repeat(30)]
    {
        assert_eq!(read(in_two_forms(plain, page).as_bytes()).unwrap().text, read_page, "{plain:?}");
    }
    let plain = "The ferry bill of this month is 43 euro and 20 cents. It is due on the first of June.";
    let content = read(in_two_forms(plain, page).as_bytes()).unwrap();
    assert_eq!((content.text.as_str(), content.markup), (plain, Markup::Plain));
    assert_eq!(read(in_two_forms("Short.", "<img src=x>").as_bytes()).unwrap().text, "Short.");
}

#[test]
fn forwarded_messages_are_read_with_their_subjects() {
    let mail = "Subject: Fwd\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\n\
                Content-Type: text/plain\r\n\r\nSee below.\r\n--o\r\nContent-Type: message/rfc822\r\n\r\n\
                Subject: Inner bill\r\nContent-Type: text/plain\r\n\r\nIt is 46 euro.\r\n--o--\r\n";
    assert_eq!(read(mail.as_bytes()).unwrap().text, "See below.\n\nForwarded: Inner bill\n\nIt is 46 euro.");
}

#[test]
fn lines_of_a_paragraph_that_flows_are_one_line() {
    let mail = |format: &str| {
        format!("Subject: x\r\nContent-Type: text/plain{format}\r\n\r\nThe bill \r\nis 47 \r\neuro.\r\n-- \r\nAda\r\n")
    };
    assert_eq!(read(mail("; format=flowed").as_bytes()).unwrap().text, "The bill is 47 euro.\n-- \nAda");
    assert_eq!(read(mail("").as_bytes()).unwrap().text, "The bill \nis 47 \neuro.\n-- \nAda");
}

#[test]
fn what_has_no_text_of_its_own_is_read_or_told() {
    let event = "Subject: x\nContent-Type: text/calendar; method=REQUEST\n\nBEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Harbour\n  day\n\
                 DTSTART;TZID=Europe/Oslo:20260303T100000\nLOCATION:Oban\\, quay\nDESCRIPTION:Bring\\nboots\nBEGIN:VALARM\n\
                 DESCRIPTION:Reminder\nEND:VALARM\nEND:VEVENT\nEND:VCALENDAR\n";
    let expected = "Harbour day\nStart: 20260303T100000\nPlace: Oban, quay\nBring\nboots";
    assert_eq!(read(event.as_bytes()).unwrap().text, expected);
    let unmarked = "Subject: x\nContent-Type: multipart/mixed; boundary=A\n\nOnly text\n";
    assert_eq!(read(unmarked.as_bytes()).unwrap().text, "Only text");
    let secret = "Subject: x\nContent-Type: application/pkcs7-mime; smime-type=enveloped-data\n\
                  Content-Transfer-Encoding: base64\n\nAAAA\n";
    assert_eq!(read(secret.as_bytes()).unwrap_err().to_string(), "the eml file is encrypted");
}
