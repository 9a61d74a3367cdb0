use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::metadata::Metadata;
use crate::spec::from_str;

fn chunk(id: usize, number: u32, row: &Json) -> Arc<Chunk> {
    let metadata = Metadata::of(row.as_object().unwrap()).0;
    let mut chunk = Chunk::new(id.to_string().into(), "d".into(), "".into(), "t".into());
    if let Some(groups) = row.get("groups") {
        chunk.readers = if groups.is_null() { Readers::Groups([].into()) } else { Readers::named(&metadata, "groups") };
    }
    chunk.metadata = metadata;
    chunk.place.assign(number);
    Arc::new(chunk)
}

fn turn(extra: &Json) -> Turn {
    let record = json!({"conversation_id": "c", "turn": 1, "text": "t", "history": [], "collection": null,
        "extra": extra, "epoch": 1, "entered_us": 0, "sequence": 0, "source": "s", "standing": null, "key": "k"});
    serde_json::from_value(record).unwrap()
}

fn row() -> impl Strategy<Value = Json> {
    let value = prop_oneof![
        (0..4_i64).prop_map(Json::from),
        (0..8_i64).prop_map(|value| json!(value as f64 / 4.0)),
        "[ab]{0,2}".prop_map(Json::from),
        any::<bool>().prop_map(Json::from),
        proptest::collection::vec("[ab]", 0..3).prop_map(Json::from),
    ];
    let groups = prop_oneof![
        Just(None),
        Just(Some(Json::Null)),
        proptest::collection::vec("[xyz*]", 0..3).prop_map(|groups| Some(Json::from(groups))),
    ];
    (proptest::collection::btree_map("[pq]", value, 0..3), groups).prop_map(|(fields, groups)| {
        let mut row: serde_json::Map<String, Json> = fields.into_iter().collect();
        row.extend(groups.map(|groups| ("groups".to_owned(), groups)));
        Json::Object(row)
    })
}

fn filter() -> impl Strategy<Value = String> {
    let field = prop_oneof![Just("p"), Just("q"), Just("r")];
    let value = prop_oneof![
        Just("1".to_owned()),
        Just("0.5".to_owned()),
        Just("\"a\"".to_owned()),
        Just("\"ab\"".to_owned()),
        Just("FromTurn(\"given\")".to_owned()),
        Just("FromTurn(\"lacking\")".to_owned()),
    ];
    let one = prop_oneof![
        (prop_oneof![Just("Eq"), Just("Lt"), Just("Le"), Just("Gt"), Just("Ge"), Just("Prefix")], field.clone(), value)
            .prop_map(|(name, field, value)| format!("{name}(\"{field}\", {value})")),
        field.clone().prop_map(|field| format!("In(\"{field}\", [\"a\", 2, true])")),
        field.prop_map(|field| format!("Exists(\"{field}\")")),
        Just("TurnHas(\"given\")".to_owned()),
    ];
    one.prop_recursive(3, 8, 3, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            list.clone().prop_map(|all| format!("And([{}])", all.join(", "))),
            list.prop_map(|all| format!("Or([{}])", all.join(", "))),
            inner.prop_map(|one| format!("Not({one})")),
        ]
    })
}

proptest! {
    /// After any history, the bitmaps permit exactly the passages for which the filter is true and that the principal may
    /// read, and a table that is built at once permits the same.
    #[test]
    fn permitted_are_exactly_those_that_meet_the_filter(
        history in proptest::collection::vec((0..12_usize, proptest::option::of(row())), 1..40),
        filters in proptest::collection::vec(filter(), 1..4),
        groups in proptest::collection::vec("[xyz*]", 0..3),
    ) {
        let turn = turn(&json!({"given": ["a", 1], "principal": {"groups": groups}}));
        let filters: Vec<Filter> = filters.iter().map(|text| from_str(text).unwrap()).collect();
        let mut passages = Passages::default();
        let mut live: BTreeMap<usize, Arc<Chunk>> = BTreeMap::new();
        let (mut free, mut next) = (Vec::new(), 0);
        for (id, row) in history {
            let mut delta = Delta::default();
            if let Some(old) = live.remove(&id) {
                free.extend(old.place.get());
                delta.removed.push(old);
            }
            if let Some(row) = row {
                let number = free.pop().unwrap_or_else(|| { next += 1; next - 1 });
                let chunk = chunk(id, number, &row);
                live.insert(id, chunk.clone());
                delta.added.push(chunk);
            }
            passages = passages.next(&delta);
            let whole = Passages::of(live.values());
            for filter in filters.iter().map(Some).chain([None]) {
                let permitted = passages.permitted(filter, &turn);
                let at_once = whole.permitted(filter, &turn);
                for chunk in live.values() {
                    let expected = chunk.readers.include(&turn.groups())
                        && filter.is_none_or(|filter| filter.holds(&chunk.metadata, &turn));
                    prop_assert_eq!(permitted.has(chunk), expected, "{:?} {:?}", filter, chunk);
                    prop_assert_eq!(at_once.has(chunk), expected);
                }
                if let Some(numbers) = permitted.numbers() {
                    prop_assert!(numbers.iter().all(|number| passages.chunks.get(number).is_some()));
                }
            }
        }
    }
}

#[test]
fn without_restriction_all_are_permitted() {
    let open = [chunk(0, 0, &json!({"p": 1})), chunk(1, 1, &json!({}))];
    let passages = Passages::of(open.iter());
    assert!(matches!(passages.permitted(None, &turn(&json!({}))), Permitted::All));
    let some = passages.permitted(Some(&from_str(r#"Exists("p")"#).unwrap()), &turn(&json!({})));
    assert_eq!(some.numbers().unwrap().iter().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_turn_without_a_principal_finds_what_everybody_may_read() {
    let rows = [json!({"groups": "x"}), json!({"groups": ["y", "*"]}), json!({"groups": []}), json!({"groups": null})];
    let chunks: Vec<_> = rows.iter().enumerate().map(|(at, row)| chunk(at, at as u32, row)).collect();
    let passages = Passages::of(chunks.iter());
    let found = |extra: Json| passages.permitted(None, &turn(&extra)).numbers().unwrap().iter().collect::<Vec<_>>();
    assert_eq!(found(json!({})), [1]);
    assert_eq!(found(json!({"principal": {"groups": "x"}})), [0, 1]);
    assert_eq!(found(json!({"principal": {"groups": ["x", "y"]}})), [0, 1]);
    assert_eq!(found(json!({"principal": "x"})), [1]);
}

#[test]
fn a_caller_narrows_a_filter_and_never_widens_it() {
    let rows = [
        json!({"p": 1, "q": "a", "groups": "x"}),
        json!({"p": 1, "q": "b", "groups": "x"}),
        json!({"p": 1, "q": "a", "groups": "y"}),
        json!({"p": 2, "q": "a", "groups": "x"}),
    ];
    let chunks: Vec<_> = rows.iter().enumerate().map(|(at, row)| chunk(at, at as u32, row)).collect();
    let passages = Passages::of(chunks.iter());
    let own: Filter = from_str("Eq(\"p\", 1)").unwrap();
    let found = |own: Option<&Filter>, asked: Option<Json>| {
        let mut turn = turn(&json!({"principal": {"groups": "x"}}));
        turn.filter = asked.map(|asked| Arc::new(Filter::from_json(&asked).unwrap()));
        let may_find = turn.may_find(chunks.iter().map(|chunk| &**chunk));
        let found: Vec<u32> = passages.permitted(own, &turn).numbers().unwrap().iter().collect();
        assert!(found.iter().all(|number| may_find[*number as usize]));
        found
    };
    assert_eq!(found(Some(&own), None), [0, 1]);
    assert_eq!(found(None, Some(json!({"eq": ["q", "a"]}))), [0, 3]);
    assert_eq!(found(Some(&own), Some(json!({"eq": ["q", "a"]}))), [0]);
    let wide = json!({"or": [{"and": []}, {"eq": ["groups", "y"]}, {"eq": ["p", 2]}]});
    assert_eq!(found(Some(&own), Some(wide.clone())), [0, 1]);
    assert_eq!(found(None, Some(wide)), [0, 1, 3]);
}

#[test]
fn fields_that_no_passage_has_are_not_remembered_without_end() {
    let passages = Passages::of([chunk(0, 0, &json!({"p": 1}))].iter());
    for number in 0..2 * MOST_FIELDS {
        let filter: Filter = from_str(&format!("Exists(\"x{number}\")")).unwrap();
        passages.permitted(Some(&filter), &turn(&json!({})));
    }
    assert_eq!(passages.fields.lock().len(), MOST_FIELDS);
    passages.permitted(Some(&from_str("Exists(\"p\")").unwrap()), &turn(&json!({})));
    assert_eq!(passages.fields.lock().len(), MOST_FIELDS + 1);
}
