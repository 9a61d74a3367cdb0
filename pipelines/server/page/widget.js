// A button and a panel to ask a server of turnflow from any page: <script src="https://SERVER/widget.js" data-token="…" async></script>
//
// It lives in a shadow tree, so that neither the page nor the widget changes the look of the other. Text of answers is text:
// elements are made one by one, and markup in it is never read.

(() => {
  const script = document.currentScript;
  const base = new URL('.', script.src);
  const { token, pipeline, collection, title = 'Ask a question', greeting = '', side = 'right', theme } = script.dataset;

  // Lengths in `rem` would be those of the page.
  const STYLE = `
    :host { all: initial; color-scheme: ${theme === 'light' || theme === 'dark' ? theme : 'light dark'}; }
    * { box-sizing: border-box; }
    [hidden] { display: none !important; }
    .root { --panel: light-dark(#fff, #1b1f23); --soft: light-dark(#eef0f2, #252a2f); --line: light-dark(#d5d9dd, #363c42); --text: light-dark(#1b1f23, #e4e7ea);
      --dim: light-dark(#5a636b, #9aa4ad); --strong: light-dark(#0b5cad, #6cb2f2); --on: light-dark(#fff, #0d1a26); --bad: light-dark(#b3261e, #ff8f86);
      font: 15px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--text); }
    button, textarea { font: inherit; color: inherit; }
    button { cursor: pointer; min-height: 44px; min-width: 44px; border: 1px solid var(--line); border-radius: 6px; background: var(--panel); padding: 0 13px; }
    button.strong { background: var(--strong); border-color: var(--strong); color: var(--on); font-weight: 600; }
    :focus-visible { outline: 2px solid var(--strong); outline-offset: 2px; }
    .open { position: fixed; z-index: 2147483000; bottom: 16px; ${side === 'left' ? 'left' : 'right'}: 16px; border-radius: 24px; box-shadow: 0 2px 10px rgb(0 0 0 / .25); }
    .panel { position: fixed; z-index: 2147483001; bottom: 16px; ${side === 'left' ? 'left' : 'right'}: 16px; width: min(416px, calc(100vw - 32px)); height: min(576px, calc(100dvh - 32px));
      display: grid; grid-template-rows: auto minmax(0, 1fr) auto; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; box-shadow: 0 6px 24px rgb(0 0 0 / .3); overflow: hidden; }
    header { display: flex; align-items: center; gap: 6px; padding: 6px 6px 6px 14px; border-bottom: 1px solid var(--line); }
    h2 { flex: 1; margin: 0; font-size: 16px; overflow-wrap: anywhere; }
    .talk { overflow: auto; padding: 13px 14px; display: grid; gap: 13px; align-content: start; grid-template-columns: minmax(0, 1fr); }
    .talk p, .talk ul, .talk ol { margin: 0; overflow-wrap: anywhere; }
    .talk ul, .talk ol { padding-left: 21px; }
    .asked { background: var(--soft); border-radius: 8px; padding: 8px 11px; white-space: pre-wrap; }
    .answer { display: grid; gap: 8px; grid-template-columns: minmax(0, 1fr); }
    .answer pre { overflow: auto; background: var(--soft); padding: 8px; margin: 0; white-space: pre-wrap; }
    .answer table { border-collapse: collapse; } .answer th, .answer td { border: 1px solid var(--line); padding: 3px 6px; text-align: start; }
    .answer h4, .answer h5, .answer h6 { margin: 0; font-size: 16px; }
    a { color: var(--strong); } .cite { font-weight: 600; text-decoration: none; padding: 0 2px; }
    .sources { font-size: 14px; color: var(--dim); padding-left: 21px; display: grid; gap: 3px; }
    .hint { color: var(--dim); font-size: 14px; } .problem { color: var(--bad); }
    form { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 8px; padding: 10px 14px; border-top: 1px solid var(--line); align-items: end; }
    textarea { width: 100%; min-height: 44px; max-height: 128px; resize: none; padding: 9px 10px; border: 1px solid var(--line); border-radius: 6px; background: var(--panel); }
    .unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
    @media (max-width: 480px) { .panel { inset: 0; width: auto; height: auto; border: 0; border-radius: 0; } }
  `;

  const h = (tag, props = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
      if (name === 'on') for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
    return element;
  };

  /** The server's own modules, which show Markdown without reading markup. */
  const modules = Promise.all(['markdown', 'dom'].map(name => import(new URL(`page/${name}.js`, base))));

  const host = document.createElement('turnflow-widget');
  const shadow = host.attachShadow({ mode: 'open' });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  shadow.adoptedStyleSheets = [sheet];

  const talk = h('div', { class: 'talk', role: 'log', tabindex: '0', 'aria-label': 'Conversation' });
  const field = h('textarea', { id: 'question', rows: '1', dir: 'auto', placeholder: 'Ask a question' });
  const [send, stop] = [h('button', { type: 'submit', class: 'strong' }, 'Ask'), h('button', { type: 'button', hidden: true }, 'Stop')];
  const form = h('form', { autocomplete: 'off' }, h('label', { class: 'unseen', for: 'question' }, 'Question'), field, h('div', {}, send, stop));
  const fresh = h('button', { type: 'button' }, 'New');
  const close = h('button', { type: 'button', 'aria-label': 'Close' }, '✕');
  const panel = h('section', { class: 'panel', role: 'dialog', 'aria-label': title, hidden: true }, h('header', {}, h('h2', {}, title), fresh, close), talk, form);
  const open = h('button', { type: 'button', class: 'open strong', 'aria-haspopup': 'dialog', 'aria-expanded': 'false' }, title);
  shadow.append(h('div', { class: 'root' }, open, panel));

  let messages = [];
  let running = null;
  const identifier = () => `widget-${Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, '0')).join('')}`;
  let conversation = identifier();

  function show(isShown) {
    [panel.hidden, open.hidden] = [!isShown, isShown];
    open.setAttribute('aria-expanded', String(isShown));
    (isShown ? field : open).focus();
  }

  function restart() {
    running?.abort();
    running = null;
    [send.hidden, stop.hidden] = [false, true];
    [messages, conversation] = [[], identifier()];
    talk.replaceChildren(...greeting ? [h('p', { dir: 'auto' }, greeting)] : []);
  }

  /** The data of server-sent events. */
  async function* events(body) {
    const [reader, decoder] = [body.getReader(), new TextDecoder()];
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
      const lines = rest.split('\n');
      rest = lines.pop();
      for (const line of lines) if (line.startsWith('data: ') && line !== 'data: [DONE]') yield JSON.parse(line.slice(6));
      if (done) return;
    }
  }

  async function ask(said, signal, update) {
    // A page whose users have signed in gives the token of the user.
    const given = await (typeof window.turnflow?.token === 'function' ? window.turnflow.token() : token);
    const headers = { 'Content-Type': 'application/json', ...(given && { Authorization: `Bearer ${given}` }) };
    const body = { stream: true, messages: said, metadata: { conversation_id: conversation }, ...(pipeline && { model: pipeline }), ...(collection && { collection }) };
    const response = await fetch(new URL('v1/chat/completions', base), { method: 'POST', headers, body: JSON.stringify(body), signal, credentials: 'omit' });
    if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? `The server responded with status ${response.status}.`);
    const told = { answer: '', annotations: [] };
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta ?? {};
      told.answer += delta.content ?? '';
      told.annotations.push(...(delta.annotations ?? []).map(of => of.url_citation).filter(Boolean));
      update(told);
    }
    return told;
  }

  /** Draws an answer with links to what it cites. */
  async function draw(place, { answer, annotations }) {
    const [{ markdown, link }] = await modules;
    const letters = Array.from(answer);
    const at = annotations.map(of => ({ ...of, raw: letters.slice(of.start_index, of.end_index).join('') }));
    const cite = raw => {
      const cited = at.filter(of => of.raw === raw && raw);
      if (!cited.length) return null;
      const numbers = raw.match(/\d+/g) ?? [];
      const first = at.find(of => of.raw === raw).start_index;
      const links = cited.filter(of => of.start_index === first).map((of, which) => {
        const made = link(of.url, cited.length > 1 ? numbers[which] ?? '·' : raw);
        made.className = 'cite';
        made.title = of.title ?? '';
        return made;
      });
      const listed = links.flatMap((made, which) => which ? [', ', made] : [made]);
      return h('span', {}, ...links.length > 1 ? ['[', ...listed, ']'] : listed);
    };
    const sources = [...new Map(annotations.map(of => [of.url, of])).values()];
    place.replaceChildren(...markdown(answer, cite),
      ...sources.length ? [h('ul', { class: 'sources', 'aria-label': 'Sources' }, sources.map(of => h('li', {}, link(of.url, of.title || of.url))))] : []);
  }

  async function tell(text) {
    const said = messages;
    said.push({ role: 'user', content: text });
    const place = h('div', { class: 'answer', dir: 'auto' }, h('p', { class: 'hint' }, 'Answering'));
    const asked = h('p', { class: 'asked', dir: 'auto' });
    modules.then(([, { clean }]) => asked.append(clean(text)), () => {});
    talk.append(asked, place);
    talk.scrollTop = talk.scrollHeight;
    const mine = running = new AbortController();
    [send.hidden, stop.hidden] = [true, false];
    let last = { answer: '', annotations: [] };
    let drawing = null;
    try {
      const told = await ask(said, mine.signal, now => {
        last = now;
        drawing ??= draw(place, now).finally(() => { drawing = null; talk.scrollTop = talk.scrollHeight; });
      });
      await drawing;
      await draw(place, told);
      said.push({ role: 'assistant', content: told.answer });
    } catch (error) {
      await drawing?.catch(() => {});
      const words = mine.signal.aborted ? 'Stopped.' : error instanceof TypeError ? 'The server cannot be reached from this page.' : error.message;
      // The question is not answered: it does not belong to the conversation.
      if (last.answer && mine.signal.aborted) said.push({ role: 'assistant', content: last.answer });
      else said.pop();
      if (!last.answer) place.replaceChildren();
      place.append(h('p', { class: mine.signal.aborted ? 'hint' : 'problem', role: 'alert' }, words));
    }
    if (running === mine) {
      running = null;
      [send.hidden, stop.hidden] = [false, true];
    }
    talk.scrollTop = talk.scrollHeight;
  }

  const submit = () => {
    const text = field.value.trim();
    if (!text || running) return;
    field.value = '';
    tell(text);
  };
  form.addEventListener('submit', event => { event.preventDefault(); submit(); });
  field.addEventListener('keydown', event => { if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); } });
  stop.addEventListener('click', () => running?.abort());
  fresh.addEventListener('click', () => { restart(); field.focus(); });
  close.addEventListener('click', () => show(false));
  open.addEventListener('click', () => show(true));
  panel.addEventListener('keydown', event => { if (event.key === 'Escape') { event.stopPropagation(); show(false); } });
  restart();
  const put = () => document.body.append(host);
  if (document.body) put();
  else document.addEventListener('DOMContentLoaded', put);
})();
