// An answer as a test of the pipeline: text for a file of tests, which its reader completes.

import { citations } from './text.js';

/** A text as a string of RON. */
export function ron(text) {
  const escapes = { '\\': '\\\\', '"': '\\"', '\n': '\\n', '\r': '\\r', '\t': '\\t' };
  // eslint-disable-next-line no-control-regex
  const escaped = text.toWellFormed().replace(/[\\"\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g,
    c => escapes[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
  return `"${escaped}"`;
}

/** A line of a comment. */
const comment = text => text.toWellFormed().replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]+/g, ' ');

/** The first characters of a text, none of them cut. */
const first = (text, most) => [...text].slice(0, most).join('');

/** Letters and digits of a phrase that says something. */
const SAYS = 8;

/** What an answer is held to: a sentence that it cites for, without marks of citations and lists. '' if it says nothing. */
function core(answer, passages) {
  const parts = citations(answer, passages);
  const sentences = part => (part.text ?? '').split(/(?<=[.!?。！？])\s|(?<=[。！？])|\n/)
    .map(text => text.replace(/^[\s>#]*(?:[-*+•]\s+|\d+[.)]\s+)?/, '').trim());
  const cited = parts.flatMap((part, at) => (parts[at + 1]?.cites ? sentences(part).filter(Boolean).slice(-1) : []));
  const all = [...cited, ...parts.flatMap(sentences)];
  const length = text => text.match(/[\p{L}\p{N}]/gu)?.length ?? 0;
  const longest = all.reduce((best, text) => (length(text) > length(best) ? text : best), '');
  return first(all.find(text => length(text) >= SAYS) ?? longest, 200);
}

/** `turn`: its text, answer, history, collection, record and whether it was helpful. Returns the test. */
export function asTest({ text, answer, history, collection, record, helpful }) {
  const said = history.map(({ speaker, text: words }) => `${speaker === 'user' ? 'User' : 'Agent'}(${ron(words)})`);
  const number = 1 + history.filter(({ speaker }) => speaker === 'user').length;
  const cited = new Set((record?.citations ?? []).map(citation => citation.passage));
  const documents = [...new Set((record?.hits ?? []).filter(hit => cited.has(hit.passage)).map(hit => hit.document))];
  const words = core(answer, record?.hits?.length ?? 0);
  const expected = helpful
    ? [`turn: ${number}`, record?.status === 'idk' ? 'status: Idk' : 'status: Answered', words && `answer: ${ron(words)}`,
      documents.length && `hits: [${documents.map(ron).join(', ')}]`]
    : [`turn: ${number}`, 'status: Answered', 'answer: "WRITE HERE WHAT IT MUST SAY"'];
  return [
    '    Test(',
    `        name: ${ron(first(text, 80))},`,
    ...(helpful ? [] : [`        // It said: ${comment(first(answer, 300))}`]),
    ...(collection ? [`        collection: Some(${ron(collection)}),`] : []),
    `        turns: [${[...said, `User(${ron(text)})`].join(', ')}],`,
    `        expect: [Expect(${expected.filter(Boolean).join(', ')})],`,
    '    ),',
    '',
  ].join('\n');
}
