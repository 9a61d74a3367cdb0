// Asked turns, their results, and the conversation that they form: a tree, since a question
// can be edited and asked again.

import { ApiError, events, remove } from './api.js';

export function identifier() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `page-${Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('')}`;
}

/** Most characters of a title. */
export const TITLE = 120;

/** Why a turn of an earlier visit of the page has no answer. */
const LOST = 'The page was left, and the server no longer has this answer. Ask again.';

/** A turn. Events: `step` and `delta` (with the node in `detail`), `end`, and `revised` when the documents have changed so that
 * the answer is another one. */
export class Turn extends EventTarget {
  /** `running`, then `answered`, `idk`, `failed` or `stopped`. */
  state = 'running';
  steps = new Map();
  deltas = new Map();
  answer = '';
  record = null;
  problem = null;
  /** The answer before the documents changed. */
  former = null;
  /** Whether the person has said that it helped; `null` if nothing. */
  helpful = null;
  /** The link that shows it to others, if there is one. */
  shared = null;
  children = [];
  picked = 0;
  began = performance.now();
  /** Under this id, the server has the events of the turn, of which the page has those up to `seen`. */
  resume = identifier();
  seen = 0;
  #stopped = new AbortController();

  constructor({ parent, text, pipeline, collection, adjust }) {
    super();
    Object.assign(this, { parent, text, pipeline, collection, adjust });
    this.number = parent.number + 1;
    // A fork is a separate conversation.
    this.conversation = parent.conversation && !parent.children.length ? parent.conversation : identifier();
  }

  /** A turn of an earlier visit of the page. */
  static ended(parent, packed) {
    const turn = new Turn({ parent, ...packed });
    const { conversation, state, answer, record, problem, former, took_ms, steps, helpful, shared, resume, seen } = packed;
    Object.assign(turn, { conversation, state, answer, record, problem, former: former ?? null, helpful: helpful ?? null, shared: shared ?? null, took_ms, steps: new Map(steps), resume, seen: seen ?? 0 });
    return turn;
  }

  /** Follows a turn of an earlier visit: its answer, if it was running, and otherwise what becomes of it. */
  async goOn() {
    const wasRunning = this.state === 'running';
    if (wasRunning) [this.seen, this.answer, this.took_ms] = [0, '', undefined];
    const problem = await this.#follow(`/v1/turns/${this.resume}?after=${this.seen}`);
    if (!wasRunning || this.state !== 'running') return;
    if (problem?.status === 404) [this.state, this.problem] = ['stopped', LOST];
    else this.#ended(problem);
    this.#end();
  }

  /** What was said before. */
  get history() {
    const said = [];
    for (let turn = this.parent; turn.parent; turn = turn.parent) {
      if (turn.answer) said.push({ speaker: 'agent', text: turn.answer });
      said.push({ speaker: 'user', text: turn.text });
    }
    return said.reverse();
  }

  /** The passages that the answer's citations name. */
  get passages() {
    const step = [...this.steps.entries()].filter(([node]) => this.pipeline.answering.includes(node)).at(-1)?.[1];
    const hits = step?.value.Answer?.hits.map(hit => ({ ...hit.chunk, score: hit.score }));
    return hits ?? (this.record?.hits ?? []).map(({ passage, document, score, text, title, metadata }) => ({ id: passage, document, title: title ?? '', text, metadata, score }));
  }

  stop() {
    this.#stopped.abort();
    // Otherwise the server goes on for those who come back.
    remove(`/v1/turns/${this.resume}`).catch(() => {});
  }

  /** The answer is not followed any more. */
  leave() {
    if (this.state === 'running' || !this.resume || this.#stopped.signal.aborted) return;
    this.stop();
    this.resume = null;
    this.dispatchEvent(new Event('said'));
  }

  async run() {
    const { collection, adjust, conversation, history, number, text } = this;
    const body = { conversation_id: conversation, turn: number, speaker: 'user', text, history, live: true };
    if (collection) body.collection = collection;
    if (adjust) body.adjust = adjust;
    const path = `/v1/turns?stream=true&trace=true&resume=${this.resume}&pipeline=${encodeURIComponent(this.pipeline.name)}`;
    let problem = await this.#follow(path, body);
    // Other tabs follow as many answers as are allowed.
    if (problem?.status === 429 && this.state === 'running') {
      delete body.live;
      problem = await this.#follow(path, body);
    }
    // The server has the answer although the connection broke.
    if (this.state === 'running' && problem?.status === 0 && this.seen) problem = await this.#follow(`/v1/turns/${this.resume}?after=${this.seen}`) ?? problem;
    if (this.state === 'running') this.#ended(problem);
    this.#end();
  }

  /** Takes events; gives the error that ended them, if there was one. */
  async #follow(path, body) {
    try {
      for await (const { event, data, id } of events(path, body, this.#stopped.signal)) {
        this.seen = id ?? this.seen;
        this.#take(event, data);
      }
    } catch (error) {
      return error;
    }
    return null;
  }

  /** The events have ended before the answer. */
  #ended(problem) {
    if (this.#stopped.signal.aborted) this.state = 'stopped';
    else this.#fail(problem?.message ?? 'The connection ended before the answer did.');
  }

  #end() {
    if (this.took_ms !== undefined) return;
    this.took_ms = this.record?.latency_ms ?? performance.now() - this.began;
    this.dispatchEvent(new CustomEvent('end'));
  }

  #fail(problem) {
    [this.state, this.problem] = ['failed', problem];
  }

  #take(event, data) {
    const answering = this.pipeline.answering.includes(data.node);
    if (event === 'node') {
      const { node, value, took_ms, warnings } = data;
      this.steps.set(node, { value, took_ms, warnings });
      if (answering && value.Answer) this.answer = value.Answer.text;
      this.dispatchEvent(new CustomEvent('step', { detail: node }));
    } else if (event === 'delta') {
      this.deltas.set(data.node, (this.deltas.get(data.node) ?? '') + data.text);
      if (answering) this.answer = this.deltas.get(data.node);
      this.dispatchEvent(new CustomEvent('delta', { detail: data.node }));
    } else if (event === 'answer') {
      [this.state, this.record, this.answer] = [data.status, data, data.answer];
      this.#end();
    } else if (event === 'revised') {
      [this.former, this.problem] = [this.answer, null];
      [this.state, this.record, this.answer] = [data.status, data, data.answer];
      // Its passages are those of the record, and not those of the first run.
      for (const node of this.pipeline.answering) this.steps.delete(node);
      this.dispatchEvent(new CustomEvent('revised'));
    } else if (event === 'failed') {
      // A record of a failed turn, or an error of the request.
      if (data.stamp) this.record = data;
      this.answer = '';
      this.#fail(typeof data.error === 'string' ? data.error : data.error?.message ?? 'The turn failed.');
      this.#end();
    }
  }
}

/** A conversation; of each question that was edited, one version is shown. */
export class Conversation {
  id = identifier();
  /** The name that a person has given it. */
  named = null;
  changed = Date.now();
  /** The turn whose answer is on its way. */
  running = null;
  /** The last turn, whose answer is followed. */
  live = null;
  root = { parent: null, number: 0, conversation: null, children: [], picked: 0 };

  /** Its name, or else its first question. */
  get title() {
    return this.named ?? (this.root.children[0]?.text ?? '').replace(/\s+/g, ' ').slice(0, TITLE);
  }

  /** The turns that are shown, in order. */
  get turns() {
    const found = [];
    for (let turn = this.root.children[this.root.picked]; turn; turn = turn.children[turn.picked]) found.push(turn);
    return found;
  }

  get last() {
    return this.turns.at(-1) ?? this.root;
  }

  /** Adds a turn after `parent` and shows it. */
  add(turn) {
    turn.parent.picked = turn.parent.children.push(turn) - 1;
  }

  /** Shows another version of a turn. */
  pick(turn, step) {
    const { children } = turn.parent;
    turn.parent.picked = Math.min(children.length - 1, Math.max(0, children.indexOf(turn) + step));
  }
}
