// Markdown as elements. Nothing here reads markup: elements are made one by one, and all else becomes text. HTML in a text is
// shown as it is written, and an image becomes a link, so that showing an answer loads nothing from anywhere.

import { clean, h } from './dom.js';

/** A longer paragraph is shown as it is written: looking for pairs of marks in it would take too long. */
const LONGEST = 20_000;
/** Lists, quotes and emphasis within each other. */
const DEEPEST = 6;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+•]|\d{1,9}[.)])[ \t]+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** The cells of a row of a table. */
function cells(line) {
  const inner = line.trim().replace(/^\|/, '').replace(/\|$/, '');
  return inner.split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll('\\|', '|'));
}

const isTable = (lines, at) => lines[at].includes('|') && at + 1 < lines.length && lines[at + 1].includes('-')
  && DIVIDER.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;

const begins = (lines, at) => FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) || ITEM.test(lines[at])
  || QUOTE.test(lines[at]) || isTable(lines, at);

/** A text as a list of elements; `cite(raw)` makes what a citation such as `[1]` is shown as, or gives nothing. */
export function markdown(text, cite = () => null) {
  return blocks(clean(text).split('\n'), cite, 0);
}

function blocks(lines, cite, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) at++;
    else if (fence) {
      const end = new RegExp(`^ {0,3}${fence[1][0] === '`' ? '`' : '~'}{${fence[1].length},}\\s*$`);
      const code = [];
      for (at++; at < lines.length && !end.test(lines[at]); at++) code.push(lines[at]);
      at++;
      found.push(h('pre', { tabindex: '0', dir: 'ltr' }, h('code', {}, code.join('\n'))));
    } else if (heading) {
      // Below the headings of the page.
      found.push(h(`h${Math.min(6, heading[1].length + 3)}`, {}, inline(heading[2], cite)));
      at++;
    } else if (RULE.test(line)) {
      found.push(h('hr', {}));
      at++;
    } else if (isTable(lines, at)) {
      const [head, rows] = [cells(lines[at]), []];
      for (at += 2; at < lines.length && lines[at].includes('|') && lines[at].trim(); at++) rows.push(cells(lines[at]));
      const row = (of, tag) => h('tr', {}, head.map((_, column) => h(tag, tag === 'th' ? { scope: 'col' } : {}, inline(of[column] ?? '', cite))));
      found.push(h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Table, scrolls sideways' },
        h('table', { class: 'said-table' }, h('thead', {}, row(head, 'th')), h('tbody', {}, rows.map(of => row(of, 'td'))))));
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const inner = [];
      for (; at < lines.length && QUOTE.test(lines[at]); at++) inner.push(QUOTE.exec(lines[at])[1]);
      found.push(h('blockquote', {}, blocks(inner, cite, depth + 1)));
    } else if (ITEM.test(line) && depth < DEEPEST) {
      const [list, next] = items(lines, at, cite, depth);
      found.push(list);
      at = next;
    } else {
      const said = [line];
      for (at++; at < lines.length && lines[at].trim() && !begins(lines, at); at++) said.push(lines[at]);
      found.push(h('p', { dir: 'auto' }, inline(said.map(of => of.trim()).join('\n'), cite)));
    }
  }
  return found;
}

/** A list that begins at a line, and the line after it. */
function items(lines, from, cite, depth) {
  const first = ITEM.exec(lines[from]);
  const [margin, ordered] = [first[1].length, /\d/.test(first[2])];
  const all = [];
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > margin + 1 || item[1].length < margin || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    for (at++; at < lines.length; at++) {
      const indent = /^ */.exec(lines[at])[0].length;
      if (!lines[at].trim()) {
        // A blank line ends the list, unless it goes on behind it.
        const after = lines[at + 1] ?? '';
        if (!after.trim() || /^ */.exec(after)[0].length < margin + 2) break;
        inner.push('');
      } else if (indent > margin + 1) inner.push(lines[at].slice(Math.min(indent, margin + 2)));
      else if (ITEM.test(lines[at]) || begins(lines, at)) break;
      else inner.push(lines[at]);
    }
    all.push(inner);
    // Items with blank lines between them are one list.
    if (at + 1 < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1]) && ITEM.exec(lines[at + 1])[1].length === margin) at++;
  }
  const shown = all.map(inner => {
    const parts = blocks(inner, cite, depth + 1);
    // A single paragraph is the item itself.
    return h('li', { dir: 'auto' }, parts.length && parts[0].tagName === 'P' ? [...parts[0].childNodes, ...parts.slice(1)] : parts);
  });
  const number = Number.parseInt(first[2], 10);
  return [h(ordered ? 'ol' : 'ul', ordered && number !== 1 ? { start: number } : {}, shown), at];
}

const TICK = '`';
const INLINE = new RegExp([
  String.raw`(?<escape>\\[!-/:-@[-${TICK}{-~])`,
  String.raw`(?<ticks>${TICK}+)(?<code>[^${TICK}]|[^${TICK}][\s\S]*?[^${TICK}])\k<ticks>(?!${TICK})`,
  String.raw`(?<cited>[[【]\^?\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*[\]】](?!\())`,
  String.raw`(?<image>!?)\[(?<label>[^\][\n]{0,500})\]\((?<href><[^>\n]{0,2000}>|[^\s()<>]{0,2000}(?:\([^\s()]{0,200}\))?[^\s()<>]{0,200})(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\)`,
  String.raw`<(?<auto>https?://[^\s<>]{1,2000})>`,
  String.raw`(?<bare>https?://[^\s<>()[\]"'${TICK}]{1,2000})`,
  String.raw`(?<strong>\*\*|__)(?=\S)(?<bold>[\s\S]*?\S)\k<strong>`,
  String.raw`~~(?=\S)(?<gone>[\s\S]*?\S)~~`,
  String.raw`(?<!\w)(?<em>[*_])(?=[^\s*_])(?<slanted>[^\n]*?[^\s*_])\k<em>(?!\w)`,
].join('|'), 'gu');

/** How the address of a page begins. */
const WHOLE = /^<?(?:https?:\/\/|mailto:)/i;

/** The text of what is no link. */
const plain = (_, label) => h('span', {}, label);

/** A link to a page; its text if it leads elsewhere. */
export function link(href, label) {
  let url = null;
  try {
    url = new URL(href, document.baseURI);
  } catch { /* Not an address. */ }
  if (!url || !['http:', 'https:', 'mailto:'].includes(url.protocol)) return h('span', {}, label);
  return h('a', { href: url.href, rel: 'noopener noreferrer', target: '_blank' }, label);
}

function inline(text, cite, depth = 0) {
  if (text.length > LONGEST || depth > DEEPEST) return [text];
  const found = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const { escape, code, cited, image, label, href, auto, bare, bold, gone, slanted } = match.groups;
    let made = null;
    if (escape) made = escape[1];
    else if (code !== undefined) made = h('code', {}, code.trim() ? code.replace(/\n/g, ' ') : code);
    else if (cited) made = cite(cited);
    // A path would lead to the site that shows the answer.
    else if (href !== undefined) made = (WHOLE.test(href) ? link : plain)(href.replace(/^<|>$/g, ''), label ? inline(label, () => null, depth + 1) : image ? 'image' : href);
    else if (auto) made = link(auto, auto);
    else if (bare) {
      const tail = /[.,;:!?*_~]+$/.exec(bare)?.[0] ?? '';
      made = [link(bare.slice(0, bare.length - tail.length), bare.slice(0, bare.length - tail.length)), tail];
    } else if (bold !== undefined) made = h('strong', {}, inline(bold, cite, depth + 1));
    else if (gone !== undefined) made = h('s', {}, inline(gone, cite, depth + 1));
    else if (slanted !== undefined) made = h('em', {}, inline(slanted, cite, depth + 1));
    if (made === null) continue;
    if (match.index > end) found.push(text.slice(end, match.index));
    found.push(...[made].flat());
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(text.slice(end));
  return found;
}
