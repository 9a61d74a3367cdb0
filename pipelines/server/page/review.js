// Answers that people judge, for those who may manage documents.

import { get, post } from './api.js';
import { announce, button, clean, count, documentName, h, name, several } from './dom.js';

const LISTED = 20;
const STATUS = { answered: 'answered', idk: 'does not know', failed: 'failed' };
const WORDS = [['good', 'Good'], ['bad', 'Bad'], ['unsure', 'Unsure']];
const WITHHELD = 'Some of its passages are closed to you, so the answer is not shown, and you cannot judge it.';
const day = at => new Date(at * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' });

/** Events: `change` when there is a queue that the caller may see, or none any more. */
export class Review extends EventTarget {
  #live;
  #panel;
  #round = 0;
  #next = null;
  #told = null;
  #counts = h('p', { class: 'hint', role: 'status' });
  #problem = h('p', { class: 'problem', role: 'alert', hidden: true });
  #rows = h('ul', { class: 'cards review' });
  #more = button('Show more', () => this.#load(true), { hidden: true, class: 'more' });
  #node = h('select', { id: 'review-node' });
  #state = h('select', { id: 'review-state' }, h('option', { value: 'open' }, 'Open'), h('option', { value: 'judged' }, 'Judged'));
  #rule = h('select', { id: 'review-rule' });
  #rules = new Set();
  /** Whether there is a queue that the caller may see. */
  isThere = false;

  constructor(live, panel) {
    super();
    [this.#live, this.#panel] = [live, panel];
    for (const select of [this.#node, this.#state, this.#rule]) select.addEventListener('change', () => this.load());
    const choice = (label, select) => h('div', { class: 'choice' }, h('label', { for: select.id }, label), select);
    panel.replaceChildren(
      h('div', { class: 'row' }, h('h2', {}, 'Review'), button('Read again', () => this.load(), { class: 'quiet' })),
      h('div', { class: 'choices' }, choice('Node', this.#node), choice('Show', this.#state), choice('Rule', this.#rule)),
      this.#counts, this.#problem, this.#rows, this.#more);
    live.addEventListener('chosen', () => this.#look());
    live.addEventListener('pipelines', () => this.#look());
  }

  #look() {
    const nodes = this.#live.caller?.documents === 'Manage' ? (this.#live.pipeline?.nodes ?? []).filter(node => node.kind === 'Review').map(node => node.id).sort() : [];
    this.#round++;
    this.#rules.clear();
    this.#rows.replaceChildren();
    this.#choices(this.#node, nodes.map(id => [id, clean(id)]));
    this.#node.parentElement.hidden = nodes.length < 2;
    this.#choices(this.#rule, [['', 'All']]);
    this.isThere = nodes.length > 0;
    this.dispatchEvent(new Event('change'));
    if (this.isThere && !this.#panel.hidden) this.load();
  }

  #choices(select, all) {
    const chosen = select.value;
    select.replaceChildren(...all.map(([value, text]) => h('option', { value }, text)));
    select.value = all.some(([value]) => value === chosen) ? chosen : all[0]?.[0] ?? '';
  }

  /** Reads the queue from its beginning. */
  load() {
    return this.#load(false);
  }

  async #load(isMore) {
    if (!this.isThere) return;
    const round = ++this.#round;
    const query = new URLSearchParams({ pipeline: this.#live.name, node: this.#node.value, state: this.#state.value, limit: LISTED });
    if (this.#rule.value) query.set('rule', this.#rule.value);
    if (isMore && this.#next) query.set('after', this.#next);
    let list;
    try {
      list = await get(`/v1/review?${query}`);
    } catch (error) {
      if (round === this.#round) [this.#problem.textContent, this.#problem.hidden] = [clean(error.message), false];
      return;
    }
    // Something else was chosen meanwhile.
    if (round !== this.#round) return;
    this.#problem.hidden = true;
    list.data.flatMap(item => item.rules).forEach(rule => this.#rules.add(rule));
    this.#choices(this.#rule, [['', 'All'], ...[...this.#rules].sort().map(rule => [rule, clean(rule)])]);
    const rows = list.data.map(item => this.#row(item));
    if (isMore) this.#rows.append(...rows);
    else this.#rows.replaceChildren(...rows);
    this.#next = list.next ?? this.#next;
    this.#more.hidden = !list.has_more;
    this.#tell(list);
    if (isMore) rows[0]?.querySelector('button, summary')?.focus();
  }

  #tell({ open, judged, left_out: left }) {
    this.#told = { open, judged, left_out: left };
    const words = [`${several(open, 'answer')} open, ${count(judged)} judged.`, left > 0 && `${count(left)} left out, because the queue was full.`,
      !this.#rows.children.length && 'Nothing to show here.'];
    this.#counts.textContent = words.filter(Boolean).join(' ');
  }

  #row(item) {
    const { id, question, query, status, answer, error, rules, judgement, withheld, at } = item;
    const label = clean(question).slice(0, 80);
    const about = [day(at), STATUS[status] ?? status, rules.join(', ')];
    const said = status === 'failed' ? error : answer;
    const row = h('li', { class: 'card' },
      h('h3', { class: 'question', dir: 'auto' }, clean(question)),
      h('p', { class: 'from' }, about.flatMap(part => [' · ', name(part)]).slice(1)),
      query !== question && query && h('p', { class: 'from' }, 'Searched: ', name(query)),
      withheld ? h('p', { class: 'note' }, WITHHELD) : h('p', { class: 'text said-answer', dir: 'auto' }, clean(said) || '(empty)'),
      judgement && h('p', { class: 'verdict' }, h('strong', {}, judgement.verdict), judgement.by && [' by ', name(judgement.by)], `, ${day(judgement.at)}`,
        judgement.correction && h('span', { dir: 'auto' }, `. It must say: ${clean(judgement.correction)}`), judgement.comment && h('span', { dir: 'auto' }, `. ${clean(judgement.comment)}`)),
      this.#form(item, label));
    row.dataset.item = id;
    return row;
  }

  #form(item, label) {
    const { id, hits, withheld } = item;
    const marks = new Map();
    const passages = h('details', {}, h('summary', {}, `${several(hits.length, 'passage')}${item.more_hits ? ` of ${count(hits.length + item.more_hits)}` : ''}`),
      h('ol', { class: 'passages' }, hits.map(hit => this.#passage(hit, marks, withheld))));
    if (withheld) return hits.length > 0 && passages;
    const field = (key, text) => [h('label', { for: `${key}-${id}` }, text), h('textarea', { id: `${key}-${id}`, rows: '2', dir: 'auto' })];
    const [corrects, correction] = field('correction', 'The right answer');
    const [comments, comment] = field('comment', 'Comment');
    const answerable = h('select', { id: `answerable-${id}` }, h('option', { value: '' }, 'Not said'), h('option', { value: 'yes' }, 'Yes'), h('option', { value: 'no' }, 'No'));
    const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    const read = verdict => {
      const marked = wanted => [...marks].filter(([, mark]) => mark === wanted).map(([passage]) => passage);
      return {
        verdict, correction: correction.value.trim() || null, comment: comment.value.trim() || null,
        answerable: answerable.value ? answerable.value === 'yes' : null, relevant: marked('relevant'), irrelevant: marked('irrelevant'),
      };
    };
    const verdicts = WORDS.map(([verdict, text]) => button(text, event => this.#judge(event.target.closest('li.card'), item, read(verdict), problem), { 'aria-label': `${text}: ${label}`, data: { verdict } }));
    return h('div', { class: 'judge' }, hits.length > 0 && passages,
      h('details', {}, h('summary', {}, 'Say more'),
        h('div', { class: 'choice' }, h('label', { for: answerable.id }, 'Do the documents answer the question?'), answerable), corrects, correction, comments, comment),
      h('div', { class: 'row verdicts', role: 'group', 'aria-label': 'Verdict' }, verdicts), problem);
  }

  #passage({ passage, document, text, cut, cited }, marks, isClosed) {
    const both = [];
    const set = wanted => {
      const mark = marks.get(passage) === wanted ? null : wanted;
      if (mark) marks.set(passage, mark);
      else marks.delete(passage);
      for (const one of both) one.setAttribute('aria-pressed', String(one.dataset.mark === mark));
    };
    const toggle = (mark, words) => button(words, () => set(mark), { class: 'quiet thumb', 'aria-pressed': 'false', 'aria-label': `${words}: ${clean(passage)}`, data: { mark } });
    if (!isClosed) both.push(toggle('relevant', 'Relevant'), toggle('irrelevant', 'Not relevant'));
    return h('li', {}, h('p', { class: 'from' }, 'Passage ', name(passage), ', document ', documentName(document), cited && ', cited'),
      text === null ? h('p', { class: 'note' }, 'This passage is closed to you.') : h('p', { class: 'text', dir: 'auto' }, clean(text), cut && ' …'),
      both.length > 0 && h('div', { class: 'tools' }, both));
  }

  async #judge(row, { id, question }, verdict, problem) {
    const buttons = row.querySelectorAll('.verdicts button');
    const enable = isOn => buttons.forEach(one => { one.disabled = !isOn; });
    const query = new URLSearchParams({ pipeline: this.#live.name, node: this.#node.value });
    enable(false);
    problem.hidden = true;
    let judged;
    try {
      judged = await post(`/v1/review/${encodeURIComponent(id)}?${query}`, verdict);
    } catch (error) {
      [problem.textContent, problem.hidden] = [clean(error.message), false];
      enable(true);
      row.querySelector(`[data-verdict=${verdict.verdict}]`).focus();
      return;
    }
    announce(`Judged as ${verdict.verdict}: ${question}`);
    if (this.#state.value === 'judged') {
      const made = this.#row(judged);
      row.replaceWith(made);
      made.querySelector(`[data-verdict=${verdict.verdict}]`).focus();
      return;
    }
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    const { open, judged: before, left_out } = this.#told;
    this.#tell({ open: Math.max(0, open - 1), judged: before + 1, left_out });
    if (next) (next.querySelector('[data-verdict]') ?? next.querySelector('summary'))?.focus();
    else this.load();
  }
}
