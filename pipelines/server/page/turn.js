// The workflow of a turn: its steps in the order of the graph, the answer with its passages, and where
// it comes from.

import { cards, citedFor } from './cards.js';
import { button, clean, duration, facts, h, name, perFrame, reveal, several } from './dom.js';
import { trace } from './hits.js';
import { body, gist, isOpen, isSkipped, kind, own } from './step.js';
import { markdown } from './markdown.js';
import { citing } from './text.js';

const STATES = { running: 'Running', answered: 'Answered', idk: 'Answered: does not know', failed: 'Failed', stopped: 'Stopped' };

export class Workflow {
  #panel;
  #turn = null;
  #lines = new Map();
  #parts = {};
  /** What to undo before another turn is shown. */
  #listens = null;
  #clock = null;
  #isNew = false;

  constructor(panel) {
    this.#panel = panel;
    trace(panel);
    this.clear();
  }

  clear() {
    this.#leave();
    this.#panel.replaceChildren(h('p', { class: 'empty' }, 'Ask a question to see its workflow: the query, what each retriever found, how fusion and reranking reordered it, the prompt and the answer.'));
  }

  #leave() {
    this.#listens?.abort();
    clearInterval(this.#clock);
    this.#turn = null;
    this.#lines.clear();
  }

  show(turn) {
    if (turn === this.#turn) return;
    this.#leave();
    this.#turn = turn;
    const nodes = turn.pipeline.nodes.filter(node => node.role === 'operator');
    this.#parts = { state: h('p', { class: 'state' }), answer: h('section', { class: 'final', 'aria-label': 'Answer and passages' }), end: h('div', { class: 'final' }) };
    const lines = nodes.map(node => this.#line(node));
    const every = open => () => this.#lines.forEach(({ details }) => { details.open = open; });
    this.#panel.replaceChildren(
      h('div', { class: 'row' }, h('h2', {}, `Workflow of turn ${turn.number}`),
        h('div', { class: 'tools' }, button('Open all', every(true), { class: 'quiet' }), button('Close all', every(false), { class: 'quiet' }))),
      h('p', { class: 'question', dir: 'auto' }, clean(turn.text)), this.#parts.state,
      h('ol', { class: 'steps' }, lines), this.#parts.answer, this.#parts.end);
    this.#isNew = true;
    this.shown();
    nodes.forEach(node => this.#fill(node));
    this.#listens = new AbortController();
    const { signal } = this.#listens;
    const byNode = new Map(nodes.map(node => [node.id, node]));
    const times = perFrame(() => this.#times());
    turn.addEventListener('step', ({ detail }) => { if (byNode.has(detail)) { this.#fill(byNode.get(detail)); times(); } }, { signal });
    const waiting = new Set();
    const write = perFrame(() => { for (const id of waiting) this.#write(id); waiting.clear(); });
    turn.addEventListener('delta', ({ detail }) => { waiting.add(detail); write(); }, { signal });
    turn.addEventListener('end', () => this.#end(), { signal });
    turn.addEventListener('revised', () => this.#end(), { signal });
    if (turn.state === 'running') this.#clock = setInterval(() => this.#times(), 500);
    this.#end();
  }

  /** The panel is seen: a new turn from its beginning. */
  shown() {
    if (!this.#isNew || this.#panel.hidden) return;
    this.#panel.scrollTop = 0;
    this.#isNew = false;
  }

  #line(node) {
    const parts = {
      gist: h('span', { class: 'gist' }), took: h('span', { class: 'took' }), fill: h('span', {}), body: h('div', { class: 'body' }), isNew: true,
    };
    parts.details = h('details', { class: 'step', data: { node: node.id } },
      h('summary', {}, h('span', { class: 'mark', 'aria-hidden': 'true' }), h('span', { class: 'id' }, name(node.id)),
        h('span', { class: 'kind' }, node.kind), parts.gist, h('span', { class: 'time' }, parts.took, h('span', { class: 'bar', 'aria-hidden': 'true' }, parts.fill))),
      parts.body);
    // Long lists are rendered when opened.
    parts.details.addEventListener('toggle', () => this.#open(node, parts));
    this.#lines.set(node.id, parts);
    return h('li', {}, parts.details);
  }

  #open(node, parts) {
    if (!parts.details.open || !parts.isNew || !this.#turn) return;
    if (this.#turn.steps.has(node.id)) {
      parts.body.replaceChildren(...body(this.#turn, node));
      parts.isNew = false;
    } else this.#write(node.id);
  }

  #fill(node) {
    const [turn, parts] = [this.#turn, this.#lines.get(node.id)];
    const step = turn.steps.get(node.id);
    if (!step) return;
    parts.gist.textContent = gist(turn, node);
    const warned = own(node.id, step).length > 0 && !isSkipped(node.id, step);
    parts.details.className = `step done ${kind(step) === 'Failed' ? 'bad' : isSkipped(node.id, step) ? 'skipped' : warned ? 'warned' : ''}`;
    parts.isNew = true;
    if (isOpen(turn, node)) parts.details.open = true;
    this.#open(node, parts);
  }

  /** Shows what a language model has written so far. */
  #write(id) {
    const parts = this.#lines.get(id);
    const written = this.#turn?.deltas.get(id);
    if (!parts || this.#turn.steps.has(id)) return;
    parts.body.replaceChildren(h('p', { class: written ? 'answer-text' : 'hint', dir: 'auto' }, written ? clean(written) : 'Nothing yet.'));
  }

  #times() {
    const turn = this.#turn;
    const whole = Math.max(turn.took_ms ?? performance.now() - turn.began, ...[...turn.steps.values()].map(step => step.took_ms ?? 0));
    const isRevised = turn.former !== null && turn.former !== undefined;
    for (const node of turn.pipeline.nodes) {
      const parts = this.#lines.get(node.id);
      if (!parts) continue;
      const step = turn.steps.get(node.id);
      if (step) {
        const share = step.took_ms === null ? 0 : step.took_ms / whole;
        parts.took.textContent = step.took_ms === null ? '–' : duration(step.took_ms);
        // A step that took almost no time is a line.
        parts.fill.style.width = share ? `max(1px, ${Math.min(100, share * 100).toFixed(1)}%)` : '0';
        parts.details.querySelector('.time').title = `${duration(step.took_ms)} of ${duration(whole)}`;
        continue;
      }
      // A revised answer comes without the steps that made it.
      if (isRevised) {
        parts.gist.textContent = 'run again after the change';
        parts.took.textContent = '–';
        parts.fill.style.width = '0';
        continue;
      }
      const isRunning = turn.state === 'running' && node.inputs.every(input => turn.steps.has(input));
      parts.details.classList.toggle('running', isRunning);
      parts.gist.textContent = turn.state !== 'running' ? 'not run' : isRunning ? 'running' : 'waiting';
    }
    this.#parts.state.textContent = turn.state === 'running' ? `Running for ${duration(whole)}`
      : `${STATES[turn.state] ?? turn.state} in ${duration(turn.took_ms)}. Bars: each step's share of that.${isRevised ? ' The documents have changed since; the steps before the answer are those of the first run.' : ''}`;
  }

  #end() {
    this.#times();
    const turn = this.#turn;
    if (turn.state === 'running') return;
    clearInterval(this.#clock);
    this.#answer([]);
    this.#parts.end.replaceChildren(...[this.#warnings(), this.#provenance()].filter(Boolean));
  }

  /** The answer and its passages; `cited` are the numbers to look at, for a sentence. */
  #answer(cited, sentence) {
    const turn = this.#turn;
    const { passages } = turn;
    const isCited = citedFor(turn.answer, passages.length).length > 0;
    const text = markdown(turn.answer, citing(clean(turn.answer), passages.length, part => button(part.raw,
      () => this.cite(turn, part.cites, part.sentence), { class: 'cite', 'aria-label': `Passage ${part.cites.join(', ')}` })));
    const urls = new Map((turn.record?.citations ?? []).map(citation => [citation.number, citation.url]));
    this.#parts.answer.replaceChildren(
      h('h3', {}, turn.state === 'failed' ? 'No answer' : 'Answer'),
      turn.problem ? h('p', { class: 'problem' }, clean(turn.problem)) : '',
      h('div', { class: 'answer', dir: 'auto' }, text.length ? text : turn.state === 'stopped' ? 'Stopped before the answer.' : ''),
      h('h3', {}, passages.length ? `${several(passages.length, 'passage')} for the answer` : 'No passages for the answer'),
      passages.length && !isCited ? h('p', { class: 'hint' }, 'The answer cites none of them.') : '',
      cards(turn.answer, passages, urls, cited, sentence));
  }

  /** Looks at the passages that a citation names. */
  cite(turn, numbers, sentence) {
    this.show(turn);
    this.#answer(numbers, sentence);
    const card = this.#parts.answer.querySelector(`.card[data-number="${numbers[0]}"]`);
    if (card) reveal(card);
  }

  #warnings() {
    const turn = this.#turn;
    const all = turn.record?.stamp.warnings ?? [...new Set([...turn.steps.values()].flatMap(step => step.warnings))];
    if (!all.length) return null;
    return h('section', { 'aria-label': 'Warnings' }, h('h3', {}, several(all.length, 'warning')),
      h('ul', { class: 'warnings' }, all.slice(0, 200).map(warning => h('li', {}, clean(warning)))));
  }

  #provenance() {
    const { record, pipeline, collection, adjust, conversation, number } = this.#turn;
    if (!record) return null;
    const hash = text => h('code', { class: 'hash' }, clean(text));
    const { stamp } = record;
    const models = Object.entries(stamp.models ?? {}).map(([model, of]) => h('div', {}, name(model), ' ', hash(of)));
    return h('section', { 'aria-label': 'Provenance' }, h('h3', {}, 'Provenance'), facts([
      ['Pipeline', name(pipeline.name)], ['Plan', hash(stamp.pipeline)], ['Epoch', stamp.epoch], ['Models', models.length ? h('div', {}, models) : 'none'],
      ['Collection', collection && name(collection)], ['Adjusted', adjust && hash(JSON.stringify(adjust))],
      ['Time', duration(record.latency_ms)], ['Conversation', hash(`${conversation}, turn ${number}`)],
    ]));
  }
}
