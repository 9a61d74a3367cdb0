// Elements, numbers and hostile text. Nothing here reads markup: text becomes text nodes only.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (name === 'data') Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; strings among the children become text nodes. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const byId = id => document.getElementById(id);

/** A button that does something. */
export function button(text, click, props) {
  return h('button', { type: 'button', ...props, on: { click } }, text);
}

/** Text with its control characters made visible, and without the power to turn its surroundings around. */
export function clean(text) {
  return String(text ?? '')
    .replace(/\r\n?/g, '\n')
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f]/g, '\ufffd')
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, c => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

/** A foreign name within a line. */
export const name = (text, props) => h('bdi', props, clean(text));

/** A document's id, as a link if it is the address of a page. */
export function documentName(id) {
  let url = null;
  try {
    url = /^https?:\/\//i.test(id) ? new URL(id) : null;
  } catch { /* Not an address. */ }
  if (!url || !['http:', 'https:'].includes(url.protocol)) return name(id);
  return h('a', { href: url.href, rel: 'noopener noreferrer', target: '_blank' }, name(id));
}

/** A number with separators. */
export const count = value => Number(value ?? 0).toLocaleString('en');

/** "1 passage", "2 passages". */
export const several = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** Milliseconds for people. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–';
  if (ms < 0.01) return '<0.01 ms';
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

/** A score with about four digits. */
export function score(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(4);
}

/** Calls a second. */
export const perSecond = rate => (rate === 0 ? '0/s' : rate < 10 ? `${rate.toFixed(1)}/s` : `${Math.round(rate)}/s`);

/** A time of day. */
export const clock = seconds => new Date(seconds * 1000).toLocaleTimeString('en-GB');

/** Tells those who listen to the page. */
export function announce(text) {
  byId('said').textContent = clean(text);
}

export const isCalm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

/** Scrolls to an element and lets the keyboard go on from there. */
export function reveal(element) {
  element.scrollIntoView({ block: 'center', behavior: isCalm() ? 'auto' : 'smooth' });
  element.setAttribute('tabindex', '-1');
  element.focus({ preventScroll: true });
}

/** Calls a function at most once per frame; the last arguments count. */
export function perFrame(call) {
  let last = null;
  return (...args) => {
    if (last === null) requestAnimationFrame(() => { const now = last; last = null; call(...now); });
    last = args;
  };
}

/** A list of facts. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return h('dl', { class: 'facts' }, shown.flatMap(([term, value]) => [h('dt', {}, term), h('dd', {}, value)]));
}
