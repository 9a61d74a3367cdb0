// Sharing a turn: a link that shows it, as it was, to whoever has the link.

import { post, remove } from './api.js';
import { announce, button, clean, h } from './dom.js';

/** The row below a turn with its link, if it is shared. */
function row(turn, place, problem = '') {
  const { shared } = turn;
  if (!shared) return place.replaceChildren(problem ? h('p', { class: 'problem' }, clean(problem)) : '');
  const field = h('input', { type: 'text', readonly: true, 'aria-label': `Link to turn ${turn.number}`, dir: 'ltr' });
  field.value = shared.url;
  field.addEventListener('focus', () => field.select());
  const copy = button('Copy link', async () => {
    try {
      await navigator.clipboard.writeText(shared.url);
      copy.textContent = 'Copied';
    } catch {
      field.focus();
      copy.textContent = 'Copy it from the field';
    }
    announce(copy.textContent);
  }, { class: 'quiet' });
  const until = shared.until ? ` It works until ${new Date(shared.until * 1000).toLocaleDateString('en-GB', { dateStyle: 'medium' })}.` : '';
  place.replaceChildren(
    h('div', { class: 'link' }, field, copy, button('Withdraw', () => withdraw(turn, place), { class: 'quiet', 'aria-label': `Withdraw the link to turn ${turn.number}` })),
    h('p', { class: 'hint' }, `Whoever has this link sees this question, its answer and its passages, and can open the documents that the answer cites.${until}`),
    problem && h('p', { class: 'problem' }, clean(problem)));
  return undefined;
}

/** Shares a turn, or shows its link again. */
async function share(turn, place) {
  if (!turn.shared) {
    try {
      turn.shared = await post('/v1/shares', { pipeline: turn.pipeline.name, question: turn.text, record: turn.record });
      announce('The link is made.');
      turn.dispatchEvent(new Event('said'));
    } catch (error) {
      return row(turn, place, `The turn cannot be shared: ${error.message}`);
    }
  }
  row(turn, place);
  place.querySelector('input').focus();
  return undefined;
}

async function withdraw(turn, place) {
  try {
    await remove(`/v1/shares/${turn.shared.id}`);
  } catch (error) {
    // It is gone already.
    if (error.status !== 404) return row(turn, place, error.message);
  }
  turn.shared = null;
  turn.dispatchEvent(new Event('said'));
  announce('The link is withdrawn.');
  row(turn, place);
  place.closest('.turn')?.querySelector('.share')?.focus();
  return undefined;
}

/** Withdraws these links. Returns how many of them still work. */
export async function withdrawAll(ids) {
  const done = await Promise.allSettled(ids.map(id => remove(`/v1/shares/${id}`)));
  return done.filter(({ reason }) => reason && reason.status !== 404).length;
}

/** A button that shares a turn, and the place for its link. */
export function sharing(turn) {
  const place = h('div', { class: 'shared' });
  const made = button('Share', () => share(turn, place), { class: 'quiet share', 'aria-label': `Share turn ${turn.number}` });
  return { made, place };
}
