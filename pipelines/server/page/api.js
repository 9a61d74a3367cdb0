// Calls of the server: the token, errors and streams of events.

import { byId, clean, name } from './dom.js';
import { leave, provider, returned } from './signin.js';

const KEY = 'turnflow.token';
const ASK = 'Ask the administrator of the server for a token.';
let asking = null;
let declined = false;
/** The token, where the browser keeps nothing. */
let memory = null;

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

/** `keeps`: whether the token is kept when the browser is closed; otherwise it ends with the tab. */
function store(token, keeps) {
  memory = token;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    (keeps ? localStorage : sessionStorage).setItem(KEY, token);
  } catch { /* It lasts until the page is left. */ }
}

// Somebody has signed in with another token in another tab, or signed out there, and this one has none of its own.
addEventListener('storage', event => {
  if (event.key !== KEY || event.oldValue === null || event.oldValue === event.newValue) return;
  if (memory === event.oldValue) memory = null;
  // A new token comes right after the old one is removed.
  setTimeout(() => {
    try {
      if (sessionStorage.getItem(KEY) === null && localStorage.getItem(KEY) !== event.oldValue) location.reload();
    } catch { /* Nothing is stored. */ }
  }, event.newValue === null ? 250 : 0);
});

/** What went wrong when somebody came back from the identity provider. */
let refusal = '';
/** Done when it is known whether somebody comes back from there. */
const back = returned().then(found => {
  if (found?.token) store(found.token, found.keeps);
  refusal = found?.problem ?? '';
});

/** Why a call failed. `status` is 0 if the server was not reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function ask(problem) {
  asking ??= new Promise(resolve => {
    const dialog = byId('token-dialog');
    const [form, input, cancel, keeps, goes] = ['token-form', 'token', 'token-cancel', 'token-keep', 'sign-in'].map(byId);
    byId('token-problem').textContent = clean(refusal || problem);
    refusal = '';
    provider().then(of => {
      byId('sign-in-choice').hidden = !of;
      if (!of) return;
      // Who signs in needs no other token.
      if (byId('token-problem').textContent === ASK) byId('token-problem').textContent = '';
      byId('sign-in-at').replaceChildren('You sign in at ', name(new URL(of.issuer).host), '.');
      goes.onclick = () => leave(of, keeps.checked).catch(error => { byId('token-problem').textContent = error.message; });
    });
    const done = given => {
      form.onsubmit = cancel.onclick = dialog.oncancel = goes.onclick = null;
      input.value = '';
      dialog.close();
      asking = null;
      declined = !given;
      const before = stored();
      if (given) store(given, keeps.checked);
      // Another token may be another person's: what the page shows is of the one before.
      if (given && before !== null && before !== given && stored() === given) location.reload();
      else resolve(Boolean(given));
    };
    form.onsubmit = event => { event.preventDefault(); if (input.value.trim()) done(input.value.trim()); };
    cancel.onclick = () => done(null);
    dialog.oncancel = event => { event.preventDefault(); done(null); };
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/** Whether there is a token. */
export const isSignedIn = () => stored() !== null;

/** Forgets the token. */
export function signOut() {
  memory = null;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  } catch { /* Nothing is stored. */ }
}

/** Lets the page ask for a token again after it was refused. */
export function askAgain() {
  declined = false;
}

async function problem(response) {
  try {
    const { error } = await response.json();
    if (error?.message) return error.message;
  } catch { /* Not JSON: a proxy's page. */ }
  return `The server responded with status ${response.status}.`;
}

async function send(path, { method = 'GET', body, file, signal, timeout_ms } = {}) {
  await back;
  for (;;) {
    const headers = {};
    const token = stored();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    // Systems disagree about types; the server goes by the file's name.
    if (file) headers['Content-Type'] = 'application/octet-stream';
    const signals = [signal, timeout_ms && AbortSignal.timeout(timeout_ms)].filter(Boolean);
    const within = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
    let response;
    try {
      response = await fetch(path, { method, headers, body: file ?? (body && JSON.stringify(body)), signal: within, cache: 'no-store' });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, error.name === 'TimeoutError' ? 'The server did not respond in time.' : 'The server cannot be reached.');
    }
    if (response.ok) return response;
    const message = await problem(response);
    // Another call may have obtained a token meanwhile.
    if (response.status === 401 && stored() !== token) continue;
    if (response.status === 401 && !declined && await ask(token ? `${message}.` : ASK)) continue;
    throw new ApiError(response.status, message);
  }
}

/** Gets JSON. */
export async function get(path, options) {
  const response = await send(path, { timeout_ms: 15000, ...options });
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, 'The server did not respond with JSON.');
  }
}

/** Puts a file. */
export const put = async (path, file) => (await send(path, { method: 'PUT', file })).json();

/** Posts JSON. */
export const post = async (path, body) => (await send(path, { method: 'POST', body, timeout_ms: 15000 })).json();

/** Deletes something. */
export const remove = async path => (await send(path, { method: 'DELETE', timeout_ms: 60000 })).json();

/** Posts JSON, or reads if there is none, and gives the events of the response, as { event, data, id }. */
export async function* events(path, body, signal) {
  const response = await send(path, { method: body ? 'POST' : 'GET', body, signal });
  let reader;
  try {
    reader = response.body.getReader();
    yield* parse(reader);
  } catch (error) {
    if (signal?.aborted || error instanceof ApiError) throw error;
    throw new ApiError(0, 'The connection to the server broke.');
  } finally {
    reader?.cancel().catch(() => {});
  }
}

/** Server-sent events from chunks of bytes, which may end anywhere. */
export async function* parse(reader) {
  const decoder = new TextDecoder();
  let [rest, event, data, id] = ['', '', [], null];
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
    // A lone \r at the end may be the first half of \r\n.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === '') {
        if (data.length) yield { event, data: JSON.parse(data.join('\n')), id };
        [event, data] = ['', []];
      } else if (!line.startsWith(':')) {
        const at = line.indexOf(':');
        const [field, text] = at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, '')];
        if (field === 'event') event = text;
        if (field === 'id') id = Number(text);
        if (field === 'data') data.push(text);
      }
    }
    if (done) return;
  }
}
