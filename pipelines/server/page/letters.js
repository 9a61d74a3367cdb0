// Dead letters: records that could not be processed, for those who may manage documents.

import { get, post, remove } from './api.js';
import { announce, button, clean, count, h, name, several } from './dom.js';

const KINDS = { document: 'Document', turn: 'Turn', answer: 'Answer', other: 'Record' };
const LISTED = 200;

/** Events: `change` when there are letters, or none any more. */
export class Letters extends EventTarget {
  #live;
  #panel;
  #number = null;
  /** Whether there may be letters that the caller may see. */
  isThere = false;

  constructor(live, panel) {
    super();
    [this.#live, this.#panel] = [live, panel];
    live.addEventListener('chosen', () => { this.#number = null; panel.replaceChildren(); });
    live.addEventListener('status', () => this.#look());
  }

  #look() {
    const number = this.#live.caller?.documents === 'Manage' ? this.#live.status.dead_letters : 0;
    if (number === this.#number) return;
    this.#number = number;
    // Letters of earlier runs are in the file, too.
    this.load(number > 0);
  }

  #set(isThere) {
    if (isThere === this.isThere) return;
    this.isThere = isThere;
    this.dispatchEvent(new Event('change'));
  }

  async load() {
    const pipeline = this.#live.name;
    if (this.#live.caller?.documents !== 'Manage') return this.#set(false);
    try {
      const { data, total } = await get(`/v1/dead-letters?limit=${LISTED}&pipeline=${encodeURIComponent(pipeline)}`);
      if (pipeline !== this.#live.name) return undefined;
      this.#draw(data, total);
      return this.#set(data.length > 0);
    } catch (error) {
      this.#panel.replaceChildren(h('h2', {}, 'Dead letters'), h('p', { class: 'problem' }, clean(error.message)));
      return this.#set(this.isThere);
    }
  }

  #draw(letters, total) {
    const shown = letters.reduce((sum, letter) => sum + letter.count, 0);
    this.#panel.replaceChildren(
      h('div', { class: 'row' }, h('h2', {}, 'Dead letters'), button('Read again', () => this.load(), { class: 'quiet' })),
      h('p', { class: 'hint' }, letters.length ? `${several(total, 'record')} could not be processed${shown < total ? `; the last ${count(shown)} are shown` : ''}. A document is read again when it changes at its source. A turn can be queued again, and its answer goes to the sinks.` : 'There are none.'),
      h('ul', { class: 'cards letters' }, letters.map(letter => this.#row(letter))));
  }

  #row(letter) {
    const { id, kind, source, position, reason, record, cut, count: number, missing, not_retried: why } = letter;
    const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    const label = clean(position);
    const state = missing === true ? 'still missing' : missing === false ? 'read or gone since' : null;
    const about = [name(source), number > 1 && `${count(number)} times`, state].filter(Boolean).flatMap(part => [' · ', part]);
    const row = h('li', { class: `card ${missing === false ? 'settled' : ''}` },
      h('div', { class: 'row' }, h('h3', {}, `${KINDS[kind]} `, name(position)),
        h('div', { class: 'tools' },
          !why && button('Retry', event => this.#retry(event.target, letter, problem), { class: 'quiet retry', 'aria-label': `Retry ${label}` }),
          button('Remove', event => this.#remove(event.target, letter, problem), { class: 'quiet', 'aria-label': `Remove ${label}` }))),
      h('p', { class: 'from' }, about.slice(1)),
      h('p', { class: 'reason', dir: 'auto' }, clean(reason)),
      why && h('p', { class: 'hint' }, `Not retried: ${clean(why)}.`), problem,
      record && h('details', {}, h('summary', {}, 'Record'), h('pre', { tabindex: '0' }, clean(record), cut && ' …')));
    row.dataset.letter = id;
    return row;
  }

  #path(id) {
    return [`/v1/dead-letters/${id}`, `?pipeline=${encodeURIComponent(this.#live.name)}`];
  }

  async #retry(made, { id, position }, problem) {
    made.disabled = true;
    const [path, query] = this.#path(id);
    try {
      await post(`${path}/retry${query}`, {});
    } catch (error) {
      [problem.textContent, problem.hidden, made.disabled] = [clean(error.message), false, false];
      return;
    }
    this.#gone(made, `${position} is queued again.`);
  }

  async #remove(made, { id, position }, problem) {
    if (!confirm(`Remove the dead letter of ${clean(position)}? Its record is lost.`)) return;
    const [path, query] = this.#path(id);
    try {
      await remove(path + query);
    } catch (error) {
      [problem.textContent, problem.hidden] = [clean(error.message), false];
      return;
    }
    this.#gone(made, `The dead letter of ${position} is removed.`);
  }

  #gone(made, words) {
    announce(words);
    const row = made.closest('li');
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    if (next) next.querySelector('button').focus();
    else this.load();
  }
}
