// Ranked lists, and how a node reorders its inputs.

import { button, clean, count, documentName, h, name, score, several } from './dom.js';

const FIRST = 5;
const MOST = 1000;
const MOST_OF_A_VALUE = 300;

/** A passage that opens. */
function passage({ id, document, title, text, metadata }, extra = []) {
  const label = title || text.slice(0, 80) || id;
  return h('details', { class: 'passage' },
    h('summary', {}, h('span', { class: 'title' }, name(label)), ...extra, h('span', { class: 'gist', dir: 'auto' }, clean(text.slice(0, 240)))),
    h('p', { class: 'text', dir: 'auto' }, clean(text)),
    h('p', { class: 'from' }, 'Passage ', name(id), ', document ', documentName(document)), fields(metadata));
}

/** The fields of a passage's document, if there are any. */
export function fields(metadata) {
  const all = Object.entries(metadata ?? {});
  const shown = value => (typeof value === 'string' ? value : JSON.stringify(value)).slice(0, MOST_OF_A_VALUE);
  return all.length ? h('dl', { class: 'fields' }, all.flatMap(([field, value]) => [h('dt', {}, name(field)), h('dd', { dir: 'auto' }, clean(shown(value)))])) : null;
}

/** A score with a bar; bars begin at 0 or at the least score, if that is below. */
function bar(value, hits) {
  const scores = hits.map(hit => hit.score).filter(Number.isFinite);
  const [least, most] = [Math.min(0, ...scores), Math.max(0, ...scores)];
  const length = most > least && Number.isFinite(value) ? (value - least) / (most - least) : 0;
  const fill = h('span', {});
  fill.style.width = `${(length * 100).toFixed(1)}%`;
  return h('td', { class: 'score' }, h('div', {}, h('span', { class: 'bar', 'aria-hidden': 'true' }, fill), score(value)));
}

/** Rows of a table, the first few at once. */
function rows(items, row, one, columns) {
  const shown = items.slice(0, MOST);
  const body = h('tbody', {}, shown.slice(0, FIRST).map(row));
  const rest = shown.slice(FIRST);
  if (rest.length) {
    const less = items.length > MOST ? `the first ${count(MOST)}` : `all ${count(items.length)}`;
    const more = h('tr', { class: 'more' }, h('td', { colspan: columns }, button(`Show ${less}`, () => {
      const added = rest.map(row);
      more.replaceWith(...added);
      added[0].querySelector('summary')?.focus();
    }, { class: 'quiet', 'aria-label': `Show ${less} ${one}s` })));
    body.append(more);
  }
  return body;
}

const head = titles => h('thead', {}, h('tr', {}, titles.map(title => h('th', { scope: 'col', class: title === 'Score' ? 'score' : null }, title))));
const scroll = table => h('div', { class: 'scroll' }, table);

/** The list of a retriever. */
export function list(hits) {
  if (!hits.length) return h('p', { class: 'hint' }, 'No passages.');
  const row = (hit, at) => h('tr', { data: { passage: hit.chunk.id } },
    h('td', { class: 'place' }, at + 1), h('td', {}, passage(hit.chunk)), bar(hit.score, hits));
  const numbered = hits.map((hit, at) => [hit, at]);
  return scroll(h('table', { class: 'hits' }, head(['Place', 'Passage', 'Score']), rows(numbered, ([hit, at]) => row(hit, at), 'passage', 3)));
}

/** Where each passage of a list is: id → { place, hit }. */
const places = hits => new Map(hits.map((hit, at) => [hit.chunk.id, { place: at + 1, hit }]));

/** A place in an input, with the way from there to the new place. */
function from(input, id, place) {
  const found = input.places.get(id)?.place;
  if (found === undefined) return h('td', { class: 'from-place none', title: `not in ${input.id}` }, '–');
  const by = place === null ? 0 : found - place;
  const [sign, css, words] = by > 0 ? [`↑${by}`, 'up', `${by} up`] : by < 0 ? [`↓${-by}`, 'down', `${-by} down`] : ['=', 'same', 'same place'];
  const way = place === null ? null : h('span', { class: `way ${css}` }, sign);
  const title = place === null ? `place ${found} in ${input.id}` : `place ${found} in ${input.id}, now ${place}: ${words}`;
  return h('td', { class: 'from-place', title }, `${found} `, way);
}

const mentions = (warnings, id) => warnings.find(warning => warning.includes(`\`${id}\``));

/** Why a passage may be missing. */
function reason(id, { node, output, warnings }, best) {
  const told = mentions(warnings, id);
  if (told) return told;
  const setting = field => Number(new RegExp(`\\b${field}: (\\d+)`).exec(node.settings)?.[1] ?? NaN);
  if (best > setting('depth')) return `below the first ${setting('depth')} (depth) of every input`;
  if (output.length >= setting('top')) return `below the first ${setting('top')} (top)`;
  return null;
}

/**
 * How a node moved the passages of its inputs.
 * `step`: { node, output: hits, inputs: [{ id, hits, weight, skipped }], warnings: [text] }
 */
export function movement(step) {
  const { node, output, warnings } = step;
  const inputs = step.inputs.map(input => ({ ...input, places: places(input.hits) }));
  const before = id => inputs.map(input => input.places.get(id)).find(Boolean)?.hit.chunk;
  const now = places(output);
  const columns = inputs.map(input => h('span', {}, name(input.id),
    input.weight !== undefined && h('span', { class: 'weight' }, ` ×${Number(input.weight.toFixed(2))}`), input.skipped && ' (skipped)'));
  const row = (hit, at) => {
    const { id } = hit.chunk;
    const old = before(id);
    const extra = [!old && h('span', { class: 'way new' }, 'new'),
      old && old.text !== hit.chunk.text && h('span', { class: 'way text', title: `${several(old.text.length, 'character')} before, ${count(hit.chunk.text.length)} now` }, 'text changed')];
    const note = mentions(warnings, id);
    return h('tr', { data: { passage: id } }, h('td', { class: 'place' }, at + 1),
      h('td', {}, passage(hit.chunk, extra.filter(Boolean)), note && h('p', { class: 'note' }, clean(note))),
      inputs.map(input => from(input, id, at + 1)), bar(hit.score, output));
  };
  const numbered = output.map((hit, at) => [hit, at]);
  const kept = output.length
    ? scroll(h('table', { class: 'hits moves' }, head(['Place', 'Passage', ...columns, 'Score']),
      rows(numbered, ([hit, at]) => row(hit, at), 'passage', inputs.length + 3)))
    : h('p', { class: 'hint' }, 'No passages.');
  const gone = new Map();
  for (const input of inputs) {
    for (const [id, { place, hit }] of input.places) if (!now.has(id)) gone.set(id, { hit, best: Math.min(place, gone.get(id)?.best ?? place) });
  }
  return [kept, dropped(gone, step, inputs)].filter(Boolean);
}

function dropped(gone, step, inputs) {
  if (!gone.size) return null;
  const sorted = [...gone.values()].sort((a, b) => a.best - b.best);
  const row = ({ hit, best }) => {
    const why = reason(hit.chunk.id, step, best);
    return h('tr', { class: 'gone', data: { passage: hit.chunk.id } }, h('td', { class: 'place' }, '–'),
      h('td', {}, passage(hit.chunk), why && h('p', { class: 'note' }, clean(why))), inputs.map(input => from(input, hit.chunk.id, null)));
  };
  const table = h('table', { class: 'hits moves' }, head(['Place', 'Passage', ...inputs.map(input => name(input.id))]),
    rows(sorted, row, 'dropped passage', inputs.length + 2));
  return h('details', { class: 'dropped', open: sorted.length <= FIRST },
    h('summary', {}, `${several(sorted.length, 'passage')} dropped by `, name(step.node.id)), scroll(table));
}

/** Marks a passage wherever it is, while the pointer or the keyboard is on one of its rows. */
export function trace(panel) {
  const mark = event => {
    const id = event.target.closest?.('tr[data-passage]')?.dataset.passage;
    for (const row of panel.querySelectorAll('tr.traced')) if (row.dataset.passage !== id) row.classList.remove('traced');
    if (id === undefined) return;
    const rows = [...panel.querySelectorAll('tr[data-passage]')].filter(row => row.dataset.passage === id);
    if (rows.length > 1) rows.forEach(row => row.classList.add('traced'));
  };
  panel.addEventListener('pointerover', mark);
  panel.addEventListener('focusin', mark);
}
