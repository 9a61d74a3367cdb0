// The views next to the conversation: tabs, full width, light and dark.

import { byId, h } from './dom.js';

const VIEWS = [['talk', 'Conversation'], ['turn', 'Workflow'], ['search', 'Search'], ['graph', 'Graph'], ['tune', 'Tuning'], ['corpora', 'Corpora'], ['review', 'Review'], ['letters', 'Dead letters'], ['reports', 'Evaluation']];
const THEME = 'turnflow.theme';

/** Events: `show` with the view's key in `detail`. */
export class Views extends EventTarget {
  #tabs = new Map();
  #narrow = matchMedia('(max-width: 899px)');
  #shown = 'turn';

  constructor() {
    super();
    for (const [key, title] of VIEWS) {
      const tab = h('button', { type: 'button', role: 'tab', id: `tab-${key}`, 'aria-controls': `panel-${key}` }, title);
      tab.addEventListener('click', () => this.show(key));
      this.#tabs.set(key, tab);
    }
    const list = byId('tablist');
    list.append(...this.#tabs.values());
    list.addEventListener('keydown', event => this.#key(event));
    this.enable('review', false);
    this.enable('letters', false);
    this.enable('reports', false);
    this.#narrow.addEventListener('change', () => this.#layout());
    byId('wide').addEventListener('click', () => {
      byId('wide').setAttribute('aria-pressed', String(document.body.classList.toggle('wide')));
    });
    this.#layout();
    this.#theme();
  }

  get isNarrow() {
    return this.#narrow.matches;
  }

  #layout() {
    this.#tabs.get('talk').hidden = !this.isNarrow;
    const talk = byId('panel-talk');
    if (this.isNarrow) {
      talk.setAttribute('role', 'tabpanel');
      return this.show('talk');
    }
    talk.removeAttribute('role');
    talk.hidden = false;
    return this.show(this.#shown === 'talk' ? 'turn' : this.#shown);
  }

  /** Whether a view can be chosen. */
  enable(key, isThere) {
    this.#tabs.get(key).hidden = !isThere;
    if (!isThere && this.#shown === key) this.show('turn');
  }

  show(key) {
    this.#shown = key;
    for (const [other, tab] of this.#tabs) {
      const isShown = other === key;
      tab.setAttribute('aria-selected', String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      if (isShown) tab.scrollIntoView({ block: 'nearest', inline: 'nearest' });
      byId(`panel-${other}`).hidden = !isShown && !(other === 'talk' && !this.isNarrow);
    }
    this.dispatchEvent(new CustomEvent('show', { detail: key }));
  }

  /** Marks a tab, as a sign that something is changed there. */
  mark(key, isMarked) {
    this.#tabs.get(key).classList.toggle('marked', isMarked);
  }

  #key(event) {
    const keys = [...this.#tabs].filter(([, tab]) => !tab.hidden).map(([key]) => key);
    const at = keys.indexOf(this.#shown);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const key = keys[(to + keys.length) % keys.length];
    this.show(key);
    this.#tabs.get(key).focus();
  }

  #theme() {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    let chosen = null;
    try {
      chosen = localStorage.getItem(THEME);
    } catch { /* Storage is off: the theme is that of the system. */ }
    const set = () => {
      const isDark = chosen ? chosen === 'dark' : dark.matches;
      document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
      byId('theme').textContent = isDark ? 'Light' : 'Dark';
      byId('theme').setAttribute('aria-label', isDark ? 'Light colours' : 'Dark colours');
    };
    byId('theme').addEventListener('click', () => {
      chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
      try {
        localStorage.setItem(THEME, chosen);
      } catch { /* It lasts until the page is left. */ }
      set();
    });
    dark.addEventListener('change', set);
    set();
  }
}
