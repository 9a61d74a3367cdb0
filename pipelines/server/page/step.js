// One step of a turn: a node's inputs and output.

import { clean, count, facts, h, name, score, several } from './dom.js';
import { list, movement } from './hits.js';
import { marked } from './text.js';

const text = (value, css) => h('p', { class: css, dir: 'auto' }, clean(value));

/** The kind of a step's value: Turn, Query, Hits, Prompt, Answer or Failed. */
export const kind = step => (typeof step.value === 'string' ? step.value : Object.keys(step.value)[0]);

export const isSkipped = (id, step) => step.took_ms === null && step.warnings.some(warning => warning.startsWith(`${id}: skipped`));

/** A node's own warnings, without its name. */
export const own = (id, step) => step.warnings.filter(warning => warning.startsWith(`${id}: `)).map(warning => warning.slice(id.length + 2));

const inputs = (turn, node, wanted) => node.inputs.map(id => [id, turn.steps.get(id)]).filter(([, step]) => step && kind(step) === wanted);

/** The input that gave the same passages in the same order. */
function asGiven(turn, node, hits) {
  const isSame = ([, step]) => step.value.Hits.hits.length === hits.length && step.value.Hits.hits.every((hit, at) => hit.chunk.id === hits[at].chunk.id);
  return hits.length ? inputs(turn, node, 'Hits').find(isSame)?.[0] : undefined;
}

/** How many texts are not those of the inputs. */
function changed(turn, node, hits) {
  const old = new Map(inputs(turn, node, 'Hits').flatMap(([, step]) => step.value.Hits.hits.map(hit => [hit.chunk.id, hit.chunk.text])));
  const number = hits.filter(hit => old.has(hit.chunk.id) && old.get(hit.chunk.id) !== hit.chunk.text).length;
  return number ? `${several(number, 'text')} changed` : null;
}

/** A step in a few words. */
export function gist(turn, node) {
  const step = turn.steps.get(node.id);
  const before = isSkipped(node.id, step) ? 'skipped' : null;
  const value = step.value;
  switch (kind(step)) {
    case 'Query': {
      const same = value.Query.text === turn.text ? 'the question unchanged' : 'changed';
      return before ?? (value.Query.parts.length ? several(value.Query.parts.length, 'sub-question') : same);
    }
    case 'Hits': {
      const { hits } = value.Hits;
      const got = new Set(inputs(turn, node, 'Hits').flatMap(([, input]) => input.value.Hits.hits.map(hit => hit.chunk.id)));
      const kept = got.size && got.size !== hits.length ? `${count(hits.length)} of ${several(got.size, 'passage')}` : several(hits.length, 'passage');
      const as = asGiven(turn, node, hits);
      return [before, kept, as && `as output by ${as}`, changed(turn, node, hits)].filter(Boolean).join(', ');
    }
    case 'Prompt': return before ?? `${count(characters(value.Prompt.prompt))} characters, ${several(value.Prompt.hits.length, 'passage')}`;
    case 'Answer': {
      const old = inputs(turn, node, 'Answer')[0]?.[1].value.Answer;
      const same = old && old.text === value.Answer.text && old.status === value.Answer.status;
      return before ?? (same ? 'unchanged' : value.Answer.status === 'idk' ? 'does not know' : old ? 'changed' : value.Answer.status);
    }
    case 'Failed': return value.Failed.node === node.id ? 'failed' : `not run: ${value.Failed.node} failed`;
    default: return '';
  }
}

/** Whether a step tells more than its line. */
export function isOpen(turn, node) {
  const step = turn.steps.get(node.id);
  switch (kind(step)) {
    case 'Query': return step.value.Query.text !== turn.text || step.value.Query.parts.length > 0;
    case 'Hits': return (inputs(turn, node, 'Hits').length > 1 && !asGiven(turn, node, step.value.Hits.hits)) || isSkipped(node.id, step);
    case 'Failed': return step.value.Failed.node === node.id;
    default: return false;
  }
}

const messageText = message => (message.parts ?? []).map(part => part.text).join('');
const characters = prompt => (prompt.messages ?? []).reduce((sum, message) => sum + messageText(message).length, 0);

function query(turn, { text: searched, parts }) {
  return [
    searched === turn.text ? text(searched, 'query') : marked(turn.text, searched),
    searched === turn.text ? null : h('p', { class: 'hint' }, 'Marked: text added to and removed from the question.'),
    parts.length ? h('ol', { class: 'parts', 'aria-label': 'Sub-questions' }, parts.map(part => h('li', { dir: 'auto' }, clean(part)))) : null,
  ];
}

function hits(turn, node, { query: searched, hits: output }, warnings) {
  const lists = inputs(turn, node, 'Hits');
  const skipped = isSkipped(node.id, turn.steps.get(node.id));
  if (!lists.length) {
    const why = skipped ? 'Skipped for this conversation: it finds nothing.' : null;
    const parts = searched.parts.length ? `Searched for each of ${several(searched.parts.length, 'sub-question')}.` : null;
    return [why && h('p', { class: 'hint' }, why), parts && h('p', { class: 'hint' }, parts), list(output)];
  }
  // Weights of an ensemble are those of its members.
  const weights = turn.adjust?.weights?.[node.id] ?? node.weights;
  const ofInputs = weights?.length === node.inputs.length && node.inputs.length > 1;
  const given = lists.map(([id, step]) => ({
    id, hits: step.value.Hits.hits, skipped: isSkipped(id, step), weight: ofInputs ? weights[node.inputs.indexOf(id)] : undefined,
  }));
  return [skipped && h('p', { class: 'hint' }, 'Skipped for this conversation: the first input passes through.'),
    ...movement({ node, output, inputs: given, warnings })];
}

function prompt({ prompt: { messages = [], ...rest } }) {
  const shown = messages.map(message => h('div', { class: 'message' }, h('h4', {}, clean(message.role)),
    h('pre', { dir: 'auto', tabindex: '0' }, clean(messageText(message)))));
  return Object.keys(rest).length ? [...shown, h('pre', {}, clean(JSON.stringify(rest, null, 1)))] : shown;
}

/** The results of a check, nested ones as JSON. */
function check(value) {
  if (value === null || typeof value !== 'object') return clean(String(value));
  if (Array.isArray(value)) return value.length ? clean(value.map(one => (typeof one === 'object' ? JSON.stringify(one) : one)).join(', ')) : 'none';
  return facts(Object.entries(value).map(([key, one]) => [name(key), typeof one === 'number' && !Number.isInteger(one) ? score(one)
    : Array.isArray(one) ? check(one) : clean(typeof one === 'string' ? one : JSON.stringify(one))]));
}

function answer(turn, node, value) {
  const old = inputs(turn, node, 'Answer')[0]?.[1].value.Answer;
  const isSame = old?.text === value.text;
  const states = { answered: 'answered', idk: 'does not know', failed: 'failed' };
  const checks = Object.entries(value.checks ?? {}).filter(([key, one]) => JSON.stringify(old?.checks?.[key]) !== JSON.stringify(one));
  return [
    old && !isSame && h('p', { class: 'hint' }, 'Before: ', h('del', { dir: 'auto' }, clean(old.text))),
    isSame ? h('p', { class: 'hint' }, 'The text is unchanged.') : text(value.text, 'answer-text'),
    facts([['Status', states[value.status] ?? value.status], ['Support', value.support === null ? null : score(value.support)],
      ...checks.map(([key, one]) => [name(key), check(one)])]),
  ];
}

/** What a node gave, as elements. */
export function body(turn, node) {
  const step = turn.steps.get(node.id);
  const warnings = own(node.id, step);
  const notes = warnings.length ? h('ul', { class: 'warnings' }, warnings.slice(0, 50).map(warning => h('li', {}, clean(warning)))) : null;
  const value = step.value;
  const given = {
    Query: () => query(turn, value.Query),
    Hits: () => hits(turn, node, value.Hits, warnings),
    Prompt: () => prompt(value.Prompt),
    Answer: () => answer(turn, node, value.Answer),
    Failed: () => [h('p', { class: 'problem' }, clean(value.Failed.node === node.id ? value.Failed.reason : `Not run, since ${value.Failed.node} failed.`))],
  }[kind(step)]?.() ?? [h('pre', {}, clean(JSON.stringify(value, null, 1)))];
  return [notes, ...given].filter(Boolean);
}
