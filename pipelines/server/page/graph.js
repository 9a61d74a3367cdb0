// The plan as a graph with live numbers.

import { button, clean, count, duration, facts, h, name, perSecond, several, svg } from './dom.js';
import { layout, size } from './layout.js';

const seconds = value => (value === null ? '–' : duration(value * 1000));
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Corpora that the same nodes read, as one box. */
function boxes(pipeline) {
  const readers = corpus => pipeline.nodes.filter(node => node.corpora.includes(corpus)).map(node => node.id);
  const found = new Map();
  for (const { name: corpus } of pipeline.corpora) {
    const nodes = readers(corpus);
    const key = JSON.stringify(nodes);
    if (!found.has(key)) found.set(key, { nodes, corpora: [] });
    found.get(key).corpora.push(corpus);
  }
  return [...found.values()];
}

/** Places boxes of a width at wanted left edges, in order and apart from each other, within a width. */
function spread(wanted, wide, width) {
  const step = wide + 20;
  const order = wanted.map((x, at) => [x, at]).sort(([a], [b]) => a - b);
  let least = 8;
  for (const place of order) {
    place[0] = Math.max(place[0], least);
    least = place[0] + step;
  }
  let most = width - 8 - wide;
  for (const place of order.reverse()) {
    place[0] = Math.min(place[0], most);
    most = place[0] - step;
  }
  const places = [];
  for (const [x, at] of order) places[at] = x;
  return places;
}

/** What a sink's box says in two lines. */
const faulty = (sink, words) => (sink?.fault ? [`${count(sink.pending)} pending`, cut(clean(sink.fault), 23)] : ['', words]);

export class Graph {
  #live;
  #panel;
  #chosen = null;
  #drawn = null;
  /** The width that there is; nothing is drawn before it is known. */
  #room = 0;
  #parts = new Map();
  #detail = h('div', { class: 'detail', 'aria-live': 'off' });

  constructor(live, panel) {
    [this.#live, this.#panel] = [live, panel];
    new ResizeObserver(() => {
      const room = panel.clientWidth - 36;
      if (room <= 0 || room === this.#room) return;
      this.#room = room;
      requestAnimationFrame(() => this.#draw());
    }).observe(panel);
    live.addEventListener('pipelines', () => this.#draw());
    live.addEventListener('chosen', () => this.#draw());
    live.addEventListener('status', () => this.#update());
    live.addEventListener('lost', () => panel.classList.add('stale'));
    live.addEventListener('found', () => panel.classList.remove('stale'));
  }

  #draw() {
    const pipeline = this.#live.pipeline;
    const room = this.#room;
    const key = JSON.stringify([pipeline, Math.floor(room / 60)]);
    if (!pipeline || !room || key === this.#drawn) return;
    this.#drawn = key;
    const held = document.activeElement?.closest?.('.node')?.dataset.node;
    this.#parts.clear();
    if (!pipeline.nodes.some(node => node.id === this.#chosen)) this.#chosen = null;
    const corpora = boxes(pipeline);
    // A box is below the first row that reads it.
    const left = new Set(corpora);
    const plan = layout(pipeline.nodes, room, ids => {
      const here = [...left].filter(box => !box.nodes.length || box.nodes.some(id => ids.includes(id)));
      here.forEach(box => left.delete(box));
      return here.length ? 80 : 0;
    });
    const { height } = plan;
    const wide = size.width + 56;
    const width = Math.max(plan.width, corpora.length * (wide + 20) + 16);
    const edges = plan.edges.map(edge => this.#edge(edge, pipeline));
    const readers = corpora.map(box => box.nodes.map(id => plan.nodes.get(id)).filter(Boolean));
    const middle = nodes => (nodes.length ? nodes.reduce((sum, { x }) => sum + x + size.width / 2, 0) / nodes.length : width / 2);
    const places = spread(readers.map(nodes => middle(nodes) - wide / 2), wide, width);
    const drawn = corpora.flatMap((box, at) => this.#corpus(box, at, plan, { wide, x: places[at], readers: readers[at] }));
    const nodes = pipeline.nodes.map(node => this.#node(node, plan.nodes.get(node.id)));
    const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': `Graph of ${pipeline.name}` }, edges, drawn, nodes);
    picture.style.setProperty('--most', `${Math.round(width * 1.05)}px`);
    picture.style.setProperty('--least', `${Math.round(width * 0.9)}px`);
    this.#panel.replaceChildren(
      h('div', { class: 'sum', id: 'graph-sum' }),
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Graph, scrolls sideways' }, picture),
      this.#detail,
    );
    this.#update();
    if (held) this.#parts.get(held)?.group.focus();
  }

  #edge({ from, to, path }, pipeline) {
    const type = pipeline.nodes.find(node => node.id === from)?.output ?? '';
    const label = `${from} → ${to}: ${type}`;
    const group = svg('g', { class: 'edge', data: { from, to } }, svg('title', {}, label),
      svg('path', { d: path, class: 'hit' }), svg('path', { d: path, class: 'line' }));
    group.addEventListener('pointerenter', () => {
      const line = group.querySelector('.line');
      const middle = line.getPointAtLength(line.getTotalLength() / 2);
      group.querySelector('text')?.remove();
      group.append(svg('text', { x: middle.x, y: middle.y - 6, 'text-anchor': 'middle' }, type));
    });
    group.addEventListener('pointerleave', () => group.querySelector('text')?.remove());
    return group;
  }

  #corpus(box, at, plan, { wide, x, readers }) {
    const below = plan.rows[readers.length ? Math.min(...readers.map(({ row }) => row)) : 0] + 34;
    const lines = readers.map(({ x: left, y }) => {
      const [a, b, from] = [left + size.width / 2, y + size.height, x + wide / 2];
      const d = b < below ? `M${from},${below} C${from},${below - 26} ${a},${b + 30} ${a},${b}`
        : `M${from},${below + 44} C${from},${below + 70} ${a},${y - 30} ${a},${y}`;
      return svg('path', { d, class: 'reads' });
    });
    const label = svg('text', { x: x + 10, y: below + 18, class: 'id' }, cut(box.corpora.join(', '), 26));
    const numbers = svg('text', { x: x + 10, y: below + 35, class: 'small' });
    const group = svg('g', { class: 'corpus' }, svg('title', {}, `Corpora: ${box.corpora.join(', ')}`),
      svg('rect', { x, y: below, width: wide, height: 44, rx: 10 }), label, numbers);
    this.#parts.set(`corpora ${at}`, { group, numbers, box });
    return [...lines, group];
  }

  #node(node, { x, y }) {
    const line = (dy, css) => svg('text', { x: x + 10, y: y + dy, class: css });
    const texts = [line(34, 'small first'), line(52, 'small'), line(69, 'small')];
    const title = svg('title', {}, `${node.id}: ${node.kind}`);
    const group = svg('g', { class: `node ${node.role}`, tabindex: '0', role: 'button', data: { node: node.id } },
      title, svg('rect', { x, y, width: size.width, height: size.height, rx: 5 }),
      svg('text', { x: x + 10, y: y + 18, class: 'id' }, `${cut(node.id, 16)} `), texts,
      svg('circle', { cx: x + size.width - 12, cy: y + 14, r: 4, class: 'runs' }));
    const choose = () => {
      this.#chosen = this.#chosen === node.id ? null : node.id;
      this.#update();
    };
    group.addEventListener('click', choose);
    group.addEventListener('keydown', event => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      choose();
    });
    this.#parts.set(node.id, { group, node, texts, title });
    return group;
  }

  #update() {
    const { status, pipeline } = this.#live;
    if (!pipeline || !this.#parts.size) return;
    for (const part of this.#parts.values()) {
      if (part.box) this.#updateCorpus(part, status);
      else this.#updateNode(part, status);
    }
    this.#sum(status);
    this.#showDetail(pipeline);
  }

  #updateCorpus({ group, numbers, box }, status) {
    const found = (status?.corpora ?? []).filter(corpus => box.corpora.includes(corpus.name));
    const sum = field => found.reduce((total, corpus) => total + corpus[field], 0);
    const failed = found.find(corpus => corpus.state === 'failed');
    const loading = found.some(corpus => corpus.state === 'loading');
    group.classList.toggle('bad', Boolean(failed));
    numbers.textContent = failed ? 'failed' : loading ? `loading, ${count(sum('preparing'))} pending`
      : found.length ? cut(`${several(sum('documents'), 'document')}, ${several(sum('passages'), 'passage')}`, 32) : '';
  }

  #updateNode({ group, node, texts, title }, status) {
    const { lines, words, bad, runs } = this.#numbers(node, status);
    texts.forEach((text, at) => { text.textContent = lines[at] ? `${lines[at]} ` : ''; });
    group.classList.toggle('bad', bad);
    group.classList.toggle('running', runs);
    group.classList.toggle('chosen', this.#chosen === node.id);
    group.setAttribute('aria-pressed', String(this.#chosen === node.id));
    // It begins with what is to be seen, so that people can speak of it.
    const seen = [...group.querySelectorAll('text')].map(text => text.textContent).join('').trim();
    const whole = seen.startsWith(`${node.id} ${node.kind}`) ? '' : `${node.id}, ${node.kind}, `;
    const label = `${seen}: ${whole}${words}`;
    if (group.getAttribute('aria-label') === label) return;
    group.setAttribute('aria-label', label);
    title.textContent = label;
  }

  #numbers(node, status) {
    if (node.role === 'source') {
      const queued = status?.sources.find(source => source.id === node.id)?.queued;
      const words = queued === undefined ? 'not read' : `${count(queued)} queued`;
      return { lines: [node.kind, '', words], words, bad: false, runs: queued > 0 };
    }
    if (node.role === 'sink') {
      const sink = status?.sinks.find(one => one.id === node.id);
      const words = !sink ? 'not written' : sink.fault ? `${count(sink.pending)} pending, fault: ${sink.fault}` : `${count(sink.pending)} pending`;
      return { lines: [node.kind, ...faulty(sink, words)], words, bad: Boolean(sink?.fault), runs: sink?.pending > 0 };
    }
    const numbers = this.#live.node(node.id);
    if (!numbers) return { lines: [node.kind], words: 'no numbers yet', bad: false, runs: false };
    const { running, failures, rate, p50, p95, calls, isRecent } = numbers;
    const now = `${perSecond(rate)}, ${count(running)} running`;
    const first = failures ? `${cut(node.kind, 13)}, ${count(failures)} failed` : node.kind;
    const times = calls ? `${seconds(p50)} · ${seconds(p95)}` : 'no calls yet';
    const words = `${perSecond(rate)}, ${running} running, ${several(failures, 'failure')}, ` +
      (calls ? `p50 ${seconds(p50)}, p95 ${seconds(p95)} ${isRecent ? 'recently' : 'since the start'}` : times);
    return { lines: [first, now, times], words, bad: failures > 0, runs: running > 0 };
  }

  #sum(status) {
    const turns = status?.turns;
    const words = !turns ? 'Waiting for the status.' : [
      `${several(turns.running, 'turn')} running`, `${count(turns.waiting)} waiting`, `${count(turns.queued)} queued`,
      `${count(turns.answered)} answered`, turns.revised ? `${count(turns.revised)} revised` : null,
      turns.dead_letters ? `${several(turns.dead_letters, 'dead letter')}` : null,
    ].filter(Boolean).join(', ');
    this.#panel.querySelector('#graph-sum').replaceChildren(h('p', {}, words),
      h('p', { class: 'hint' }, 'Each node: calls per second, then p50 · p95 of the last 10 seconds, or since the start. Choose a node for its settings.'));
  }

  #showDetail(pipeline) {
    const node = pipeline.nodes.find(one => one.id === this.#chosen);
    if (!node) return this.#detail.replaceChildren();
    const numbers = this.#live.node(node.id);
    const sink = this.#live.status?.sinks.find(one => one.id === node.id);
    const close = button('Close', () => { this.#chosen = null; this.#update(); this.#parts.get(node.id)?.group.focus(); });
    const old = this.#detail.dataset.node === node.id && this.#detail.querySelector('button');
    const rows = facts([
      ['Kind', node.kind], ['Inputs', node.inputs.join(', ')], ['Gives', node.output],
      ['Settings', node.settings && h('code', {}, clean(node.settings))],
      ['Models', node.models.map(of => `${of} (${pipeline.models.find(model => model.name === of)?.kind ?? '?'})`).join(', ')],
      ['Corpora', node.corpora.join(', ')],
      ['Calls', numbers && `${count(numbers.calls)} since the start, ${several(numbers.failures, 'failure')}, ${numbers.running} running`],
      ['Times', numbers?.calls ? `p50 ${seconds(numbers.p50)}, p95 ${seconds(numbers.p95)} ${numbers.isRecent ? 'recently' : 'since the start'}; mean ${seconds(numbers.mean)}` : null],
      ['Delivered', sink && `${count(sink.delivered)}, ${count(sink.pending)} pending, ${count(sink.refused)} refused`],
      ['Fault', sink?.fault && h('span', { class: 'problem' }, clean(sink.fault))],
    ]);
    const parts = [rows, numbers && this.#spark(node.id)];
    if (old) {
      // Unchanged text is not replaced, since the user may be selecting it.
      const shown = this.#detail.querySelector('.facts');
      if (shown.textContent !== rows.textContent) shown.replaceWith(rows);
      this.#detail.querySelector('figure')?.replaceWith(parts[1] ?? '');
      return undefined;
    }
    this.#detail.dataset.node = node.id;
    return this.#detail.replaceChildren(h('div', { class: 'row' }, h('h3', {}, name(node.id)), close), ...parts.filter(Boolean));
  }

  #spark(id) {
    const rates = this.#live.rates(id);
    const [most, width, height] = [Math.max(1, ...rates), 360, 44];
    const points = rates.map((rate, at) => `${((at + 1) * width) / rates.length},${height - 2 - (rate / most) * (height - 6)}`);
    return h('figure', { class: 'spark' },
      svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Calls per second, at most ${perSecond(Math.max(0, ...rates))}`, preserveAspectRatio: 'none' },
        svg('polyline', { points: points.join(' ') || `0,${height}` })),
      h('figcaption', {}, `Calls per second, last ${several(rates.length, 'poll')}, at most ${perSecond(Math.max(0, ...rates))}`));
  }
}
