// The passages of an answer, those that it cites with the evidence marked.

import { clean, documentName, h, name, score } from './dom.js';
import { fields } from './hits.js';
import { link } from './markdown.js';
import { citations, evidence } from './text.js';

/** The citations among the parts of an answer, with what each is for. */
export const citedFor = (answer, most) => citations(clean(answer), most).filter(part => part.cites);

/**
 * A list of passages { id, document, title, text, metadata, score }; a passage without a text cannot be shown any more.
 * `heading`: the level of their titles. `urls`: number → address of its document. `looked`: the numbers of the passages to look at, which are cited for `sentence`.
 */
export function cards(answer, passages, urls, looked = [], sentence = '', heading = 'h4') {
  const parts = citedFor(answer, passages.length);
  const cites = n => parts.filter(part => part.cites.includes(n)).map(part => part.sentence);
  const row = ({ id, document, title, text, metadata, score: value }, at) => {
    const isCited = cites(at + 1).length > 0;
    const isLooked = looked.includes(at + 1);
    const wanted = isLooked ? sentence : cites(at + 1).join(' ');
    const said = text === null ? [h('p', { class: 'note' }, 'This passage cannot be shown any more: its document is gone, or closed to the person who shared it.')]
      : [h('p', { class: 'text', dir: 'auto' }, evidence(text, wanted))];
    const hint = [isCited && 'cited', value !== undefined && `score ${score(value)}`].filter(Boolean).join(', ');
    return h('li', { class: `card ${isLooked ? 'looked' : ''} ${isCited ? 'cited' : ''}`, data: { number: at + 1 } },
      h('details', { open: isCited || isLooked },
        h('summary', {}, h(heading, {}, `[${at + 1}] `, name(title || id)), ' ', h('span', { class: 'hint' }, hint),
          h('span', { class: 'gist', dir: 'auto' }, clean((text ?? '').slice(0, 400)))),
        said, h('p', { class: 'from' }, 'Passage ', name(id), ', document ', documentName(document),
          urls.has(at + 1) && [' · ', link(urls.get(at + 1), 'Open the document')]), fields(metadata)));
  };
  return h('ol', { class: 'cards' }, passages.map(row));
}
