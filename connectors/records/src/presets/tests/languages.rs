//! Chats that WhatsApp has exported on phones in many languages.

use super::timed;
use crate::{Mapping, map_files};

/// 2021-01-23 13:05:00 UTC.
const TIME: u64 = 1_611_407_100;

#[test]
fn chats_of_whatsapp_have_their_times_in_all_languages() {
    for written in [
        "23.01.21, 13:05 - ",
        "23.01.21 à 13:05 - ",
        "23.1.2021 klo 13.05 - ",
        "2021-01-23 kl. 13:05 - ",
        "[2021-01-23, 13 h 05 min 00 s] ",
        "2021-01-23 13 h 05 - ",
        "2021-01-23, 1:05 p.m. - ",
        "23.01.2021 1:05 ÖS - ",
        "23.01.21 ÖS 1:05 - ",
        "23.01.21, 1:05 odp. - ",
        "23. 1. 2021 1:05 pop. - ",
        "2021. 01. 23. du. 1:05 - ",
        "23.01.21 г., 13:05 ч. - ",
        "23.01.21, 1:05 пп - ",
        "23.1.21, 1:05 по подне - ",
        "23/1/21, 1:05 μ.μ. - ",
        "23/01/2021, 1:05 CH - ",
        "23.1.2021, 1:05 אחה״צ - ",
        "٢٣/١/٢٠٢١،\u{200f} ١:٠٥ م - ",
        "۲۳/۱/۲۰۲۱،\u{200f} ۱:۰۵ ب.ظ. - ",
        "২৩/১/২১, ১:০৫ PM - ",
        "२३/१/२१, १:०५ अपराह्न - ",
        "23/1/2564 13:05 - ",
        "23/1/2021, 1:05 หลังเที่ยง - ",
        "2021년 1월 23일 오후 1:05, ",
        "[2021. 1. 23. 오후 1:05:00] ",
        "2021年1月23日 下午1:05 - ",
        "[2021/1/23 下午1:05:00] ",
        "2021/01/23 中午1:05 - ",
        "2021/01/23 13:05 - ",
        "23/1/2021, 1:05 de la tarde - ",
        "23/1/21 1:05 PM - ",
    ] {
        let text = format!("{written}Ann: Is it open?\n");
        let found = timed("whatsapp-chat-text", "chat.txt", &text);
        assert_eq!(found, [format!("chat 1 user Is it open? {TIME}")], "{written}");
    }
}

#[test]
fn dates_that_cannot_be_read_are_counted() {
    let code = r##"#: {"start": "^(?<date>[^ ]+) (?<clock>[^-]+) - (?<who>\\w+): (?<text>.*)$", "dates": "Europe/Berlin"}
{conversation: "c", speaker: .who, text, time: (.time | seconds)}"##;
    let mapping = Mapping::of(code).unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.txt");
    let log = "23.01.21 14:05 - user: A?\n31.31.21 14:05 - agent: B.\n23.01.21 13:05Z - user: C?\n\
        23.01.21 14:05 blurb - agent: D.\n23.01.21 99:99 - user: E?\n";
    std::fs::write(&path, log).unwrap();
    let found = map_files(&mapping, &[path], None).unwrap();
    let times: Vec<Option<f64>> = found.turns.iter().map(|turn| turn.timestamp).collect();
    let time = Some(TIME as f64);
    assert_eq!(times.iter().filter(|of| **of == time).count(), 3, "{times:?}");
    assert_eq!((found.turns.len(), found.refused.len()), (5, 0));
    assert_eq!((found.odd.undated, found.odd.undated_line), (2, 2));
    assert_eq!((found.odd.worded, found.odd.worded_line, found.odd.unsure), (1, 4, 0));
    let told = found.odd.remarks();
    assert!(told[0].starts_with("2 messages without a time") && told[0].ends_with("in line 2"), "{told:?}");
}
