// What is known of an engine from its events: the last steps, the gaps between tokens, blocks and queue.

export const NUM_STEPS = 1000;
const LONG_CHUNK = 32;
const NUM_REQUESTS = 500;
const PROMPT_STEPS = 100;

export class EngineState {
  constructor() {
    this.hello = {};
    this.config = { enable_chunked_prefill: true, max_num_batched_tokens: 0 };
    this.reset();
    this.steps = [];
    this.requests = new Map(); // number -> tokens of the prompt, also of requests that have left
    this.live = new Set();
    this.lastTokenMs = new Map();
    this.numSteps = 0;
    this.reuse = ""; // why the last prompt was computed
  }

  /** Forget the largest gaps: of all, without and with chunked prefill. */
  reset() {
    this.largest = { all: null, off: null, on: null };
  }

  /** Take events in the order in which they happened. */
  apply(events) {
    for (const event of events) this[`_${event.type}`]?.(event);
  }

  get lastStep() {
    return this.steps.at(-1) ?? null;
  }

  /** The median of the gaps in the last steps, in ms; null without any. */
  get medianGap() {
    const all = this.steps.flatMap((step) => step.gaps.map((gap) => gap.ms)).sort((a, b) => a - b);
    return all.length ? all[all.length >> 1] : null;
  }

  /** Tokens of answers per second, over the last second that had steps. */
  get tokensPerSecond() {
    const end = this.lastStep?.end ?? 0;
    const recent = this.steps.filter((step) => step.end > end - 1000);
    const span = end - (recent[0]?.start ?? end);
    return span > 0 ? (1000 * recent.reduce((sum, step) => sum + step.sampled, 0)) / span : 0;
  }

  /** Prompts that are being computed or wait, oldest first: {request, done, total, left: seconds or null}. */
  get prompts() {
    const recent = this.steps.slice(-PROMPT_STEPS).filter((step) => step.parts.some((part) => !part.isDecode));
    const tokens = recent.flatMap((step) => step.parts).reduce((sum, part) => sum + (part.isDecode ? 0 : part.tokens), 0);
    const seconds = recent.reduce((sum, step) => sum + step.ms, 0) / 1000;
    const held = new Map((this.lastStep?.blocks ?? []).map(([request, blocks]) => [request, blocks]));
    let ahead = 0;
    return [...this.live].filter((request) => !this.lastTokenMs.has(request)).map((request) => {
      const total = this.requests.get(request);
      const done = Math.min(total, (held.get(request) ?? 0) * this.hello.block_size);
      ahead += total - done;
      return { request, done, total, left: tokens ? (ahead * seconds) / tokens : null };
    });
  }

  /** The steps that computed parts of long prompts, after step `from`, and `around` others on either side. */
  excerpt(from, around = 25) {
    const { steps } = this;
    const isLong = (step) => step.parts.some((part) => !part.isDecode && part.tokens >= LONG_CHUNK);
    const isNear = new Array(steps.length).fill(false);
    steps.forEach((step, i) => {
      if (step.number > from && isLong(step)) isNear.fill(true, Math.max(0, i - around), i + around + 1);
    });
    return steps.filter((_, i) => isNear[i]);
  }

  _hello(event) {
    Object.assign(this, { hello: event, steps: [], live: new Set(), lastTokenMs: new Map() });
  }

  _config(event) {
    this.config = event;
  }

  _added(event) {
    this.requests.set(event.request, event.prompt_tokens);
    this.live.add(event.request);
    if (this.requests.size > NUM_REQUESTS) this.requests.delete(this.requests.keys().next().value);
  }

  _step(event) {
    this.steps.push({
      number: ++this.numSteps,
      start: event.start_ms,
      end: event.end_ms,
      ms: event.end_ms - event.start_ms,
      budget: event.budget,
      isChunked: this.config.enable_chunked_prefill,
      parts: event.parts.map(([request, tokens, isDecode]) => ({ request, tokens, isDecode })),
      total: event.parts.reduce((sum, part) => sum + part[1], 0),
      blocks: event.blocks,
      free: event.free,
      snapshots: event.snapshots ?? 0,
      disk: event.disk ?? 0,
      pictures: event.pictures,
      waiting: event.waiting,
      sampled: 0,
      gaps: [],
    });
    if (this.steps.length > NUM_STEPS) this.steps.shift();
  }

  _explained(event) {
    this.reuse = `Request ${event.request} ${event.text}`;
  }

  _sampled(event) {
    const step = this.lastStep;
    if (step === null) return;
    for (const [request, count] of event.tokens) {
      const before = this.lastTokenMs.get(request);
      if (before !== undefined) this._gap(step, { request, ms: step.end - before, step: step.number });
      this.lastTokenMs.set(request, step.end);
      step.sampled += count;
    }
  }

  _gap(step, gap) {
    step.gaps.push(gap);
    for (const name of ["all", step.isChunked ? "on" : "off"]) {
      if (gap.ms > (this.largest[name]?.ms ?? 0)) this.largest[name] = gap;
    }
  }

  _left(event) {
    this.live.delete(event.request);
    this.lastTokenMs.delete(event.request);
  }
}

/** The blocks of the KV cache by what they hold: {owners: [[request, blocks]], cached, saved, free, total}.
 * Of a hybrid model also: snapshots, of states. */
export function blocksOf(state) {
  const total = state.hello.num_blocks ?? 0;
  const step = state.lastStep;
  const rows = (step?.blocks ?? []).filter(([request]) => state.live.has(request));
  const snapshots = step?.snapshots ?? 0;
  if (!rows.length) return { owners: [], cached: 0, saved: 0, free: total, total, snapshots };
  const held = total - step.free;
  const owners = rows.map(([request, blocks, cached]) => [request, blocks - Math.min(blocks, cached)]);
  const own = owners.reduce((sum, [, blocks]) => sum + blocks, 0);
  const all = rows.reduce((sum, [, blocks]) => sum + blocks, 0);
  return { owners, cached: Math.max(0, held - own), saved: Math.max(0, all - held), free: step.free, total, snapshots };
}
