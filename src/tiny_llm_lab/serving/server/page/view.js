// The drawings of a page and the words beside them. Takes a state, whether it is live or replayed.

import { blocksText, drawBlocks } from "./block_bar.js";
import { axisOf, drawTimeline } from "./timeline.js";
import { colourIndex, readTheme } from "./theme.js";
import { nameOf, stepText, summaryText } from "./words.js";

const LEGEND_ROWS = 6;
const SUMMARY_MS = 2000;
const LEAST_COLUMNS = 40;
const HINT = "Point at a step, or focus the picture and use the arrow keys.";

export class View {
  constructor(state) {
    this.live = state;
    this.state = state; // what is drawn: `live`, or a copy of it while held
    this.onHold = () => {};
    this.selected = null; // number of a step
    this.timeline = document.getElementById("timeline");
    this.blocks = document.getElementById("blocks");
    this.theme = readTheme();
    this._summaryAt = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    new ResizeObserver(() => this.draw()).observe(this.timeline);
    this._listen();
  }

  restyle() {
    this.theme = readTheme();
    this.draw();
  }

  get isHeld() {
    return this.state !== this.live;
  }

  /** Keep the picture as it is, or `steps` of it, while the engine goes on. */
  hold(steps = this.live.steps) {
    const { live, requests } = this.live;
    const columns = steps === this.live.steps ? undefined : Math.max(LEAST_COLUMNS, steps.length);
    const kept = { columns, steps: [...steps], live: new Set(live), requests: new Map(requests) };
    this.state = Object.assign(Object.create(this.live), kept);
    this._summaryAt = 0;
    this.onHold(true);
    this.draw();
  }

  release() {
    this.state = this.live;
    this.onHold(false);
    this.draw();
  }

  /** Draw before the next frame, however often it is called. */
  draw() {
    this._frame ??= requestAnimationFrame(() => {
      this._frame = null;
      this._draw();
    });
  }

  _draw() {
    const { state, theme } = this;
    const timeline = sized(this.timeline);
    drawTimeline(timeline.context, { state, theme, ...timeline.size, selected: this.selected });
    const blocks = sized(this.blocks);
    drawBlocks(blocks.context, { state, theme, ...blocks.size });
    write("blocks-text", blocksText(state));
    const step = state.steps.find((each) => each.number === this.selected);
    write("readout", step ? stepText(state, step) : HINT);
    this._drawLegend();
    const now = performance.now();
    if (now - this._summaryAt > SUMMARY_MS) {
      this._summaryAt = now;
      write("summary", summaryText(state));
    } else {
      this._later ??= setTimeout(() => {
        this._later = null;
        this.draw();
      }, SUMMARY_MS);
    }
  }

  _drawLegend() {
    const seen = new Set(this.state.steps.flatMap((step) => step.parts.map((part) => part.request)));
    const newest = [...seen].sort((a, b) => b - a).slice(0, LEGEND_ROWS);
    if (newest.join() === this._legend) return;
    this._legend = newest.join();
    document.getElementById("legend").replaceChildren(
      ...newest.map((request) => {
        const row = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = `swatch request-${colourIndex(request)}`;
        row.append(swatch, nameOf(this.state, request));
        return row;
      }),
    );
  }

  _listen() {
    const { timeline } = this;
    const select = (number) => {
      this.selected = number;
      this.draw();
    };
    timeline.addEventListener("pointermove", (event) => {
      const axis = axisOf(this.state, timeline.clientWidth);
      select(axis.steps[axis.at(event.offsetX)]?.number ?? null);
    });
    timeline.addEventListener("pointerleave", () => select(null));
    timeline.addEventListener("blur", () => select(null));
    timeline.addEventListener("keydown", (event) => {
      const { steps } = axisOf(this.state, timeline.clientWidth);
      const last = steps.length - 1;
      const at = steps.findIndex((step) => step.number === this.selected);
      const now = at < 0 ? last + 1 : at;
      const target = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") select(null);
      if (target === undefined) return;
      event.preventDefault();
      select(steps[Math.max(0, Math.min(last, target))]?.number ?? null);
    });
  }
}

/** Set the text of an element, if it is another one. */
export function write(id, text) {
  const element = document.getElementById(id);
  if (element.textContent !== text) element.textContent = text;
}

/** The context of a canvas with as many pixels as the screen has for it. */
function sized(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, size: { width, height } };
}
