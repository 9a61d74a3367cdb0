// The conversation in the tab's storage: it survives a reload of the page, and ends with the tab.

import { Conversation, Turn } from './asked.js';

const KEY = 'turnflow.conversation';
/** The form of what is stored. */
const FORM = 1;
/** A conversation whose steps take more characters than this is stored without them. */
const MOST = 2_000_000;

/** Stores a conversation. A conversation that does not fit is not stored. */
export function keep(conversation) {
  const pipelines = [];
  const place = pipeline => {
    const at = pipelines.findIndex(known => JSON.stringify(known) === JSON.stringify(pipeline));
    return at < 0 ? pipelines.push(pipeline) - 1 : at;
  };
  const packed = (turn, has) => {
    const { text, collection, adjust, state, answer, record, problem, former, took_ms, picked, helpful } = turn;
    return { text, collection, adjust, state, answer, record, problem, former, took_ms, picked, helpful, conversation: turn.conversation,
      pipeline: place(turn.pipeline), steps: has ? [...turn.steps] : [], children: turn.children.map(child => packed(child, has)) };
  };
  const whole = has => {
    pipelines.length = 0;
    const { children, picked } = conversation.root;
    return JSON.stringify({ form: FORM, picked, children: children.map(child => packed(child, has)), pipelines });
  };
  try {
    const text = whole(true);
    sessionStorage.setItem(KEY, text.length > MOST ? whole(false) : text);
  } catch {
    // The storage is full or switched off.
    forget();
  }
}

/** Removes the stored conversation. */
export function forget() {
  try {
    sessionStorage.removeItem(KEY);
  } catch { /* Nothing is stored. */ }
}

/** The stored conversation; a new one if there is none. */
export function kept() {
  const conversation = new Conversation();
  try {
    const { form, picked, children, pipelines } = JSON.parse(sessionStorage.getItem(KEY) ?? '{}');
    if (form !== FORM) return conversation;
    const unpack = (parent, packed) => {
      const turn = Turn.ended(parent, { ...packed, pipeline: pipelines[packed.pipeline] });
      parent.children.push(turn);
      for (const child of packed.children) unpack(turn, child);
      turn.picked = packed.picked;
    };
    for (const child of children) unpack(conversation.root, child);
    conversation.root.picked = picked;
    return conversation;
  } catch {
    // Stored by another version of the page.
    return new Conversation();
  }
}
