mod errors;
mod limits;

use super::*;
use crate::decode::{Odd, json};

/// What a program gives for a record, as JSON, or why it fails.
fn run(code: &str, record: &str) -> Result<Vec<String>, String> {
    let program = Program::of(code, &["$source"], &[]).map_err(|error| error.to_string())?;
    let value = json(record.as_bytes(), &mut Odd::default())?;
    let mut given = Vec::new();
    program.run(value, &[Val::from("file".to_owned())], &mut |value| {
        given.push(value.to_string());
        Ok(())
    })?;
    Ok(given)
}

/// What programs may do is what jq does.
#[test]
fn programs_do_what_those_of_jq_do() {
    let mut wrong = Vec::new();
    for (code, record, expected) in [
        ("[.[] | select(. > 1)]", "[1, 2, 3]", "[2,3]"),
        ("map(. + 1) | add", "[1, 2]", "5"),
        ("to_entries | map(.key) | join(\",\")", r#"{"a": 1, "b": 2}"#, r#""a,b""#),
        ("[recurse(if . < 3 then . + 1 else empty end)]", "0", "[0,1,2,3]"),
        ("[limit(3; repeat(. * 2; .))]?", "1", ""),
        ("[limit(3; repeat(1))]", "1", "[1,1,1]"),
        ("[while(. < 8; . * 2)]", "1", "[1,2,4]"),
        ("until(. > 100; . * 2)", "1", "128"),
        ("def fac: if . <= 1 then 1 else . * (. - 1 | fac) end; fac", "20", "2432902008176640000"),
        ("def r($n; f): if $n > 0 then f | r($n - 1; f) else . end; r(3; . + 2)", "1", "7"),
        ("def w(f): if type == \"array\" then map(w(f)) else f end; w(. + 1)", "[1, [2, [3]]]", "[2,[3,[4]]]"),
        ("def f(g): def g2: g; [g2, (def f(h): h; f(1))]; f(2)", "null", "[2,1]"),
        (".a.b |= . + 1", r#"{"a": {"b": 1}}"#, r#"{"a":{"b":2}}"#),
        (
            "[.a = 1, .[2] = 1, (.a.b[1] |= 2), (.a |= empty)]",
            "null",
            r#"[{"a":1},[null,null,1],{"a":{"b":[null,2]}},null]"#,
        ),
        (".[3] = 1, (.[3] |= empty), ([.[] = 2])", "[0]", "[0,null,null,1] [0] [[2]]"),
        ("del(.a, .c)", r#"{"a": 1, "b": 2, "c": 3}"#, r#"{"b":2}"#),
        (".[1:] = [9]", "[1, 2, 3]", "[1,9]"),
        ("(.. | numbers) |= . + 1", "[1, [2]]", "[2,[3]]"),
        ("[paths]", r#"{"a": [1]}"#, r#"[["a"],["a",0]]"#),
        ("walk(if type == \"number\" then . + 1 else . end)", "[1, [2]]", "[2,[3]]"),
        ("[splits(\", *\")]", r#""a, b,c""#, r#"["a","b","c"]"#),
        ("gsub(\"(?<x>[a-z])\"; .x + \"-\")", r#""ab1""#, r#""a-b-1""#),
        ("[match(\"(é)(x)?\"; \"g\") | .offset, .length, .captures[0].string]", r#""aéé""#, r#"[1,1,"é",2,1,"é"]"#),
        ("capture(\"(?<n>[0-9]+)\").n | tonumber", r#""x 42""#, "42"),
        ("[scan(\"\\\\w+\")]", r#""grüße an""#, r#"["grüße","an"]"#),
        ("sub(\"^\\\\s+\"; \"\"; \"s\")", r#""  x""#, r#""x""#),
        ("fromjson.a", r#""{\"a\": 7}""#, "7"),
        ("tojson", r#"{"a": [1, null]}"#, r#""{\"a\":[1,null]}""#),
        ("\"\\(.a) and \\(.b)\"", r#"{"a": [1], "b": "x"}"#, r#""[1] and x""#),
        ("has(\"a\"), has(\"b\")", r#"{"a": null}"#, "true false"),
        ("indices(\"an\"), index(\"an\"), (\"xé\" | length)", r#""banana""#, "[1,3] 1 2"),
        ("contains({a: [\"x\"]})", r#"{"a": ["xyz", 1]}"#, "true"),
        ("group_by(.a) | map(length)", r#"[{"a": 1}, {"a": 2}, {"a": 1}]"#, "[2,1]"),
        ("sort_by(.a) | map(.b)", r#"[{"a": 2, "b": 1}, {"a": 1, "b": 2}]"#, "[2,1]"),
        ("unique | length", "[1, 2, 1]", "2"),
        ("flatten", "[1, [2, [3]]]", "[1,2,3]"),
        ("try error(\"x\") catch .", "1", r#""x""#),
        ("(.a.b)? // \"none\"", r#"{"a": 1}"#, r#""none""#),
        (".a.b", r#"{"a": 1}"#, "cannot index 1 with \"b\""),
        ("1 + \"a\"", "1", "cannot calculate 1 + \"a\""),
        (". % 0", "1", "the divisor is zero"),
        ("$source", "1", r#""file""#),
        ("123456789012345678901234567890 + 1", "1", "123456789012345678901234567891"),
        ("reduce range(1000) as $i (\"\"; . + \"abc\") | length", "1", "3000"),
        ("[.[] | gsub(\"a\"; \"b\")] | length", &format!("[{}\"a\"]", "\"aaaa\",".repeat(2_000)), "2001"),
        ("ltrimstr(\"a\"), ascii_downcase, explode[0], ([97] | implode)", r#""aB""#, r#""B" "ab" 97 "a""#),
        ("@base64, @uri, @html", r#""a<b""#, r#""YTxi" "a%3Cb" "a&lt;b""#),
        ("@base32, (@base32 | @base32d)", r#""hello""#, r#""NBSWY3DP" "hello""#),
        ("todate, (todate | fromdate)", "0", "\"1970-01-01T00:00:00Z\" 0"),
        ("[.[] as [$a, {b: $c}] | $a + $c]", r#"[[1, {"b": 2}]]"#, "[3]"),
        ("first, last, nth(1), first(.[])", "[1, 2, 3]", "1 3 2 1"),
        ("transpose, (map(add))", "[[1, 2], [3, 4]]", "[[1,3],[2,4]] [3,7]"),
        ("bsearch(2), bsearch(5)", "[1, 2, 3]", "1 -4"),
        ("with_entries(.value += 1), map_values(. + 1)", r#"{"a": 1}"#, r#"{"a":2} {"a":2}"#),
        ("[label $out | .[] | if . == 2 then break $out else . end]", "[1, 2, 3]", "[1]"),
        ("[foreach .[] as $x (0; . + $x)]", "[1, 2, 3]", "[1,3,6]"),
        ("limit(2; .[]), (.[-1:])", "[1, 2, 3]", "1 2 [3]"),
        ("@csv", r#"["a\"b", 1.5, null, true]"#, r#""\"a\"\"b\",1.5,,true""#),
        ("@tsv", r#"["a\tb\\c\nd", 1]"#, r#""a\\tb\\\\c\\nd\t1""#),
        ("@csv \"\\(.)!\"", "[1, \"a\"]", r#""1,\"a\"!""#),
        ("@csv", "[[1]]", "cannot be in a row of CSV"),
        ("INDEX(.id)", r#"[{"id": 1, "a": 2}, {"id": "x"}]"#, r#"{"1":{"id":1,"a":2},"x":{"id":"x"}}"#),
        (
            "INDEX(.id) as $all | [JOIN($all; .id)], [JOIN($all; .[]; .id; .[1].a)]",
            r#"[{"id": "x", "a": 2}]"#,
            r#"[[[{"id":"x","a":2},{"id":"x","a":2}]]] [2]"#,
        ),
        ("IN(.[]; 2, 3), IN(.[]; 4)", "[1, 2]", "true false"),
        ("[tostream]", r#"{"a": [1, {"b": 2}]}"#, r#"[[["a",0],1],[["a",1,"b"],2],[["a",1,"b"]],[["a",1]],[["a"]]]"#),
        ("fromstream(tostream)", r#"{"a": [1, {"b": 2}]}"#, r#"{"a":[1,{"b":2}]}"#),
        ("[1 | truncate_stream([[0], 1], [[1, 0], 2], [[1, 0]], [[1]])]", "1", "[[[0],2],[[0]]]"),
        ("toarray, (.[0] | toarray)", "[1]", "[1] [1]"),
        ("map(ascii), (\"aba\" | trimstr(\"a\")), [leaf_paths]", "[65]", r#"["A"] "b" [[0]]"#),
        ("date, dateadd(\"seconds\"; 5), datesub(\"seconds\"; 5)", "0", "\"1970-01-01T00:00:00Z\" 5 -5"),
    ] {
        let told = run(code, record).map_or_else(|reason| reason, |given| given.join(" "));
        if !told.contains(expected) || (told != expected && expected.starts_with('[')) {
            wrong.push(format!("{code}: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Programs, records, and what jq 1.7 gives; `!` stands for an error.
const ROWS: &str = include_str!("jq_rows.tsv");

/// Programs give what those of jq give.
#[test]
fn programs_give_what_jq_gives() {
    let mut wrong = Vec::new();
    for row in ROWS.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        let [code, record, expected] = cells[..] else { panic!("{row}") };
        let (mut given, mut reason) = (Vec::new(), String::new());
        match Program::of(code, &["$source"], &[]) {
            Ok(program) => {
                let value = json(record.as_bytes(), &mut Odd::default()).unwrap();
                let each = &mut |value: Val| {
                    given.push(shown(&value));
                    Ok(())
                };
                if let Err(error) = program.run(value, &[Val::Null], each) {
                    given.push("!".to_owned());
                    reason = error;
                }
            }
            Err(error) => {
                given.push("!".to_owned());
                reason = error.to_string();
            }
        }
        if given.join(" ") != expected {
            wrong.push(format!("{code} <- {record}: {} ({reason}), jq: {expected}", given.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
