// The live state of the pipelines: their plans, and the status of the chosen one about once per second.

import { get } from './api.js';

const EVERY_MS = 1000;
const KEPT = 120;
/** Rates and times are those of about so many seconds. */
const RECENT_S = 10;

/** The duration, in seconds, that a share of the calls does not exceed: interpolated within its class. */
export function quantile(durations, bounds, share) {
  const wanted = share * durations.count;
  let [before, from] = [0, 0];
  for (const [at, number] of durations.classes.entries()) {
    const to = bounds[at] ?? from;
    if (number > 0 && before + number >= wanted) return from + (to - from) * Math.min(1, Math.max(0, (wanted - before) / number));
    [before, from] = [before + number, to];
  }
  return null;
}

/** The calls since an earlier status. */
function since(now, earlier) {
  return {
    count: now.count - earlier.count,
    sum_s: now.sum_s - earlier.sum_s,
    classes: now.classes.map((number, at) => number - (earlier.classes[at] ?? 0)),
  };
}

/** Events: `pipelines` (the plans are known or new), `status` (a poll came back), `lost`, `found`. */
export class Live extends EventTarget {
  pipelines = [];
  /** The chosen pipeline. */
  name = null;
  status = null;
  /** Who the caller is. */
  caller = null;
  /** Why the last poll failed. */
  problem = null;
  #samples = [];
  #timer = null;
  #round = 0;

  constructor() {
    super();
    document.addEventListener('visibilitychange', () => this.#again(0));
  }

  get pipeline() {
    return this.pipelines.find(pipeline => pipeline.name === this.name) ?? null;
  }

  /** Loads the plans, and polls from then on. */
  start() {
    this.#again(0);
  }

  choose(name) {
    if (name === this.name) return;
    this.name = name;
    this.#round++;
    this.#forget();
    this.dispatchEvent(new Event('chosen'));
    this.#again(0);
  }

  /** Polls now. */
  retry() {
    this.#again(0);
  }

  #forget() {
    [this.status, this.#samples] = [null, []];
  }

  async #load() {
    const { data } = await get('/v1/pipelines');
    this.caller = await get('/v1/caller');
    this.pipelines = data;
    if (!this.pipeline) {
      this.name = data[0]?.name ?? null;
      this.#forget();
    }
    this.dispatchEvent(new Event('pipelines'));
  }

  #again(after) {
    clearTimeout(this.#timer);
    if (document.visibilityState !== 'hidden') this.#timer = setTimeout(() => this.#poll(), after);
  }

  async #poll() {
    const round = ++this.#round;
    try {
      if (this.problem || !this.pipelines.length) await this.#load();
      if (!this.name) throw Object.assign(new Error('You may not use any pipeline of this server.'), { status: 403 });
      const status = await get(`/v1/pipelines/${encodeURIComponent(this.name)}/status`);
      if (round !== this.#round) return;
      const before = this.status;
      this.#take(status);
      if (before && (before.plan !== status.plan || before.generation !== status.generation)) await this.#load();
      if (this.problem) {
        this.problem = null;
        this.dispatchEvent(new Event('found'));
      }
      this.dispatchEvent(new Event('status'));
      this.#again(EVERY_MS);
    } catch (error) {
      if (round !== this.#round) return;
      this.problem = error;
      this.dispatchEvent(new Event('lost'));
      this.#again(error.status === 401 ? 30000 : 2000);
    }
  }

  #take(status) {
    const last = this.#samples.at(-1)?.status;
    // Another process, or the calls of another plan.
    if (last && (status.uptime_s < last.uptime_s || last.plan !== status.plan)) this.#samples = [];
    this.#samples.push({ at: performance.now() / 1000, status });
    if (this.#samples.length > KEPT) this.#samples.shift();
    this.status = status;
  }

  /** The numbers of a node: recent ones, or those since the start while nothing happens. */
  node(id) {
    const find = sample => sample.status.nodes.find(node => node.id === id);
    const [now, bounds] = [this.#samples.at(-1), this.status?.bounds_s ?? []];
    const found = now && find(now);
    if (!found) return null;
    const earlier = this.#samples.find(sample => now.at - sample.at <= RECENT_S && find(sample));
    const recent = since(found.durations, find(earlier).durations);
    const passed = now.at - earlier.at;
    const isRecent = recent.count > 0;
    const durations = isRecent ? recent : found.durations;
    return {
      running: found.running,
      failures: found.failures,
      calls: found.durations.count,
      rate: passed > 0.5 ? recent.count / passed : 0,
      isRecent,
      p50: quantile(durations, bounds, 0.5),
      p95: quantile(durations, bounds, 0.95),
      mean: found.durations.count ? found.durations.sum_s / found.durations.count : null,
    };
  }

  /** A node's calls a second between each two polls. */
  rates(id) {
    const counts = this.#samples.map(({ at, status }) => [at, status.nodes.find(node => node.id === id)?.durations.count ?? 0]);
    return counts.slice(1).map(([at, number], before) => Math.max(0, number - counts[before][1]) / Math.max(0.2, at - counts[before][0]));
  }
}
