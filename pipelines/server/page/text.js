// Text comparison: the changes of a rewrite, the citations of an answer, and the cited part of a passage.

import { clean, h } from './dom.js';

const COMMON = new Set(('a an and are as at be been but by can did do does for from had has have he her his how i if in into is it its ' +
  'no not of on or our she so than that the their them then there these they this to was we were what when where which who ' +
  'why will with would you your').split(' '));

const segmenter = granularity => globalThis.Intl?.Segmenter && new Intl.Segmenter('en', { granularity });
const words = segmenter('word');
const sentences = segmenter('sentence');

/** The words of a text and what is between them: { text, isWord }. */
export function tokens(text) {
  if (words) return Array.from(words.segment(text), part => ({ text: part.segment, isWord: Boolean(part.isWordLike) }));
  return (text.match(/[\p{L}\p{N}]+|[^\p{L}\p{N}]+/gu) ?? []).map(part => ({ text: part, isWord: /^[\p{L}\p{N}]/u.test(part) }));
}

/** The sentences of a text; joined they are the text. Lines of lists are sentences. */
export function split(text) {
  return text.split(/(?<=\n)/).flatMap(line => (sentences ? Array.from(sentences.segment(line), part => part.segment)
    : line.split(/(?<=[.!?]\s)/)));
}

const stem = word => {
  const lower = word.toLowerCase();
  return lower.length > 4 ? lower.replace(/(?:ings?|ed|es|s)$/, '') : lower;
};

/** The words of a text that carry its meaning. */
export function terms(text) {
  const found = tokens(text).filter(token => token.isWord && !COMMON.has(token.text.toLowerCase()));
  return new Set(found.map(token => stem(token.text)));
}

/** What two texts share, in order: { text, kind: same | added | removed }. */
export function differences(from, to) {
  const [a, b] = [tokens(from), tokens(to)];
  if (a.length * b.length > 250000) return [{ text: to, kind: 'same' }];
  const same = (i, j) => a[i].text.toLowerCase() === b[j].text.toLowerCase();
  const best = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = same(i, j) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const parts = [];
  const add = (text, kind) => {
    if (parts.at(-1)?.kind === kind) parts.at(-1).text += text;
    else parts.push({ text, kind });
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && same(i, j)) { add(b[j].text, 'same'); i++; j++; }
    else if (i < a.length && (j === b.length || best[i + 1][j] >= best[i][j + 1])) add(a[i++].text, 'removed');
    else add(b[j++].text, 'added');
  }
  return parts;
}

/** A text with its differences from another one marked. */
export function marked(from, to) {
  const tags = { added: 'ins', removed: 'del' };
  const parts = differences(from, to).map(({ text, kind }) => (tags[kind] && text.trim() ? h(tags[kind], {}, clean(text))
    : kind === 'removed' ? null : clean(text)));
  return h('p', { class: 'query', dir: 'auto' }, parts);
}

const CITATION = /\[(\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*)\]/g;

/** The passages that a citation such as `1, 3-5` names. */
function numbers(list) {
  const found = [];
  for (const part of list.split(/[,;]/)) {
    const [from, to = from] = part.split(/[–-]/).map(Number);
    for (let n = from; n <= Math.min(to, from + 50); n++) found.push(n);
  }
  return found;
}

/** The parts of an answer: { text } or { cites, raw, sentence }, where `sentence` is what is cited for. */
export function citations(answer, most) {
  const parts = [];
  let [end, since] = [0, 0];
  for (const match of answer.matchAll(CITATION)) {
    const cites = numbers(match[1]);
    if (!cites.length || cites.some(n => n < 1 || n > most)) continue;
    if (match.index > end) {
      parts.push({ text: answer.slice(end, match.index) });
      since = end;
    }
    // Of several citations in a row, each is for the sentence before the first.
    const before = split(answer.slice(since, match.index).trim());
    const after = split(answer.slice(match.index + match[0].length))[0] ?? '';
    const sentence = terms(before.at(-1) ?? '').size ? before.at(-1) : after;
    parts.push({ cites, raw: match[0], sentence });
    end = match.index + match[0].length;
  }
  if (end < answer.length) parts.push({ text: answer.slice(end) });
  return parts;
}

/** Makes the citations of a Markdown text, one after the other: `made(part)` shows one of [`citations`]. */
export function citing(answer, most, made) {
  const waiting = citations(answer, most).filter(part => part.cites);
  return raw => {
    // Those in code and in labels of links are passed over.
    const at = waiting.findIndex(part => part.raw === raw);
    return at < 0 ? null : made(waiting.splice(0, at + 1).at(-1));
  };
}

/** A passage's text with the sentence marked that says most of what is wanted, and the words in it. */
export function evidence(passage, wanted) {
  const looked = terms(wanted);
  const parts = split(passage);
  const shared = parts.map(part => [...terms(part)].filter(term => looked.has(term)).length);
  const most = Math.max(0, ...shared);
  if (!looked.size || most < Math.min(2, looked.size)) return [clean(passage)];
  return parts.map((part, at) => {
    if (shared[at] !== most) return clean(part);
    const words = tokens(part).map(token => (token.isWord && looked.has(stem(token.text)) ? h('b', {}, clean(token.text)) : clean(token.text)));
    return h('mark', {}, words);
  });
}
