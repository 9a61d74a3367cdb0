// The corpora of a pipeline.

import { documents } from './documents.js';
import { clean, count, h, name } from './dom.js';

const STATES = { loading: 'loading', stored: 'stored, being compared', ready: 'ready', failed: 'failed' };
const FLASH_MS = 4000;

/** How many of the reasons are shown. */
const REASONS = 3;

/** Documents that cannot be read, with the first reasons. */
function unreadable({ unreadable: all, unreadable_because: because = [] }) {
  const shown = because.slice(0, REASONS);
  const more = shown.length && all > shown.length ? [`and ${count(all - shown.length)} more`] : [];
  return h('div', { class: 'problem' }, h('p', {}, `${count(all)} cannot be read`), [...shown.map(clean), ...more].map(reason => h('p', {}, reason)));
}

export class Corpora {
  #live;
  #panel;
  #rows = new Map();
  #lists = new Map();
  #table = null;

  /** All lists of documents so far. */
  #known = new Map();

  constructor(live, panel) {
    [this.#live, this.#panel] = [live, panel];
    live.addEventListener('pipelines', () => this.#draw());
    live.addEventListener('chosen', () => this.#draw());
    live.addEventListener('status', () => this.#update());
  }

  /** The list of a corpus's documents, which stays while the rest is drawn anew: files may be on their way. */
  #documents(pipeline, corpus) {
    const key = JSON.stringify([pipeline, corpus]);
    if (!this.#known.has(key)) this.#known.set(key, documents(pipeline, corpus));
    return this.#known.get(key);
  }

  #draw() {
    const pipeline = this.#live.pipeline;
    this.#rows.clear();
    this.#lists.clear();
    if (!pipeline?.corpora.length) return this.#panel.replaceChildren(h('h2', {}, 'Corpora'), h('p', { class: 'hint' }, 'This pipeline has no corpora.'));
    const titles = ['Corpus', 'State', 'Documents', 'Passages', 'Epoch', 'Pending', 'Embedded', 'Publications', 'Failures'];
    const rows = pipeline.corpora.map(corpus => {
      const cells = titles.slice(1).map(() => h('td', {}));
      this.#rows.set(corpus.name, { cells, epoch: null });
      // Only these can be listed: other sources read their documents elsewhere.
      const list = corpus.source.startsWith('Documents(') && this.#documents(pipeline.name, corpus.name);
      if (list) this.#lists.set(corpus.name, list);
      return [h('tr', {}, h('th', { scope: 'row' }, name(corpus.name)), cells),
        h('tr', { class: 'about' }, h('td', { colspan: titles.length }, h('code', {}, clean(corpus.source)), h('br', {}), h('code', {}, clean(corpus.chunk)),
          (corpus.declared ?? []).map(part => [h('br', {}), h('code', {}, clean(part))]).flat(), list && list.details))];
    });
    this.#table = h('table', { class: 'numbers' }, h('thead', {}, h('tr', {}, titles.map(title => h('th', { scope: 'col' }, title)))), h('tbody', {}, rows.flat()));
    this.#panel.replaceChildren(h('h2', {}, 'Corpora'),
      h('p', { class: 'hint' }, 'A turn reads the newest epoch. A corpus flashes when an epoch with its changes is published.'),
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Corpora, scrolls sideways' }, this.#table));
    return this.#update();
  }

  #update() {
    for (const corpus of this.#live.status?.corpora ?? []) {
      const row = this.#rows.get(corpus.name);
      if (!row) continue;
      const told = [STATES[corpus.state] ?? corpus.state, count(corpus.documents), count(corpus.passages), corpus.epoch === null ? '–' : count(corpus.epoch),
        count(corpus.preparing), count(corpus.embedded), count(corpus.publications), count(corpus.failures)];
      told.forEach((text, at) => { if (row.cells[at].textContent !== text) row.cells[at].textContent = text; });
      row.cells[0].className = corpus.state;
      if (corpus.empty) row.cells[0].append(h('p', { class: 'hint' }, `${count(corpus.empty)} without text`));
      if (corpus.unreadable) row.cells[0].append(unreadable(corpus));
      if (corpus.missing) row.cells[0].append(h('p', { class: 'problem' }, `${count(corpus.missing)} missing from an index: ${clean(corpus.missing_because ?? '')}`));
      if (corpus.away_because) row.cells[0].append(h('p', { class: 'problem' }, clean(corpus.away_because)));
      if (corpus.error) row.cells[0].append(h('p', { class: 'problem' }, clean(corpus.error)));
      row.cells[7].className = corpus.failures ? 'failed' : '';
      if (row.epoch !== corpus.epoch) {
        if (row.epoch !== null) this.#flash(row.cells[0].closest('tr'));
        this.#lists.get(corpus.name)?.stale(corpus.epoch);
      }
      row.epoch = corpus.epoch;
    }
  }

  #flash(row) {
    row.classList.remove('flash');
    requestAnimationFrame(() => row.classList.add('flash'));
    setTimeout(() => row.classList.remove('flash'), FLASH_MS);
  }
}
