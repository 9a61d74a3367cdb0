// The documents of a corpus that are put over HTTP.

import { get, put, remove } from './api.js';
import { announce, button, clean, h, name, several } from './dom.js';

const PAGE = 50;
/** The files that the server has readers for. */
const READABLE = '.md,.txt,.html,.htm,.pdf,.docx,.docm,.pptx,.pptm,.xlsx,.xlsm,.csv,.tsv,.epub,.eml';

/** The list of a corpus's documents, which is read when it is opened. */
export function documents(pipeline, corpus) {
  // `epoch`: the last with a change that was made here.
  const of = { pipeline, corpus, place: h('div', { class: 'documents' }), epoch: 0 };
  const details = h('details', { data: { documents: corpus } }, h('summary', {}, 'Documents'), of.place);
  details.addEventListener('toggle', () => { if (details.open && !of.place.hasChildNodes()) list(of); });
  const stale = epoch => {
    if (epoch <= of.epoch) return;
    if (details.open) of.place.querySelector('.stale')?.removeAttribute('hidden');
    else of.place.replaceChildren();
  };
  return { details, stale };
}

const query = fields => new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== null)).toString();

/** `failed`: what has failed before, to be shown. */
async function list(of, failed = '') {
  const { pipeline, corpus, place } = of;
  const rows = h('ul', { class: 'cards', 'aria-label': `Documents of ${corpus}` });
  const more = button('More', () => next(), { class: 'quiet', hidden: true });
  const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
  const again = h('p', { class: 'hint stale', hidden: true }, 'The corpus has changed. ', button('Read the list again', () => list(of), { class: 'quiet' }));
  const drop = id => deleted(of, id, problem);
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
  const input = h('input', { type: 'file', multiple: true, accept: READABLE, 'aria-label': `Add files to ${corpus}` });
  input.addEventListener('change', async () => {
    const [files, failed] = [[...input.files], []];
    input.disabled = true;
    for (const [at, file] of files.entries()) {
      told.textContent = `${clean(file.name)}: ${at + 1} of ${several(files.length, 'file')}`;
      try {
        const { epoch } = await put(`/v1/documents/${encodeURIComponent(file.name)}?${query({ pipeline, corpus, wait: 'true' })}`, file);
        of.epoch = epoch ?? of.epoch;
      } catch (error) {
        failed.push(`${clean(file.name)}: ${clean(error.message)}`);
        // Without a server or a right to write, the next file would fare no better.
        if ([0, 401, 403].includes(error.status)) break;
      }
    }
    if (!failed.length) announce(`${several(files.length, 'file')} added to ${corpus}.`);
    await list(of, failed.join('\n'));
  });
  return h('div', {}, h('label', { class: 'hint' }, 'Add files: ', input), told);
}

async function deleted(of, id, problem) {
  const { pipeline, corpus } = of;
  if (!confirm(`Delete the document ${clean(id)}?`)) return;
  try {
    const { epoch } = await remove(`/v1/documents/${encodeURIComponent(id)}?${query({ pipeline, corpus, wait: 'true' })}`);
    of.epoch = epoch ?? of.epoch;
    announce(`${id} deleted.`);
    await list(of);
  } catch (error) {
    [problem.textContent, problem.hidden] = [clean(error.message), false];
  }
}

function row({ id, title, text, modified_ms }, drop) {
  const about = [title, several(text.length, 'character'), new Date(modified_ms).toLocaleString('en-GB')];
  return h('li', { class: 'card' }, h('details', {},
    h('summary', {}, h('h4', {}, name(id)), ' ', h('span', { class: 'hint' }, clean(about.filter(Boolean).join(' · ')))),
    h('p', { class: 'answer-text', dir: 'auto' }, clean(text)),
    button('Delete', () => drop(id), { class: 'quiet', 'aria-label': `Delete ${clean(id)}` })));
}
