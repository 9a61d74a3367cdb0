// A shared turn, read-only: the question, the answer and its passages as they were.

import { cards, citedFor } from './cards.js';
import { button, byId, clean, facts, h, name, reveal, several } from './dom.js';
import { markdown } from './markdown.js';
import { citing } from './text.js';

const place = byId('main');

function show({ question, record, citations, shared, pipeline }) {
  const isWithheld = record.answer === null;
  record.answer ??= '';
  const passages = record.hits.map(hit => ({ id: hit.passage, document: hit.document, title: hit.title, text: hit.text, metadata: hit.metadata }));
  const urls = new Map(citations.filter(citation => citation.url).map(citation => [citation.number, citation.url]));
  const titles = new Map(citations.map(citation => [citation.number, citation.title]));
  passages.forEach((passage, at) => { passage.title ||= titles.get(at + 1); });
  const list = h('div', {}, cards(record.answer, passages, urls, [], '', 'h3'));
  const look = (numbers, sentence) => {
    list.replaceChildren(cards(record.answer, passages, urls, numbers, sentence, 'h3'));
    reveal(list.querySelector(`.card[data-number="${numbers[0]}"]`));
  };
  const text = markdown(record.answer, citing(clean(record.answer), passages.length, part => button(part.raw, () => look(part.cites, part.sentence),
    { class: 'cite', 'aria-label': `Passage ${part.cites.join(', ')}` })));
  document.title = clean(question).replace(/\s+/g, ' ').slice(0, 80) || 'A shared answer';
  place.replaceChildren(
    h('h1', { class: 'question', dir: 'auto' }, clean(question)),
    h('div', { class: 'answer', dir: 'auto' }, text.length ? text : h('p', { class: 'hint' }, isWithheld
      ? 'The answer is not shown any more: a document that it was made with is gone, or closed to the person who shared it.' : 'The turn has no answer.')),
    h('h2', {}, passages.length ? `${several(passages.length, 'passage')} for the answer` : 'No passages for the answer'),
    passages.length && !isWithheld && !citedFor(record.answer, passages.length).length ? h('p', { class: 'hint' }, 'The answer cites none of them.') : '',
    list,
    facts([['Pipeline', name(pipeline)], ['Epoch', record.epoch], ['Shared', new Date(shared * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })]]),
    h('p', { class: 'hint' }, 'This is how it was answered then. The documents may have changed since. ', h('a', { href: '/' }, 'Ask a question')));
}

async function load() {
  const response = await fetch(`${location.pathname}/turn${location.search}`, { cache: 'no-store' });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? `The server responded with status ${response.status}.`);
  return body;
}

load().then(show).catch(error => {
  place.replaceChildren(h('h1', {}, 'This turn cannot be shown'), h('p', { class: 'problem', role: 'alert' }, clean(error.message)));
});
