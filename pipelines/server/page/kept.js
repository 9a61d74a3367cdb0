// The conversations of a caller, in the browser's database. They belong to the caller whose token was used: nobody else's are
// listed or opened. Without a database, they last until the page is left.

import { Conversation, TITLE, Turn } from './asked.js';

const NAME = 'turnflow';
/** The tab's open conversation. */
const OPEN = 'turnflow.open';
/** The form of what is stored. */
const FORM = 2;
/** A conversation whose steps take more characters than this is stored without them. */
const MOST = 2_000_000;
/** The bounds for all conversations of a caller. The oldest are removed. */
const [MOST_KEPT, MOST_CHARACTERS] = [200, 50_000_000];

const done = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function database() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => ['heads', 'bodies'].forEach(store => request.result.createObjectStore(store, { keyPath: ['owner', 'id'] }));
  return done(request);
}

/** The same without a database. */
class Memory {
  #stores = { heads: new Map(), bodies: new Map() };
  #key = key => JSON.stringify(key);

  async get(store, key) { return this.#stores[store].get(this.#key(key)); }

  async all() { return [...this.#stores.heads.values()]; }

  async put(head, body) {
    this.#stores.heads.set(this.#key([head.owner, head.id]), head);
    if (body) this.#stores.bodies.set(this.#key([head.owner, head.id]), body);
  }

  async remove(keys) { for (const key of keys) for (const store of Object.values(this.#stores)) store.delete(this.#key(key)); }
}

class Stored {
  #database;

  constructor(database) { this.#database = database; }

  get(store, key) { return done(this.#database.transaction(store).objectStore(store).get(key)); }

  all(owner) { return done(this.#database.transaction('heads').objectStore('heads').getAll(IDBKeyRange.bound([owner], [owner, []]))); }

  #change(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(['heads', 'bodies'], 'readwrite');
      change(transaction);
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  }

  put(head, body) {
    return this.#change(transaction => {
      transaction.objectStore('heads').put(head);
      if (body) transaction.objectStore('bodies').put(body);
    });
  }

  remove(keys) {
    return this.#change(transaction => {
      for (const key of keys) for (const store of ['heads', 'bodies']) transaction.objectStore(store).delete(key);
    });
  }
}

/** A conversation as text. */
function pack({ root }) {
  const pipelines = [];
  const place = pipeline => {
    const at = pipelines.findIndex(known => known === pipeline || JSON.stringify(known) === JSON.stringify(pipeline));
    return at < 0 ? pipelines.push(pipeline) - 1 : at;
  };
  const packed = (turn, has) => {
    const { text, collection, adjust, state, answer, record, problem, former, took_ms, picked, helpful, shared, resume, seen } = turn;
    return { text, collection, adjust, state, answer, record, problem, former, took_ms, picked, helpful, shared, resume, seen, conversation: turn.conversation,
      pipeline: place(turn.pipeline), steps: has ? [...turn.steps] : [], children: turn.children.map(child => packed(child, has)) };
  };
  const whole = has => JSON.stringify({ form: FORM, picked: root.picked, children: root.children.map(child => packed(child, has)), pipelines });
  const text = whole(true);
  return text.length > MOST ? whole(false) : text;
}

function unpack({ id, named, changed }, text) {
  const { form, picked, children, pipelines } = JSON.parse(text);
  // Stored by another version of the page.
  if (form !== FORM) return null;
  const conversation = Object.assign(new Conversation(), { id, named, changed });
  const add = (parent, packed) => {
    const turn = Turn.ended(parent, { ...packed, pipeline: pipelines[packed.pipeline] });
    parent.children.push(turn);
    for (const child of packed.children) add(turn, child);
    turn.picked = packed.picked;
  };
  for (const child of children) add(conversation.root, child);
  conversation.root.picked = picked;
  return conversation;
}

export class Shelf {
  #owner;
  #store;

  /** The conversations of a caller. */
  static async of(owner) {
    const shelf = new Shelf();
    shelf.#owner = owner;
    try {
      shelf.#store = new Stored(await database());
    } catch {
      shelf.#store = new Memory();
    }
    return shelf;
  }

  /** The names of all: { id, title, changed }, the newest first. */
  async list() {
    const heads = (await this.#store.all(this.#owner)).filter(head => head.owner === this.#owner);
    return heads.sort((a, b) => b.changed - a.changed);
  }

  /** A conversation; `null` if it is not there. */
  async load(id) {
    const key = [this.#owner, id];
    const [head, body] = await Promise.all([this.#store.get('heads', key), this.#store.get('bodies', key)]);
    return head && body ? unpack(head, body.text) : null;
  }

  /** Stores a conversation, and removes the oldest ones beyond the bounds. One that does not fit is not stored: then it gives false. */
  async keep(conversation) {
    const { id, named, title, changed } = conversation;
    const [owner, text] = [this.#owner, pack(conversation)];
    try {
      await this.#store.put({ owner, id, named, title, changed, size: text.length }, { owner, id, text });
      let size = 0;
      const over = (await this.list()).filter((head, at) => (size += head.size) > MOST_CHARACTERS || at >= MOST_KEPT);
      if (over.length) await this.#store.remove(over.map(head => [owner, head.id]));
      return true;
    } catch {
      return false;
    }
  }

  async rename(id, named) {
    const head = await this.#store.get('heads', [this.#owner, id]);
    if (head) await this.#store.put({ ...head, named, title: named.slice(0, TITLE) });
  }

  remove(ids) {
    return this.#store.remove(ids.map(id => [this.#owner, id]));
  }

  /** The ids of the links that share turns of these conversations. */
  async links(ids) {
    const of = turn => turn.children.flatMap(child => [child.shared?.id, ...of(child)]).filter(Boolean);
    const loaded = await Promise.all(ids.map(id => this.load(id).catch(() => null)));
    return loaded.flatMap(conversation => conversation ? of(conversation.root) : []);
  }

  /** The conversation that was open in this tab. */
  get open() {
    try {
      const [owner, id] = JSON.parse(sessionStorage.getItem(OPEN) ?? '[]');
      return owner === this.#owner ? id : null;
    } catch {
      return null;
    }
  }

  set open(id) {
    try {
      sessionStorage.setItem(OPEN, JSON.stringify([this.#owner, id]));
    } catch { /* A reload of the page begins a new one. */ }
  }
}
