// The list of conversations: opens, renames and deletes them.

import { TITLE } from './asked.js';
import { announce, button, byId, clean, h, name, several } from './dom.js';
import { withdrawAll } from './share.js';

const NAMELESS = 'Without a question';

/** When a conversation was changed: the time if that was today, or else the day. */
function when(ms) {
  const [date, now] = [new Date(ms), new Date()];
  return date.toDateString() === now.toDateString() ? date.toLocaleTimeString('en-GB', { timeStyle: 'short' }) : date.toLocaleDateString('en-GB', { dateStyle: 'medium' });
}

export class ConversationList {
  #calls;
  #place = byId('conversations');
  #toggle = byId('all');
  #shelf = null;
  #current = null;
  /** A conversation whose name is being changed: the list must not be drawn meanwhile. */
  #renaming = null;

  /** `calls`: open(id), renamed(id, name), removed(ids). */
  constructor(calls) {
    this.#calls = calls;
    this.#toggle.addEventListener('click', () => this.show(this.#place.hidden));
    this.#place.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      this.show(false);
      this.#toggle.focus();
    });
  }

  show(isShown) {
    this.#place.hidden = !isShown;
    this.#toggle.setAttribute('aria-expanded', String(isShown));
    if (isShown) this.#draw();
  }

  /** Another caller, another open conversation, or a change. */
  update(shelf, current) {
    [this.#shelf, this.#current] = [shelf, current];
    if (!this.#place.hidden) this.#draw();
  }

  async #draw() {
    if (!this.#shelf || this.#renaming) return;
    const shelf = this.#shelf;
    const all = await shelf.list().catch(() => []);
    if (shelf !== this.#shelf || this.#renaming) return;
    const held = this.#place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const clear = button('Delete all', () => this.#clear(all), { class: 'quiet', data: { key: 'clear' } });
    this.#place.replaceChildren(
      h('div', { class: 'row' }, h('h3', {}, several(all.length, 'conversation')), all.length ? clear : ''),
      all.length ? h('ul', { class: 'kept' }, all.map(head => this.#row(head)))
        : h('p', { class: 'hint' }, 'There are none yet. Each begins with its first question and is kept in this browser.'));
    if (held) [...this.#place.querySelectorAll('[data-key]')].find(of => of.dataset.key === held)?.focus();
  }

  #row(head) {
    const { id, title, changed } = head;
    const isOpen = id === this.#current;
    const label = clean(title || NAMELESS);
    const row = h('li', { class: isOpen ? 'current' : null });
    row.append(
      h('button', { type: 'button', class: 'name', 'aria-current': isOpen ? 'true' : null, data: { key: id }, on: { click: () => { this.show(false); this.#calls.open(id); } } },
        name(title || NAMELESS, { class: 'title' }), ' ', h('span', { class: 'hint' }, when(changed))),
      h('div', { class: 'tools' },
        button('Rename', () => this.#rename(row, head), { class: 'quiet', data: { key: `rename ${id}` }, 'aria-label': `Rename ${label}` }),
        button('Delete', () => this.#remove(head), { class: 'quiet', data: { key: `delete ${id}` }, 'aria-label': `Delete ${label}` })));
    return row;
  }

  #rename(row, { id, title }) {
    this.#renaming = id;
    const input = h('input', { type: 'text', maxlength: TITLE, 'aria-label': 'Name of the conversation', dir: 'auto' });
    input.value = title;
    const done = async given => {
      if (this.#renaming !== id) return;
      this.#renaming = null;
      if (given) {
        await this.#shelf.rename(id, given).catch(() => {});
        this.#calls.renamed(id, given);
        announce(`Renamed: ${given}`);
      }
      await this.#draw();
      [...this.#place.querySelectorAll('[data-key]')].find(of => of.dataset.key === `rename ${id}`)?.focus();
    };
    input.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.isComposing) { event.preventDefault(); done(input.value.trim()); }
      if (event.key === 'Escape') { event.stopPropagation(); done(null); }
    });
    row.replaceChildren(input, h('div', { class: 'tools' }, button('Cancel', () => done(null), { class: 'quiet' }), button('Save', () => done(input.value.trim()), { class: 'strong' })));
    input.focus();
    input.select();
  }

  #remove({ id, title }) {
    return this.#gone([id], `the conversation ${clean(title || NAMELESS)}`);
  }

  #clear(all) {
    return this.#gone(all.map(head => head.id), several(all.length, 'conversation'));
  }

  /** Deletes conversations, if the person wants it. The links that share their turns could not be withdrawn afterwards. */
  async #gone(ids, what) {
    const links = await this.#shelf.links(ids).catch(() => []);
    const end = links.length ? ` ${several(links.length, 'link')} to turns of it will show nothing any more.` : '';
    if (!confirm(`Delete ${what} from this browser?${end}`)) return;
    const left = await withdrawAll(links);
    if (left && !confirm(`${several(left, 'link')} could not be withdrawn. Delete ${what} all the same?`)) return;
    this.#calls.removed(ids);
    await this.#shelf.remove(ids).catch(() => {});
    announce(`${several(ids.length, 'conversation')} deleted.`);
    await this.#draw();
    (this.#place.querySelector('[data-key]') ?? this.#toggle).focus();
  }
}
