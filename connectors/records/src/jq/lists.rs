//! Filters of jq for lists and for parts of values.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use jaq_core::box_iter::box_once;
use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, unary, v};
use jaq_core::{Bind, Cv, Error, Exn, ValR, ValX, ValXs};
use jaq_json::{Map, Val};
use jaq_std::ValT as _;

use super::access::{place, slice_of};
use super::held::{self, Parts};
use super::limits::{Lent, steps, walk};
use super::natives::Own;
use super::value::{Value, of_digits, told};

pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let by = || [Bind::Fun(())].into();
    let all: [Own; 9] = [
        ("range", v(3), |mut cv| {
            let (by, to, from) = (cv.0.pop_var(), cv.0.pop_var(), cv.0.pop_var());
            let other = [&from, &to, &by].into_iter().find(|bound| !matches!(bound.val, Val::Num(_)));
            let error = other.map(|other| told(&format_args!("{other:#} is no number for a range")));
            match error {
                Some(error) => box_once(Err(Exn::from(error))),
                None => Box::new(range(from, to, by)),
            }
        }),
        ("sort_by", by(), |cv| box_once(sorted_by(cv))),
        ("group_by", by(), |cv| box_once(grouped_by(cv))),
        ("min_by_or_empty", by(), |cv| most(cv, |kept, key| key < kept)),
        ("max_by_or_empty", by(), |cv| most(cv, |kept, key| key >= kept)),
        ("flatten", v(1), |cv| unary(cv, flatten)),
        ("delpaths", v(1), |cv| unary(cv, without)),
        ("reverse", v(0), |cv| bome(reverse(cv.1))),
        ("tonumber", v(0), |cv| bome(number(cv.1))),
    ];
    all.into_iter().map(run::<JustLut<Value>>)
}

/// The numbers from one to before another.
fn range<'a>(from: Value, to: Value, by: Value) -> impl Iterator<Item = ValX<'a, Value>> {
    let direction = by.partial_cmp(&0_usize.into()).unwrap_or(Ordering::Equal);
    let mut next = Some(from);
    std::iter::from_fn(move || {
        let number = next.take()?;
        let is_within = match direction {
            Ordering::Greater => number < to,
            Ordering::Less => number > to,
            Ordering::Equal => number != to,
        };
        if !is_within {
            return None;
        }
        match number.clone() + by.clone() {
            Ok(after) => next = Some(after),
            Err(error) => return Some(Err(Exn::from(error))),
        }
        Some(Ok(number))
    })
}

type With<'a, T> = Result<T, Exn<'a, Value>>;
type Keyed = (Vec<Value>, Value);

/// Gives the elements of a list with what a filter gives for each of them to `each`.
fn keyed<'a>(mut cv: Cv<'a, JustLut<Value>>, mut each: impl FnMut(Keyed)) -> With<'a, ()> {
    let (filter, context) = cv.0.pop_fun();
    let Val::Arr(_) = &cv.1.val else { return Err(Exn::from(Error::typ(cv.1, "array"))) };
    for part in Parts::of(cv.1).into_iter().flatten() {
        let keys = filter.run((context.clone(), part.clone()));
        each((keys.map(|key| key.map(Value::listed)).collect::<Result<_, _>>()?, part));
    }
    Ok(())
}

/// All of them, by what the filter gives.
fn sorted<'a>(cv: Cv<'a, JustLut<Value>>) -> With<'a, (Vec<Keyed>, Lent)> {
    let (mut all, mut lent) = (Vec::new(), Lent::of(0));
    keyed(cv, |(key, part)| {
        lent.more(96 + 32 * key.len() as u64);
        all.push((key, part));
    })?;
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok((all, lent))
}

fn sorted_by<'a>(cv: Cv<'a, JustLut<Value>>) -> With<'a, Value> {
    let (all, _lent) = sorted(cv)?;
    Ok(all.into_iter().map(|(_, part)| part).collect())
}

fn grouped_by<'a>(cv: Cv<'a, JustLut<Value>>) -> With<'a, Value> {
    let (all, _lent) = sorted(cv)?;
    let (mut groups, mut group, mut last): (Vec<Value>, Vec<Value>, Option<Vec<Value>>) = Default::default();
    for (key, part) in all {
        if last.as_ref().is_some_and(|last| *last != key) {
            groups.push(std::mem::take(&mut group).into_iter().collect());
        }
        group.push(part);
        last = Some(key);
    }
    if !group.is_empty() {
        groups.push(group.into_iter().collect());
    }
    Ok(groups.into_iter().collect())
}

/// The first or last of the elements whose key is the least or the greatest, if there is one.
fn most<'a>(cv: Cv<'a, JustLut<Value>>, replaces: fn(&[Value], &[Value]) -> bool) -> ValXs<'a, Value> {
    let mut found: Option<Keyed> = None;
    let each = |(key, part): Keyed| {
        if found.as_ref().is_none_or(|(kept, _)| replaces(kept, &key)) {
            found = Some((key, part));
        }
    };
    match keyed(cv, each) {
        Ok(()) => Box::new(found.into_iter().map(|(_, part)| Ok(part))),
        Err(error) => box_once(Err(error)),
    }
}

fn flatten(of: Value, depth: Value) -> ValR<Value> {
    let Some(levels) = depth.as_f64() else { return Err(Error::typ(depth, "number")) };
    if levels < 0.0 {
        return Err(told(&"the depth of flatten is not below 0"));
    }
    fn flat(of: Parts, levels: f64, all: &mut Vec<Val>, lent: &mut Lent) {
        for part in of {
            steps(1);
            match &part.val {
                Val::Arr(_) if levels > 0.0 => {
                    if let Ok(parts) = Parts::of(part) {
                        flat(parts, levels - 1.0, all, lent);
                    }
                }
                _ => {
                    lent.more(held::list(1) - held::list(0));
                    all.push(part.into_val());
                }
            }
        }
    }
    let inner = of.depth;
    let parts =
        Parts::of(of).map_err(|other| told(&format_args!("{other:#} cannot be flattened, because it is no list")))?;
    let (mut all, mut lent) = (Vec::new(), Lent::of(0));
    flat(parts, levels, &mut all, &mut lent);
    drop(lent);
    Ok(Value::of(held::listed(all), inner))
}

fn reverse(of: Value) -> ValR<Value> {
    let depth = of.depth;
    match &of.val {
        Val::Null => Ok(Value::of(held::listed(Vec::new()), 1)),
        Val::Obj(fields) if fields.is_empty() => Ok(Value::of(held::listed(Vec::new()), 1)),
        Val::Arr(values) => {
            steps(values.len() as u64 / 4);
            let Ok(parts) = Parts::of(of) else { return Ok(Value::default()) };
            let mut values: Vec<Val> = parts.map(Value::into_val).collect();
            values.reverse();
            Ok(Value::of(held::listed(values), depth))
        }
        _ => Err(told(&format_args!("{of:#} cannot be reversed, because it is no list"))),
    }
}

/// The number that a text is. Its digits stay as they are.
fn number(value: Value) -> ValR<Value> {
    let text = match &value.val {
        Val::Num(_) => return Ok(value),
        Val::TStr(text) => {
            steps(text.len() as u64 / 64);
            String::from_utf8_lossy(text).trim().to_owned()
        }
        _ => return Err(told(&format_args!("{value:#} cannot be a number"))),
    };
    let fails = || Err(told(&format_args!("{value:#} cannot be a number")));
    let word = text.trim_start_matches('-');
    if word.eq_ignore_ascii_case("nan") {
        return Ok(f64::NAN.into());
    }
    if word.eq_ignore_ascii_case("infinity") {
        return Ok(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }.into());
    }
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !is_digits || text.parse::<f64>().is_err() {
        return fails();
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let digits = match digits.trim_start_matches('0') {
        rest if rest.starts_with(|first: char| first.is_ascii_digit()) => rest.to_owned(),
        rest => format!("0{rest}"),
    };
    of_digits(&format!("{sign}{}", digits.replace(".e", "e").replace(".E", "E").trim_end_matches('.')))
}

/// A value without what is at these paths, all of which are those of the value as it is.
pub(super) fn without(value: Value, paths: Value) -> ValR<Value> {
    walk(&paths.val);
    let Val::Arr(list) = &paths.val else { return Err(Error::typ(paths, "array")) };
    let mut all: Vec<&[Val]> = Vec::with_capacity(list.len());
    for path in list.iter() {
        match path {
            Val::Arr(path) => all.push(path),
            _ => return Err(told(&"a path is a list")),
        }
    }
    steps(all.len() as u64);
    all.sort();
    match all.first() {
        None => Ok(value),
        Some([]) => Ok(Value::default()),
        Some(_) => delete(value, &all),
    }
}

/// Deletes paths that are sorted and not empty.
fn delete(value: Value, paths: &[&[Val]]) -> ValR<Value> {
    let depth = value.depth;
    let mut owned = Vec::new();
    if let Val::Arr(list) = &value.val
        && paths.iter().any(|path| matches!(path, [Val::Obj(_), _, ..]))
    {
        steps(paths.len() as u64);
        owned = paths.iter().map(|path| absolute(path.iter().map(held::shared).collect(), list.len())).collect();
        owned.sort();
    }
    let absolute: Vec<&[Val]> = owned.iter().map(Vec::as_slice).collect();
    let paths = if absolute.is_empty() { paths } else { &absolute };
    let groups = paths.chunk_by(|one, other| one.first() == other.first());
    match &value.val {
        Val::Null => return Ok(value),
        Val::Arr(_) | Val::Obj(_) => {}
        _ => return Err(told(&format_args!("{value:#} has no parts to delete"))),
    }
    let mut val = value.into_val();
    match &mut val {
        Val::Obj(fields) => {
            let fields = held::fields_mut(fields);
            for group in groups {
                let Some(name @ Val::TStr(_)) = group[0].first() else {
                    return Err(told(&"a field is deleted by its name"));
                };
                delete_field(fields, name, group, depth)?;
            }
        }
        Val::Arr(values) => {
            let values = held::list_mut(values);
            let mut gone = BTreeSet::new();
            for group in groups {
                let Some(index) = group[0].first() else { continue };
                let places = match index {
                    Val::Obj(bounds) => slice_of(bounds, values.len()),
                    Val::Num(_) => Some(place(index, values.len()).map_or(0..0, |at| at..at + 1)),
                    _ => None,
                };
                let Some(places) = places else { return Err(told(&"an element is deleted by its place")) };
                if group[0].len() == 1 {
                    steps(places.len() as u64 / 16);
                    gone.extend(places);
                } else if matches!(index, Val::Num(_)) && !places.is_empty() {
                    let part = Value::part(std::mem::take(&mut values[places.start]), depth);
                    values[places.start] = delete(part, &rest(group))?.into_val();
                }
            }
            let mut at = 0;
            let removed: Vec<Val> = values
                .extract_if(.., |_| {
                    at += 1;
                    gone.contains(&(at - 1))
                })
                .collect();
            held::less(removed.len());
            removed.into_iter().for_each(held::dropped);
        }
        _ => {}
    }
    Ok(Value::of(val, depth))
}

/// A path that begins with a slice of a list of this length and a place in it, with the place in the list.
fn absolute(mut path: Vec<Val>, length: usize) -> Vec<Val> {
    let (mut at, mut found) = (0, None);
    while let (Some(Val::Obj(bounds)), Some(next)) = (found.as_ref().or(path.first()), path.get(at + 1))
        && let Some(places) = slice_of(bounds, length)
    {
        found = Some(match next {
            Val::Num(_) => Val::from(place(next, places.len()).map_or(length, |at| places.start + at)),
            Val::Obj(bounds) => {
                let Some(within) = slice_of(bounds, places.len()) else { break };
                let bound = |name: &'static str, at: usize| (Val::utf8_str(name), Val::from(places.start + at));
                Val::obj([bound("start", within.start), bound("end", within.end)].into_iter().collect())
            }
            _ => break,
        });
        at += 1;
    }
    steps(at as u64);
    if let Some(found) = found {
        path.splice(..=at, [found]);
    }
    path
}

/// The paths within the part that all of them begin with.
fn rest<'a>(group: &[&'a [Val]]) -> Vec<&'a [Val]> {
    group.iter().filter_map(|path| path.get(1..)).filter(|path| !path.is_empty()).collect()
}

fn delete_field(fields: &mut Map, name: &Val, group: &[&[Val]], depth: u32) -> Result<(), Error<Value>> {
    if group[0].len() == 1 {
        held::remove(fields, name);
    } else if let Some(part) = fields.get_mut(name) {
        let part_of = Value::part(std::mem::take(part), depth);
        *part = delete(part_of, &rest(group))?.into_val();
    }
    Ok(())
}
