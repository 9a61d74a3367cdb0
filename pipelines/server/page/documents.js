// The documents of a corpus that are put over HTTP.

import { get } from './api.js';
import { button, clean, h, name, several } from './dom.js';

const PAGE = 50;

/** The list of a corpus's documents, which is read when it is opened. */
export function documents(pipeline, corpus) {
  const place = h('div', { class: 'documents' });
  const details = h('details', { data: { documents: corpus } }, h('summary', {}, 'Documents'), place);
  const draw = () => list(pipeline, corpus, place);
  details.addEventListener('toggle', () => { if (details.open && !place.hasChildNodes()) draw(); });
  return { details, stale: () => { if (details.open) place.querySelector('.stale')?.removeAttribute('hidden'); else place.replaceChildren(); } };
}

const query = fields => new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== null)).toString();

async function list(pipeline, corpus, place) {
  const rows = h('ul', { class: 'cards', 'aria-label': `Documents of ${corpus}` });
  const more = button('More', () => next(), { class: 'quiet', hidden: true });
  const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
  const again = h('p', { class: 'hint stale', hidden: true }, 'The corpus has changed. ', button('Read the list again', () => list(pipeline, corpus, place), { class: 'quiet' }));
  place.replaceChildren(again, rows, problem, more);
  let after = null;
  const next = async () => {
    more.disabled = true;
    try {
      const page = await get(`/v1/documents?${query({ pipeline, corpus, after, limit: PAGE })}`);
      rows.append(...page.data.map(row));
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
}

function row({ id, title, text, modified_ms }) {
  const about = [title, several(text.length, 'character'), new Date(modified_ms).toLocaleString('en-GB')];
  return h('li', { class: 'card' }, h('details', {},
    h('summary', {}, h('h4', {}, name(id)), ' ', h('span', { class: 'hint' }, clean(about.filter(Boolean).join(' · ')))),
    h('p', { class: 'answer-text', dir: 'auto' }, clean(text))));
}
