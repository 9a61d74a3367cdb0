// Reports of evaluations, side by side.

import { get } from './api.js';
import { button, clean, count, h, name } from './dom.js';

const LOW = /abstention|error|failed|unjudged|latency|seconds|_ms$/i;
const EVERY_MS = 30000;

const score = value => (typeof value === 'number' ? (Number.isInteger(value) && Math.abs(value) > 1 ? count(value) : value.toFixed(4)) : value === null ? '–' : clean(JSON.stringify(value)));

/** The best value of a column, if there are several. */
function best(reports, metric) {
  const values = reports.map(report => report.metrics[metric]).filter(value => typeof value === 'number');
  if (values.length < 2) return null;
  return LOW.test(metric) ? Math.min(...values) : Math.max(...values);
}

/** Events: `change` when there are reports, or none any more. */
export class Reports extends EventTarget {
  #panel;
  #sort = { by: 'modified', down: true };
  #loaded = null;
  data = [];

  constructor(panel) {
    super();
    this.#panel = panel;
  }

  /** Loads the reports, unless that was done a moment ago. */
  async load() {
    if (this.#loaded !== null && performance.now() - this.#loaded < EVERY_MS) return;
    this.#loaded = performance.now();
    try {
      const { data } = await get('/v1/reports');
      if (JSON.stringify(data) === JSON.stringify(this.data)) return;
      this.data = data;
      this.#draw();
    } catch (error) {
      this.#loaded = null;
      if (this.data.length) return;
      this.#panel.replaceChildren(h('h2', {}, 'Evaluation'), h('p', { class: 'problem' }, clean(error.message)));
    }
    this.dispatchEvent(new Event('change'));
  }

  #value(report) {
    const { by } = this.#sort;
    return by in report && by !== 'metrics' ? report[by] : report.metrics[by];
  }

  #sorted() {
    const sign = this.#sort.down ? -1 : 1;
    const missing = value => value === undefined || value === null;
    return [...this.data].sort((one, other) => {
      const [a, b] = [this.#value(one), this.#value(other)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return sign * (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true }));
    });
  }

  #head(key, title) {
    const isSorted = this.#sort.by === key;
    const sort = () => {
      this.#sort = { by: key, down: isSorted ? !this.#sort.down : key !== 'name' };
      this.#draw();
      this.#panel.querySelector(`[data-sort="${CSS.escape(key)}"]`)?.focus();
    };
    const sign = isSorted ? h('span', { 'aria-hidden': 'true' }, this.#sort.down ? ' ↓' : ' ↑') : null;
    return h('th', { scope: 'col', 'aria-sort': isSorted ? (this.#sort.down ? 'descending' : 'ascending') : 'none' },
      h('button', { type: 'button', class: 'quiet', data: { sort: key }, on: { click: sort } }, clean(title), sign));
  }

  #draw() {
    const metrics = [...new Set(this.data.flatMap(report => Object.keys(report.metrics)))];
    const tops = new Map(metrics.map(metric => [metric, best(this.data, metric)]));
    const cell = (report, metric) => {
      const value = report.metrics[metric];
      const isBest = typeof value === 'number' && value === tops.get(metric);
      return h('td', { class: isBest ? 'best' : '' }, value === undefined ? '–' : score(value), isBest && h('span', { class: 'unseen' }, ' (best)'));
    };
    const rows = this.#sorted().map(report => [report, this.#groups(report, metrics)]).flatMap(([report, { toggle, groups }]) => [
      h('tr', {}, h('th', { scope: 'row' }, name(report.name), toggle), h('td', {}, new Date(report.modified * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })),
        h('td', {}, report.queries === null ? '–' : count(report.queries)), metrics.map(metric => cell(report, metric))),
      ...groups,
    ]);
    this.#panel.replaceChildren(h('h2', {}, 'Evaluation'),
      h('p', { class: 'hint' }, 'Reports of turnflow eval, newest first. The best of each column is bold; for abstention, errors and times, lower is better.'),
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Reports, scrolls sideways' },
        h('table', { class: 'numbers reports' },
          h('thead', {}, h('tr', {}, this.#head('name', 'Report'), this.#head('modified', 'Written'), this.#head('queries', 'Queries'), metrics.map(metric => this.#head(metric, metric)))),
          h('tbody', {}, rows))));
  }

  /** The scores by kind of task, shown when wanted. */
  #groups(report, metrics) {
    const groups = Object.entries(report.by ?? {}).flatMap(([dimension, values]) => Object.entries(values ?? {}).map(([value, group]) => [`${dimension}: ${value}`, group]));
    if (!groups.length) return { toggle: null, groups: [] };
    const rows = groups.map(([title, group]) => h('tr', { class: 'group', hidden: true }, h('th', { scope: 'row' }, name(title)), h('td', {}),
      h('td', {}, group.queries ?? group.tasks ?? ''), metrics.map(metric => h('td', {}, score((group.metrics ?? group)[metric] ?? null)))));
    const toggle = button('By kind of task', () => {
      const isOpen = rows[0].hidden;
      rows.forEach(row => { row.hidden = !isOpen; });
      toggle.setAttribute('aria-expanded', String(isOpen));
    }, { class: 'quiet', 'aria-expanded': 'false', 'aria-label': `${report.name} by kind of task` });
    return { toggle, groups: rows };
  }
}
