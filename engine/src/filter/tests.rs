use serde_json::json;

use super::*;
use crate::spec::from_str;

fn turn(extra: &Json) -> Turn {
    let record = json!({"conversation_id": "c", "turn": 1, "text": "t", "history": [], "collection": "docs",
        "extra": extra, "epoch": 1, "entered_us": 0, "sequence": 0, "source": "s", "standing": null, "key": "k"});
    serde_json::from_value(record).unwrap()
}

fn holds(filter: &str, row: &Json, extra: &Json) -> bool {
    let filter: Filter = from_str(filter).unwrap_or_else(|error| panic!("{filter}: {error:?}"));
    assert_eq!(filter.problem(), None);
    // What is shown can be read again.
    assert_eq!(from_str::<Filter>(&filter.to_string()).unwrap(), filter);
    filter.holds(&Metadata::of(row.as_object().unwrap()).0, &turn(extra))
}

#[test]
fn conditions_hold_as_their_names_say() {
    let row = json!({"lang": "en", "groups": ["a", "b"], "date": "2026-05-01", "size": 10, "price": 1.5, "public": true,
        "author": {"name": "Ann"}, "id": "123456789012345678901234567890"});
    for (filter, expected) in [
        ("Eq(\"id\", 123456789012345678901234567890)", true),
        ("Eq(\"id\", 123456789012345678901234567891)", false),
        ("In(\"id\", [1, 123456789012345678901234567890])", true),
        (r#"Eq("lang", "en")"#, true),
        (r#"Eq("lang", "de")"#, false),
        (r#"Eq("groups", "b")"#, true),
        (r#"Eq("public", true)"#, true),
        (r#"Eq("size", 10.0)"#, true),
        (r#"Eq("size", "10")"#, false),
        (r#"Eq("author.name", "Ann")"#, true),
        (r#"In("groups", ["x", "a"])"#, true),
        (r#"In("groups", [])"#, false),
        (r#"Ge("date", "2026")"#, true),
        (r#"Lt("date", "2026-05")"#, false),
        (r#"Gt("size", 9)"#, true),
        (r#"Gt("size", 10)"#, false),
        (r#"Le("price", 1.5)"#, true),
        (r#"Lt("size", "a")"#, false),
        (r#"Ge("size", "")"#, false),
        (r#"Gt("date", 0)"#, false),
        (r#"Prefix("date", "2026-05")"#, true),
        (r#"Prefix("date", "2027")"#, false),
        (r#"Exists("price")"#, true),
        (r#"Exists("cost")"#, false),
        (r#"Not(Eq("cost", 1))"#, true),
        (r#"And([Eq("lang", "en"), Not(Eq("size", 11))])"#, true),
        (r#"Or([Eq("lang", "de"), Exists("date")])"#, true),
        ("And([])", true),
        ("Or([])", false),
    ] {
        assert_eq!(holds(filter, &row, &json!({})), expected, "{filter}");
    }
}

#[test]
fn what_the_turn_lacks_is_never_true() {
    let row = json!({"lang": "en", "groups": "a"});
    let given = json!({"lang": "en", "principal": {"groups": ["x", "a"]}, "empty": []});
    for (filter, with, without) in [
        (r#"Eq("lang", FromTurn("lang"))"#, true, false),
        (r#"Not(Eq("lang", FromTurn("lang")))"#, false, false),
        (r#"In("groups", FromTurn("principal.groups"))"#, true, false),
        (r#"Or([Not(TurnHas("lang")), Eq("lang", FromTurn("lang"))])"#, true, true),
        (r#"And([Exists("lang"), Not(Eq("x", FromTurn("lang")))])"#, true, false),
        (r#"Or([Exists("lang"), Eq("x", FromTurn("lang"))])"#, true, true),
        (r#"Not(And([Eq("x", 1), Eq("lang", FromTurn("lang"))]))"#, true, true),
        (r#"In("lang", FromTurn("empty"))"#, false, false),
        (r#"Not(In("lang", FromTurn("empty")))"#, true, false),
    ] {
        assert_eq!((holds(filter, &row, &given), holds(filter, &row, &json!({}))), (with, without), "{filter}");
    }
    let forged = json!({"principal.groups": ["a"], "principal": {"name": "n"}});
    assert!(!holds(r#"In("groups", FromTurn("principal.groups"))"#, &row, &forged));
    assert!(holds(r#"Eq("lang", FromTurn("collection"))"#, &json!({"lang": "docs"}), &json!({})));
}

#[test]
fn conditions_that_make_no_sense_are_told() {
    let problem = |filter: &str| from_str::<Filter>(filter).unwrap().problem().unwrap_or_default();
    assert!(problem(r#"Not(Eq("a", ["x"]))"#).contains("use `In` for a list"));
    assert!(problem(r#"And([In("a", "x")])"#).contains("use `Eq` for one value"));
    assert!(problem(r#"Gt("a", true)"#).contains("with a number or a text only"));
    assert!(problem(r#"Prefix("a", 7)"#).contains("takes a text"));
    for wrong in [r#"Equal("a", 1)"#, r#"Eq("a")"#, r#"Eq("a", FromTun("x"))"#, r#"Eq("a", [[1]])"#, "Eq"] {
        assert!(from_str::<Filter>(wrong).is_err(), "{wrong}");
    }
}
