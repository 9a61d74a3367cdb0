//! Cuts what would make the reader loop without end: cycles of forms and of pages, and forms that need too much work
//! (see `work`).

use std::collections::{HashMap, HashSet};

use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId};

use super::work::{self, Work};

/// Maximum depth of nested forms, and maximum length of a chain of page nodes. Anything deeper is dropped.
const DEEPEST: usize = 32;

/// Cuts what would make the reader recurse without end or fail: forms that contain themselves, page nodes that are
/// their own ancestors, and images, whose bytes the reader would take for drawing instructions.
pub(super) fn disarm(pdf: &mut Pdf) {
    let mut blank: HashSet<ObjectId> = HashSet::new();
    let mut forms = Vec::new();
    let named = named(pdf);
    let mut works: HashMap<ObjectId, Work> = HashMap::new();
    for (id, object) in &pdf.objects {
        let Object::Stream(stream) = object else { continue };
        let subtype = stream.dict.get(b"Subtype").and_then(Object::as_name);
        let is_image = matches!(subtype, Ok(b"Image"));
        let work = if is_image { None } else { Work::of(stream) };
        let Some(work) = work else {
            blank.insert(*id);
            continue;
        };
        works.insert(*id, work);
        if stream.dict.has(b"Resources") {
            // Any stream may be drawn as a form, whatever its declared type.
            forms.push(*id);
        } else if work.draws() && (matches!(subtype, Ok(b"Form")) || named.contains(id)) {
            // This form uses its caller's resources, which may contain the form itself.
            blank.insert(*id);
        }
    }
    let mut sizes = HashMap::new();
    for form in forms {
        cut_cycles(pdf, form, &works, &mut sizes, &mut blank);
    }
    let greatest = sizes.values().map(|size| size.bytes).max().unwrap_or_default();
    let excessive = work::excessive(pdf, &works, greatest);
    work::empty(pdf, &excessive);
    for id in blank {
        if let Some(Object::Stream(stream)) = pdf.objects.get_mut(&id) {
            stream.dict.remove(b"Filter");
            stream.set_content(Vec::new());
        }
    }
    let looping: Vec<ObjectId> = pdf.objects.keys().copied().filter(|id| is_own_ancestor(pdf, *id)).collect();
    for id in looping {
        if let Some(Object::Dictionary(node)) = pdf.objects.get_mut(&id) {
            node.remove(b"Parent");
        }
    }
}

/// The streams that resources list as drawable.
fn named(pdf: &Pdf) -> HashSet<ObjectId> {
    let mut named = HashSet::new();
    // The parser has bounded the nesting depth.
    let mut rest: Vec<&Object> = pdf.objects.values().collect();
    while let Some(object) = rest.pop() {
        let dictionary = match object {
            Object::Array(items) => {
                rest.extend(items);
                continue;
            }
            Object::Dictionary(dictionary) => dictionary,
            Object::Stream(stream) => &stream.dict,
            _ => continue,
        };
        rest.extend(dictionary.iter().map(|(_, value)| value));
        if let Ok(drawn) = dictionary.get_deref(b"XObject", pdf).and_then(Object::as_dict) {
            named.extend(drawn.iter().filter_map(|(_, object)| object.as_reference().ok()));
        }
    }
    named
}

/// Size of a form including the forms that it draws.
#[derive(Clone, Copy, Default)]
struct Size {
    levels: usize,
    bytes: u64,
}

/// Walks the forms that a form draws, depth first. Forms that close a cycle, have too many levels below them, or need
/// too much work are added to `blank`. `sizes` holds the sizes of finished forms.
fn cut_cycles(
    pdf: &Pdf,
    form: ObjectId,
    works: &HashMap<ObjectId, Work>,
    sizes: &mut HashMap<ObjectId, Size>,
    blank: &mut HashSet<ObjectId>,
) {
    if sizes.contains_key(&form) {
        return;
    }
    let mut path = vec![(form, drawn(pdf, form), Size::default())];
    let mut open = HashSet::from([form]);
    while let Some((current, rest, below)) = path.last_mut() {
        let done = match rest.pop() {
            Some(next) => match sizes.get(&next) {
                Some(size) => *size,
                None if !open.insert(next) => {
                    blank.insert(next);
                    continue;
                }
                None => {
                    path.push((next, drawn(pdf, next), Size::default()));
                    continue;
                }
            },
            None => {
                let bytes = works.get(current).map_or(0, |work| work.bytes_with(below.bytes));
                let mut size = Size { levels: below.levels + 1, bytes };
                if size.levels > DEEPEST || work::is_too_much(size.bytes) {
                    blank.insert(*current);
                    size = Size { levels: 1, bytes: 0 };
                }
                sizes.insert(*current, size);
                open.remove(current);
                path.pop();
                size
            }
        };
        if let Some((_, _, below)) = path.last_mut() {
            *below = Size { levels: done.levels.max(below.levels), bytes: done.bytes.max(below.bytes) };
        }
    }
}

/// The streams in a form's resources.
fn drawn(pdf: &Pdf, form: ObjectId) -> Vec<ObjectId> {
    let dictionary = |holder: &Dictionary, key: &[u8]| -> Option<Dictionary> {
        holder.get_deref(key, pdf).and_then(Object::as_dict).ok().cloned()
    };
    let Ok(Object::Stream(stream)) = pdf.get_object(form) else { return Vec::new() };
    let drawn = dictionary(&stream.dict, b"Resources").and_then(|resources| dictionary(&resources, b"XObject"));
    drawn.iter().flat_map(Dictionary::iter).filter_map(|(_, object)| object.as_reference().ok()).collect()
}

fn is_own_ancestor(pdf: &Pdf, id: ObjectId) -> bool {
    let mut current = id;
    for _ in 0..=DEEPEST {
        let parent = pdf.get_dictionary(current).and_then(|node| node.get(b"Parent")).and_then(Object::as_reference);
        match parent {
            Ok(parent) => current = parent,
            Err(_) => return false,
        }
    }
    true
}
