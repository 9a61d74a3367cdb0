// Searching the documents of every corpus that the pipeline searches, without an answer.

import { post } from './api.js';
import { clean, count, documentName, h, name, several } from './dom.js';
import { fields } from './hits.js';
import { link } from './markdown.js';
import { evidence } from './text.js';

/** Passages from each node. */
const TOP = 30;
const HINT = 'Finds passages as the pipeline does, in all of its corpora, and lists the documents that they are from. Only what you may read is found.';

/**
 * The searches that together reach every corpus: { node, collection, corpora }; and the corpora that none reaches. The last nodes
 * come first: they fuse and rerank what the others find.
 */
export function searches(pipeline) {
  const every = pipeline.corpora.map(corpus => corpus.name);
  if (pipeline.needs_collection) return { all: every.map(corpus => ({ collection: corpus, corpora: [corpus] })), left: [] };
  const reached = new Map();
  for (const node of pipeline.nodes) {
    const inputs = node.inputs.flatMap(id => [...reached.get(id) ?? []]);
    reached.set(node.id, new Set([...node.corpora, ...inputs]));
  }
  let left = every;
  const all = [];
  for (const node of pipeline.nodes.filter(of => of.output === 'Hits').reverse()) {
    const corpora = left.filter(corpus => reached.get(node.id).has(corpus));
    if (corpora.length) all.push({ node: node.id, corpora });
    left = left.filter(corpus => !corpora.includes(corpus));
  }
  return { all, left };
}

/** The documents of the hits of several searches, in the order of their best places: { document, title, corpora, hits }. */
export function byDocument(found) {
  const documents = new Map();
  const places = found.flatMap(({ hits, corpora }) => hits.map((hit, place) => ({ hit, place, corpora })));
  for (const { hit, corpora } of places.sort((a, b) => a.place - b.place)) {
    const key = JSON.stringify([corpora, hit.corpus, hit.document]);
    if (!documents.has(key)) documents.set(key, { document: hit.document, title: hit.title, corpora: hit.corpus ? [hit.corpus] : corpora, hits: [] });
    const known = documents.get(key);
    if (!known.hits.some(other => other.passage === hit.passage && other.corpus === hit.corpus)) known.hits.push(hit);
  }
  return [...documents.values()];
}

export class Search {
  #live;
  #field = h('input', { type: 'search', id: 'search-text', dir: 'auto', autocomplete: 'off', placeholder: 'Search the documents' });
  #state = h('p', { class: 'hint', role: 'status' }, HINT);
  #results = h('ol', { class: 'cards found' });
  #round = 0;

  constructor(live, panel) {
    this.#live = live;
    const form = h('form', { class: 'search', role: 'search', autocomplete: 'off' },
      h('label', { class: 'unseen', for: 'search-text' }, 'Search the documents'), this.#field, h('button', { type: 'submit', class: 'strong' }, 'Search'));
    form.addEventListener('submit', event => { event.preventDefault(); this.#search(); });
    live.addEventListener('chosen', () => this.#clear());
    panel.replaceChildren(h('h2', {}, 'Search'), form, this.#state, this.#results);
  }

  #clear() {
    this.#round++;
    this.#state.textContent = HINT;
    this.#results.replaceChildren();
  }

  async #search() {
    const [query, pipeline, round] = [this.#field.value.trim(), this.#live.pipeline, ++this.#round];
    if (!query) return this.#field.focus();
    if (!pipeline) return undefined;
    this.#state.textContent = 'Searching';
    const { all, left } = searches(pipeline);
    const asked = all.map(async ({ node, collection, corpora }) => {
      try {
        const { hits } = await post('/v1/search', { query, pipeline: pipeline.name, node, collection, top: TOP });
        return { hits, corpora };
      } catch (error) {
        return { hits: [], corpora, problem: error.message };
      }
    });
    const found = await Promise.all(asked);
    // Another search, or another pipeline.
    if (round !== this.#round) return undefined;
    const documents = byDocument(found);
    const passages = documents.reduce((sum, { hits }) => sum + hits.length, 0);
    const notes = [documents.length ? `${several(passages, 'passage')} in ${several(documents.length, 'document')}.` : 'Nothing was found.',
      left.length && `No node of this pipeline searches ${left.map(clean).join(', ')}.`];
    const problems = found.filter(of => of.problem).map(of => h('span', { class: 'problem' }, ` ${clean(of.corpora.join(', '))}: ${clean(of.problem)}`));
    this.#state.replaceChildren(notes.filter(Boolean).join(' '), ...problems);
    const single = pipeline.corpora.length < 2;
    this.#results.replaceChildren(...documents.map(of => this.#row(of, query, single)));
    return undefined;
  }

  #row({ document, title, corpora, hits }, query, single) {
    const passage = hit => h('li', {}, h('p', { class: 'text', dir: 'auto' }, evidence(hit.text, query)),
      h('p', { class: 'from' }, link(hit.page, 'Open the document here'), hit.url !== hit.page && [' · ', link(hit.url, 'Open its source')]));
    return h('li', { class: 'card', data: { document } },
      h('h3', {}, name(title || document)),
      h('p', { class: 'from' }, 'Document ', documentName(document), !single && [' in ', name(corpora.join(' or '))], `, ${count(hits.length)} ${hits.length === 1 ? 'passage' : 'passages'}`),
      h('ul', { class: 'passages' }, hits.slice(0, 3).map(passage)),
      hits.length > 3 && h('details', {}, h('summary', {}, `${several(hits.length - 3, 'further passage')}`), h('ul', { class: 'passages' }, hits.slice(3).map(passage))),
      fields(hits[0].metadata));
  }
}
