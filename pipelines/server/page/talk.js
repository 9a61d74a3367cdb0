// The conversation: questions, streamed answers, editing and versions.

import { post } from './api.js';
import { Conversation, Turn } from './asked.js';
import { asTest } from './astest.js';
import { ConversationList } from './conversations.js';
import { announce, button, byId, clean, duration, h, isCalm, perFrame, several } from './dom.js';
import { markdown } from './markdown.js';
import { sharing } from './share.js';
import { citing } from './text.js';

const EMPTY = 'Ask a question. The answer and the results of every pipeline step appear as they arrive.';
const STATES = { running: 'Answering', answered: 'Answered', idk: 'Answered: does not know', failed: 'Failed', stopped: 'Stopped' };

export class Talk {
  #context;
  #conversation = new Conversation();
  /** Those in the browser's database, once it is known who the caller is. */
  #shelf = null;
  #list;
  /** Conversations whose answers are on their way. */
  #busyOnes = new Map();
  #drawn = new Map();
  #turns = byId('turns');
  #question = byId('question');

  /** `context`: pipeline(), collection(), adjust(), show(turn), cite(turn, numbers, sentence), fresh(), unkept(). */
  constructor(context) {
    this.#context = context;
    this.#list = new ConversationList({
      open: id => this.#open(id),
      renamed: (id, title) => { if (this.#at(id)) this.#at(id).named = title; },
      removed: ids => ids.forEach(id => this.#removed(id)),
    });
    byId('composer').addEventListener('submit', event => { event.preventDefault(); this.#send(); });
    byId('stop').addEventListener('click', () => this.#conversation.running?.stop());
    byId('fresh').addEventListener('click', () => this.#fresh());
    this.#question.addEventListener('keydown', event => { if (asks(event)) { event.preventDefault(); this.#send(); } });
    this.#question.addEventListener('input', () => grow(this.#question));
    document.addEventListener('keydown', event => {
      if (event.key === 'Escape' && this.#conversation.running && !document.querySelector('dialog[open]')) this.#conversation.running.stop();
    });
    this.#draw();
  }

  /** The caller's conversations; the one that was open in this tab is opened. */
  async shelf(shelf) {
    const isOther = this.#shelf !== null;
    this.#shelf = shelf;
    // Another caller does not see what was said before, and what still comes of it is kept for nobody.
    if (isOther) this.#leaveAll();
    if (!isOther && this.#conversation.root.children.length) {
      // Somebody was faster than the browser's database.
      shelf.open = this.#conversation.id;
      this.#keep(this.#conversation);
    }
    const open = shelf.open && await shelf.load(shelf.open).catch(() => null);
    if (open && shelf === this.#shelf && !this.#conversation.root.children.length) this.#enter(open);
    else this.#list.update(this.#shelf, this.#conversation.id);
  }

  /** A conversation that the page holds. */
  #at(id) {
    return id === this.#conversation.id ? this.#conversation : this.#busyOnes.get(id);
  }

  async #open(id) {
    if (id === this.#conversation.id) return;
    const found = this.#at(id) ?? await this.#shelf.load(id).catch(() => null);
    if (found) this.#enter(found);
    else announce('This conversation cannot be read.');
    this.#question.focus();
  }

  #leaveAll() {
    for (const one of [this.#conversation, ...this.#busyOnes.values()]) {
      one.isGone = true;
      one.running?.stop();
    }
    this.#enter(new Conversation());
    this.#busyOnes.clear();
  }

  #removed(id) {
    const found = this.#at(id);
    if (!found) return;
    found.isGone = true;
    found.running?.stop();
    if (found === this.#conversation) this.#enter(new Conversation());
  }

  /** Shows a conversation. An answer that is on its way in another one goes on. */
  #enter(conversation) {
    const before = this.#conversation;
    if (before.running) this.#busyOnes.set(before.id, before);
    else before.live?.leave();
    this.#conversation = conversation;
    this.#busyOnes.delete(conversation.id);
    if (this.#shelf) this.#shelf.open = conversation.id;
    this.#list.update(this.#shelf, conversation.id);
    this.#drawn.clear();
    const { last } = conversation;
    if (last.parent && !conversation.live) this.#goOn(conversation, last);
    this.#draw();
    this.#busy();
    this.#context.fresh();
    if (last.parent) this.#context.show(last);
  }

  /** Follows a turn of an earlier visit of the page. */
  #goOn(conversation, turn) {
    if (!turn.resume) return;
    if (turn.state === 'running') conversation.running = turn;
    conversation.live = turn;
    this.#listen(conversation, turn);
    turn.goOn();
  }

  #keep(conversation) {
    if (!this.#shelf || conversation.isGone) return;
    this.#shelf.keep(conversation).then(isKept => {
      if (!isKept) this.#context.unkept();
      this.#list.update(this.#shelf, this.#conversation.id);
    });
  }

  #send() {
    const text = this.#question.value.trim();
    if (!text) return this.#question.focus();
    if (this.#ask(this.#conversation.last, text)) {
      this.#question.value = '';
      grow(this.#question);
    }
    return undefined;
  }

  /** Asks after `parent`; false if it cannot be asked now. */
  #ask(parent, text) {
    const [pipeline, conversation] = [this.#context.pipeline(), this.#conversation];
    if (conversation.running || !pipeline) return false;
    const turn = new Turn({ parent, text, pipeline, collection: this.#context.collection(), adjust: this.#context.adjust() });
    conversation.add(turn);
    conversation.live?.leave();
    conversation.running = conversation.live = turn;
    conversation.changed = Date.now();
    if (this.#shelf) this.#shelf.open = conversation.id;
    this.#listen(conversation, turn);
    this.#draw();
    this.#context.show(turn);
    this.#busy();
    announce('Answering.');
    turn.run();
    this.#keep(conversation);
    return true;
  }

  #listen(conversation, turn) {
    const update = perFrame(() => this.#update(turn));
    for (const event of ['step', 'delta']) turn.addEventListener(event, update);
    turn.addEventListener('end', () => this.#ended(conversation, turn));
    turn.addEventListener('revised', () => this.#revised(conversation, turn));
    turn.addEventListener('said', () => this.#keep(conversation));
  }

  #ended(conversation, turn) {
    if (conversation.running === turn) conversation.running = null;
    this.#busyOnes.delete(conversation.id);
    this.#busy();
    this.#keep(conversation);
    if (this.#drawn.has(turn)) {
      this.#update(turn);
      announce(turn.state === 'failed' ? `The turn failed: ${turn.problem}` : turn.state === 'stopped' ? 'Stopped.' : `Answer: ${turn.answer}`);
    }
  }

  #revised(conversation, turn) {
    this.#keep(conversation);
    if (!this.#drawn.has(turn)) return;
    this.#update(turn);
    announce(`The documents have changed. Answer: ${turn.answer}`);
  }

  #busy() {
    const held = document.activeElement;
    const [send, stop] = [byId('send'), byId('stop')];
    const isRunning = Boolean(this.#conversation.running);
    [send.hidden, stop.hidden] = [isRunning, !isRunning];
    // Keep the focus on the next control to use.
    if (held === send && send.hidden) stop.focus();
    if (held === stop && stop.hidden) this.#question.focus();
  }

  #fresh() {
    this.#list.show(false);
    this.#enter(new Conversation());
    this.#question.focus();
  }

  #draw() {
    const { turns } = this.#conversation;
    for (const turn of [...this.#drawn.keys()]) if (!turns.includes(turn)) this.#drawn.delete(turn);
    for (const turn of turns) if (!this.#drawn.has(turn)) this.#drawn.set(turn, this.#article(turn));
    this.#turns.replaceChildren(...turns.length ? turns.map(turn => this.#drawn.get(turn).article) : [h('p', { class: 'empty' }, EMPTY)]);
    turns.forEach(turn => this.#update(turn));
    this.#turns.scrollTo({ top: this.#turns.scrollHeight, behavior: isCalm() ? 'auto' : 'smooth' });
  }

  #article(turn) {
    const parts = {
      said: h('div', { class: 'said' }),
      answer: h('div', { class: 'answer', dir: 'auto' }),
      state: h('p', { class: 'state' }),
      tools: h('div', { class: 'tools' }),
    };
    const { made, place } = sharing(turn);
    parts.article = h('article', { class: 'turn', 'aria-label': `Turn ${turn.number}` }, parts.said, parts.answer, h('div', { class: 'row' }, parts.state, parts.tools), place);
    this.#said(turn, parts);
    parts.tools.append(
      button('Workflow', () => this.#context.show(turn, true), { class: 'quiet workflow', 'aria-label': `Workflow of turn ${turn.number}` }),
      copies(turn, 'Copy', 'copy', `Copy answer ${turn.number}`, () => turn.answer), made,
      ...thumbs(turn),
      copies(turn, 'Copy as a test', 'as-test', `Copy as a test: answer ${turn.number}`, () => asTest(turn)),
      button('Ask again', () => this.#again(turn, turn.text), { class: 'quiet again', title: 'Ask the same question again, with the current pipeline and tuning' }),
    );
    return parts;
  }

  #said(turn, { said }) {
    const { children } = turn.parent;
    const at = children.indexOf(turn);
    const step = (by, label, sign) => button(sign, () => { this.#conversation.pick(turn, by); this.#keep(this.#conversation); this.#shown(turn.parent); },
      { 'aria-label': label, class: 'quiet', disabled: at + by < 0 || at + by >= children.length });
    said.replaceChildren(
      h('p', { class: 'question', dir: 'auto' }, clean(turn.text)),
      h('div', { class: 'tools' },
        children.length > 1 && h('span', { class: 'versions' }, step(-1, 'Earlier version', '‹'), ` ${at + 1} of ${children.length} `, step(1, 'Later version', '›')),
        button('Edit', () => this.#edit(turn), { class: 'quiet edit', 'aria-label': `Edit question ${turn.number}` })),
    );
  }

  #shown(parent) {
    this.#drawn.clear();
    this.#draw();
    this.#context.show(parent.children[parent.picked]);
  }

  #edit(turn) {
    const { said } = this.#drawn.get(turn);
    const area = h('textarea', { dir: 'auto', 'aria-label': 'Edited question', rows: 1 });
    area.value = turn.text;
    const cancel = () => { this.#said(turn, this.#drawn.get(turn)); said.querySelector('.edit').focus(); };
    const send = () => { if (area.value.trim()) this.#again(turn, area.value.trim()); };
    area.addEventListener('input', () => grow(area));
    area.addEventListener('keydown', event => {
      if (asks(event)) { event.preventDefault(); send(); }
      if (event.key === 'Escape') { event.stopPropagation(); cancel(); }
    });
    said.replaceChildren(area, h('div', { class: 'tools' }, button('Cancel', cancel, { class: 'quiet' }), button('Ask again', send, { class: 'strong' })));
    grow(area);
    area.focus();
  }

  /** Asks in the place of a turn; both versions are kept. */
  #again(turn, text) {
    this.#conversation.running?.stop();
    this.#conversation.running = null;
    this.#drawn.clear();
    if (!this.#ask(turn.parent, text)) this.#draw();
  }

  #update(turn) {
    const parts = this.#drawn.get(turn);
    if (!parts) return;
    const atEnd = this.#turns.scrollHeight - this.#turns.scrollTop - this.#turns.clientHeight < 60;
    const { article, answer, state, tools } = parts;
    article.className = `turn ${turn.state}`;
    article.setAttribute('aria-busy', String(turn.state === 'running'));
    answer.replaceChildren(...this.#text(turn));
    state.textContent = this.#state(turn);
    for (const after of tools.querySelectorAll('.again, .copy, .thumb')) after.hidden = turn.state === 'running' || (!turn.answer && !after.matches('.again'));
    tools.querySelector('.as-test').hidden = turn.helpful === null || turn.state === 'running';
    tools.querySelector('.share').hidden = !turn.record?.proof;
    for (const thumb of tools.querySelectorAll('.thumb')) thumb.setAttribute('aria-pressed', String(turn.helpful === (thumb.dataset.helpful === 'true')));
    if (atEnd && turn === this.#conversation.last) this.#turns.scrollTop = this.#turns.scrollHeight;
  }

  #text(turn) {
    const problem = turn.problem && h('p', { class: 'problem' }, clean(turn.problem));
    const parts = markdown(turn.answer, citing(clean(turn.answer), turn.passages.length, part => button(part.raw,
      () => this.#context.cite(turn, part.cites, part.sentence),
      { class: 'cite', 'aria-label': `Passage ${part.cites.join(', ')} in the workflow` })));
    const former = turn.former !== null && h('details', { class: 'former' },
      h('summary', {}, 'The documents have changed since you asked. Before:'), h('div', { dir: 'auto' }, turn.former ? markdown(turn.former) : 'No answer.'));
    return [...parts, problem, former].filter(Boolean);
  }

  #state(turn) {
    if (turn.state === 'running') {
      const busy = turn.pipeline.nodes.filter(node => node.role === 'operator' && !turn.steps.has(node.id)
        && node.inputs.every(input => turn.steps.has(input)));
      return busy.length ? `${STATES.running}: ${busy.map(node => node.id).join(', ')}` : STATES.running;
    }
    const own = turn.record?.stamp.warnings?.length ?? 0;
    return [STATES[turn.state] ?? turn.state, duration(turn.took_ms), turn.pipeline.name,
      turn.collection, turn.adjust && 'adjusted', own && several(own, 'warning')].filter(Boolean).join(' · ');
  }
}

/** A button that copies an answer, or what is made of it. */
function copies(turn, sign, kind, label, text) {
  const made = button(sign, async () => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = 'Copied';
    } catch {
      made.textContent = 'Cannot copy';
    }
    announce(made.textContent);
    setTimeout(() => { made.textContent = sign; }, 2000);
  }, { class: `quiet ${kind}`, 'aria-label': label });
  return made;
}

/** Two buttons that say whether an answer has helped. */
function thumbs(turn) {
  const say = helpful => async () => {
    const before = turn.helpful;
    turn.helpful = helpful;
    mark(turn);
    try {
      await feedback(turn, helpful);
      announce(helpful ? 'Noted: the answer was helpful.' : 'Noted: the answer was not helpful.');
      turn.dispatchEvent(new Event('said'));
    } catch (error) {
      turn.helpful = before;
      mark(turn);
      announce(`The feedback was not kept: ${error.message}`);
    }
  };
  const all = [[true, 'Helpful', 'helpful'], [false, 'Not helpful', 'not helpful']].map(([helpful, sign, words]) => button(sign, say(helpful),
    { class: 'quiet thumb', data: { helpful: String(helpful) }, 'aria-pressed': 'false', title: `The answer was ${words}`, 'aria-label': `Answer ${turn.number} was ${words}` }));
  const mark = () => {
    all.forEach(thumb => thumb.setAttribute('aria-pressed', String(turn.helpful === (thumb.dataset.helpful === 'true'))));
    all[0].parentNode.querySelector('.as-test').hidden = turn.helpful === null;
  };
  return all;
}

function feedback(turn, helpful) {
  const cited = new Set((turn.record?.citations ?? []).map(citation => citation.passage));
  const body = {
    conversation_id: turn.conversation, turn: turn.number, helpful, question: turn.text, answer: turn.answer, history: turn.history, passages: [...cited],
  };
  if (turn.collection) body.collection = turn.collection;
  return post(`/v1/feedback?pipeline=${encodeURIComponent(turn.pipeline.name)}`, body);
}

function asks(event) {
  return event.key === 'Enter' && !event.shiftKey && !event.isComposing;
}

/** Makes a text area as high as its text. */
function grow(area) {
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight + 2}px`;
}
