// The documents of a corpus that are put over HTTP.

import { get, put, remove } from './api.js';
import { announce, button, clean, h, name, several } from './dom.js';

const PAGE = 50;
/** The files that the server has readers for. */
const READABLE = '.md,.txt,.html,.htm,.pdf,.docx,.docm,.pptx,.pptm,.xlsx,.xlsm,.csv,.tsv,.epub,.eml';

/** The list of a corpus's documents, which is read when it is opened. */
export function documents(pipeline, corpus) {
  // `own`: the last epoch that the list has; `newest`: the last that the page was told.
  const of = { pipeline, corpus, place: h('div', { class: 'documents' }), own: 0, newest: 0 };
  const details = h('details', { data: { documents: corpus } }, h('summary', {}, 'Documents'), of.place);
  details.addEventListener('toggle', () => { if (details.open && !of.place.hasChildNodes()) list(of); });
  const stale = epoch => {
    if (epoch === null) return;
    // A server that begins anew may count from the beginning.
    if (epoch < of.newest) of.own = 0;
    of.newest = epoch;
    // The list is read at the end.
    if (of.isAdding || epoch <= of.own) return;
    if (details.open) of.place.querySelector('.stale')?.removeAttribute('hidden');
    else of.place.replaceChildren();
  };
  return { details, stale };
}

const query = fields => new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== null)).toString();

/** `failed`: what has failed before, to be shown. */
async function list(of, failed = '') {
  const { pipeline, corpus, place } = of;
  of.own = Math.max(of.own, of.newest);
  const rows = h('ul', { class: 'cards', 'aria-label': `Documents of ${corpus}` });
  const more = button('More', () => next(), { class: 'quiet', hidden: true });
  const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
  const again = h('p', { class: 'hint stale', hidden: true }, 'The corpus has changed. ', button('Read the list again', () => list(of), { class: 'quiet' }));
  const drop = (id, card) => deleted(of, id, card, problem);
  place.replaceChildren(adding(of), again, rows, problem, more);
  let after = null;
  const next = async () => {
    more.disabled = true;
    try {
      const page = await get(`/v1/documents?${query({ pipeline, corpus, after, limit: PAGE })}`);
      rows.append(...page.data.map(document => row(document, drop)));
      after = page.next ?? null;
      more.hidden = !page.has_more;
      problem.hidden = true;
      if (!rows.children.length) rows.append(h('li', { class: 'hint' }, 'There are no documents.'));
    } catch (error) {
      problem.textContent = clean(error.message);
      [problem.hidden, more.hidden] = [false, false];
    }
    more.disabled = false;
  };
  await next();
  if (failed) [problem.textContent, problem.hidden] = [failed, false];
}

/** Files that are chosen here become documents. Their names are the ids. */
function adding(of) {
  const { pipeline, corpus } = of;
  const told = h('p', { class: 'hint', 'aria-live': 'polite' });
  const input = h('input', { type: 'file', multiple: true, accept: READABLE, 'aria-label': `Add files to ${corpus}`, title: 'A file replaces the document with its name.' });
  input.addEventListener('change', async () => {
    const [files, failed] = [[...input.files], []];
    input.disabled = of.isAdding = true;
    let isOver = false;
    for (const [at, file] of files.entries()) {
      if (isOver) {
        failed.push(`${clean(file.name)}: not sent`);
        continue;
      }
      told.textContent = `${clean(file.name)}: ${at + 1} of ${several(files.length, 'file')}`;
      try {
        const { epoch } = await put(`/v1/documents/${encodeURIComponent(file.name)}?${query({ pipeline, corpus, wait: 'true' })}`, file);
        of.own = epoch ?? of.own;
      } catch (error) {
        const message = error.status ? error.message : 'The file could not be sent. It may be too large for the server, or it cannot be read.';
        failed.push(`${clean(file.name)}: ${clean(message)}`);
        // Without a right to write, or without a server, the next file would fare no better.
        isOver = [401, 403].includes(error.status) || (!error.status && !await isThere());
      }
    }
    of.isAdding = false;
    announce(failed.length ? failed.join('\n') : `${several(files.length, 'file')} added to ${corpus}.`);
    // Someone may type elsewhere meanwhile.
    const isHere = [null, document.body].includes(document.activeElement) || of.place.contains(document.activeElement);
    await list(of, failed.join('\n'));
    if (isHere) of.place.querySelector('input[type=file]')?.focus();
  });
  return h('div', {}, h('label', { class: 'hint' }, 'Add files: ', input), told);
}

/** Whether the server can be reached. */
const isThere = () => fetch('/healthz', { cache: 'no-store' }).then(() => true, () => false);

async function deleted(of, id, card, problem) {
  if (!confirm(`Delete the document ${clean(id)}?`)) return;
  try {
    await remove(`/v1/documents/${encodeURIComponent(id)}?${query({ pipeline: of.pipeline, corpus: of.corpus, wait: 'true' })}`);
  } catch (error) {
    [problem.textContent, problem.hidden] = [clean(error.message), false];
    return;
  }
  announce(`${id} deleted.`);
  const next = card.nextElementSibling ?? card.previousElementSibling;
  card.remove();
  (next?.querySelector('summary') ?? of.place.querySelector('input[type=file]'))?.focus();
}

function row({ id, title, text, modified_ms }, drop) {
  const about = [title, several(text.length, 'character'), new Date(modified_ms).toLocaleString('en-GB')];
  const card = h('li', { class: 'card' }, h('details', {},
    h('summary', {}, h('h3', {}, name(id)), ' ', h('span', { class: 'hint' }, clean(about.filter(Boolean).join(' · ')))),
    h('p', { class: 'answer-text', dir: 'auto' }, clean(text)),
    button('Delete', () => drop(id, card), { class: 'quiet', 'aria-label': `Delete ${clean(id)}` })));
  return card;
}
