// Adjustments of the pipeline for the current conversation.

import { button, h, name } from './dom.js';

const GROUPS = [
  ['Retrievers', node => node.output === 'Hits' && node.isRetriever, 'A retriever that is off finds nothing.'],
  ['Query', node => node.output === 'Queries', 'Off: the question is searched unchanged, or as output by the previous step.'],
  ['Fusion, reranking and filters', node => node.output === 'Hits', 'Off: the first input passes through.'],
  ['Prompt', node => node.output === 'Prompts', 'Off: the prompt passes through.'],
  ['Answer', node => node.output === 'Answers', 'Off: the answer passes through.'],
];

/** The members of an ensemble, by its settings line. */
function members(node) {
  const listed = /members: \[([^\]]*)\]/.exec(node.settings)?.[1].split(', ').map(member => member.replace(/ [\d.e-]+$/, '').replaceAll('`', ''));
  return listed?.length === node.weights.length ? listed : null;
}

const short = value => String(Number(value.toFixed(2)));

/** Events: `change`. */
export class Tuning extends EventTarget {
  #panel;
  #pipeline = null;
  #skip = new Set();
  #weights = new Map();

  constructor(panel) {
    super();
    this.#panel = panel;
  }

  /** Another pipeline, or a new plan of it: what it does not have any more is dropped. */
  pipeline(pipeline) {
    if (JSON.stringify(pipeline) === JSON.stringify(this.#pipeline)) return;
    const isOther = pipeline?.name !== this.#pipeline?.name;
    this.#pipeline = pipeline;
    const nodes = new Map((pipeline?.nodes ?? []).map(node => [node.id, node]));
    for (const id of [...this.#skip]) if (isOther || !nodes.get(id)?.can_skip) this.#skip.delete(id);
    for (const [id, weights] of [...this.#weights]) if (isOther || nodes.get(id)?.weights?.length !== weights.length) this.#weights.delete(id);
    this.#draw();
    this.#changed();
  }

  reset() {
    this.#skip.clear();
    this.#weights.clear();
    this.#draw();
    this.#changed();
  }

  /** The field `adjust` of the next turns; undefined if nothing is changed. */
  get adjust() {
    if (!this.#skip.size && !this.#weights.size) return undefined;
    return { skip: [...this.#skip], weights: Object.fromEntries(this.#weights) };
  }

  /** What is changed, for people. */
  get words() {
    const weights = [...this.#weights].map(([id, of]) => `${id} weighs ${of.map(short).join(' : ')}`);
    return [...[...this.#skip].map(id => `${id} is off`), ...weights].join(', ');
  }

  #changed() {
    const off = this.#panel.querySelector('.reset');
    if (off) off.disabled = !this.adjust;
    this.dispatchEvent(new Event('change'));
  }

  #draw() {
    const pipeline = this.#pipeline;
    if (!pipeline) return this.#panel.replaceChildren();
    const types = new Map(pipeline.nodes.map(node => [node.id, node.output]));
    let left = pipeline.nodes.filter(node => node.can_skip).map(node => ({
      ...node, isRetriever: node.corpora.length > 0 && !node.inputs.some(id => types.get(id) === 'Hits'),
    }));
    const groups = GROUPS.map(([title, belongs, hint]) => {
      const nodes = left.filter(belongs);
      left = left.filter(node => !belongs(node));
      if (!nodes.length) return null;
      return h('fieldset', {}, h('legend', {}, title), h('p', { class: 'hint' }, hint), nodes.map(node => this.#toggle(node)));
    });
    const weighed = pipeline.nodes.filter(node => node.weights?.length > 0);
    const nothing = !groups.some(Boolean) && !weighed.length;
    return this.#panel.replaceChildren(
      h('div', { class: 'row' }, h('h2', {}, 'Tuning'), button('Reset', () => this.reset(), { class: 'reset', disabled: true })),
      h('p', { class: 'hint' }, nothing ? 'This pipeline has nothing to tune.'
        : 'For this conversation only: applies to the next turns; the pipeline itself does not change.'),
      ...[groups[0], ...weighed.map(node => this.#sliders(node)), ...groups.slice(1)].filter(Boolean));
  }

  #toggle(node) {
    const box = h('input', { type: 'checkbox', role: 'switch', data: { skip: node.id } });
    box.checked = !this.#skip.has(node.id);
    box.addEventListener('change', () => {
      if (box.checked) this.#skip.delete(node.id);
      else this.#skip.add(node.id);
      this.#changed();
    });
    return h('label', { class: 'switch' }, box, h('span', { class: 'id' }, name(node.id)), h('span', { class: 'kind' }, node.kind));
  }

  #sliders(node) {
    const weights = [...(this.#weights.get(node.id) ?? node.weights)];
    const set = () => {
      if (weights.every((weight, at) => Math.abs(weight - node.weights[at]) < 1e-6)) this.#weights.delete(node.id);
      else this.#weights.set(node.id, weights.map(weight => Number(weight.toFixed(4))));
      this.#changed();
    };
    const isFusion = weights.length === node.inputs.length;
    const names = isFusion ? node.inputs : members(node) ?? weights.map((_, at) => `member ${at + 1}`);
    const parts = isFusion && weights.length === 2 ? this.#alpha(node, names, weights, set) : names.map((of, at) => this.#slider(node, of, at, weights, set));
    return h('fieldset', {}, h('legend', {}, 'Weights of ', name(node.id), h('span', { class: 'kind' }, ` ${node.kind}`)), parts);
  }

  /** One slider for two inputs: α and 1 − α. */
  #alpha(node, [first, second], weights, set) {
    const told = h('output', {});
    const input = h('input', { type: 'range', min: 0, max: 1, step: 0.05, data: { alpha: node.id }, 'aria-label': `α of ${node.id}: the weight of ${first}; ${second} has the rest` });
    const sum = weights[0] + weights[1];
    input.value = String(sum > 0 ? weights[0] / sum : 0.5);
    const tell = alpha => {
      const words = `α ${short(alpha)} ${first}, ${short(1 - alpha)} ${second}`;
      told.textContent = words;
      input.setAttribute('aria-valuetext', words);
    };
    input.addEventListener('input', () => {
      const alpha = Number(input.value);
      [weights[0], weights[1]] = [alpha, 1 - alpha];
      tell(alpha);
      set();
    });
    tell(sum > 0 ? weights[0] / sum : 0.5);
    return h('div', { class: 'slider alpha' }, told, h('div', { class: 'ends' }, name(second), input, name(first)));
  }

  #slider(node, of, at, weights, set) {
    const told = h('output', {}, short(weights[at]));
    const most = Math.max(1, 2 * Math.max(...node.weights));
    const input = h('input', { type: 'range', min: 0, max: most, step: 0.05, data: { weight: `${node.id} ${at}` }, 'aria-label': `Weight of ${of} in ${node.id}` });
    input.value = String(weights[at]);
    input.addEventListener('input', () => {
      weights[at] = Number(input.value);
      told.textContent = short(weights[at]);
      set();
    });
    return h('label', { class: 'slider' }, h('span', { class: 'id' }, name(of)), input, told);
  }
}
