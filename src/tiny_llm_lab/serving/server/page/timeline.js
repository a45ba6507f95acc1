// Three strips over the same steps: tokens by request, the time of the step, the gaps that ended in it.

import { count, duration, ms, niceAbove } from "./numbers.js";
import { colourOf, hatched } from "./theme.js";

const LEFT = 50;
const RIGHT = 10;
const TITLE = 36;
const BOTTOM = 6;
const STEP_WIDTH = 5;
const STEP_WIDTH_PHONE = 2;
const PHONE = 500;
const SHARES = [0.48, 0.17, 0.35];
const LEAST_BAR = 3; // px: one decode of a budget of thousands is still to be seen

/** The steps that a width has room for, newest at the right: {steps, stepWidth, x(i), at(x)}. */
export function axisOf(state, width) {
  const room = width - LEFT - RIGHT;
  const widest = Math.max(40, Math.min(220, Math.floor(room / (width < PHONE ? STEP_WIDTH_PHONE : STEP_WIDTH))));
  const most = Math.min(state.columns ?? widest, widest);
  const steps = state.steps.slice(-most);
  const stepWidth = room / most;
  const x = (i) => LEFT + (most - steps.length + i) * stepWidth;
  const at = (px) => Math.max(0, Math.min(steps.length - 1, Math.floor((px - x(0)) / stepWidth)));
  return { steps, stepWidth, x, at };
}

/** Draw the state on a canvas of `width` by `height` CSS pixels. `selected` is the number of a step. */
export function drawTimeline(context, { state, theme, width, height, selected = null }) {
  const axis = axisOf(state, width);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  const room = height - SHARES.length * TITLE - BOTTOM;
  tintUnchunked(context, height, axis, theme);
  drawCuts(context, height, axis, theme);
  let top = 0;
  const strips = [drawTokens, drawTimes, drawGaps];
  strips.forEach((draw, i) => {
    const strip = { top: top + TITLE, bottom: top + TITLE + room * SHARES[i], left: LEFT, right: width - RIGHT };
    draw(context, strip, axis, theme);
    top = strip.bottom;
  });
  const i = axis.steps.findIndex((step) => step.number === selected);
  if (i >= 0) {
    context.strokeStyle = theme.text;
    context.lineWidth = 1;
    context.strokeRect(axis.x(i) - 0.5, TITLE - 2, axis.stepWidth + 1, height - TITLE - BOTTOM + 4);
  }
}

function drawTokens(context, strip, { steps, stepWidth, x }, theme) {
  const highest = Math.max(64, ...steps.map((step) => Math.max(step.total, step.budget)));
  const top = 4 ** Math.ceil(Math.log2(highest) / 2);
  // A square root: a chunk of 256 tokens is to be seen beside a prompt of 3,000.
  const heightOf = (tokens) => (strip.bottom - strip.top) * Math.sqrt(tokens / top);
  title(context, strip, theme, "Tokens of each step (square-root scale)");
  for (const value of [0, top / 16, top / 4, top]) {
    gridLine(context, strip, theme, strip.bottom - heightOf(value), count(value));
  }
  steps.forEach((step, i) => {
    let y = strip.bottom;
    for (const { fill, size } of barsOf(context, step, heightOf, theme)) {
      context.fillStyle = fill;
      context.fillRect(x(i), y - size, barWidth(stepWidth), size);
      y -= size;
    }
  });
  drawBudget(context, strip, { steps, stepWidth, x }, theme, heightOf);
}

/** The decodes below, so that a prompt stands on the streams that it shares the step with. */
function barsOf(context, step, heightOf, theme) {
  const decodes = step.parts.filter((part) => part.isDecode);
  const height = heightOf(step.total);
  const bars = decodes.map(({ request, tokens }) => ({
    fill: colourOf(theme, request),
    size: Math.max(LEAST_BAR, (height * tokens) / step.total),
  }));
  // What the decodes take too much is taken from the prompts: the height of the bar is that of the step.
  const room = height - bars.reduce((sum, bar) => sum + bar.size, 0);
  const prompts = step.parts.filter((part) => !part.isDecode);
  const tokens = prompts.reduce((sum, part) => sum + part.tokens, 0);
  for (const part of prompts) {
    const size = Math.max(LEAST_BAR, (room * part.tokens) / tokens);
    bars.push({ fill: hatched(context, theme, part.request), size });
  }
  return bars;
}

function barWidth(stepWidth) {
  return Math.max(1, stepWidth - (stepWidth > 3 ? 1 : 0.5));
}

/** Where steps were left out. */
function drawCuts(context, height, { steps, x }, theme) {
  context.strokeStyle = theme.muted;
  context.lineWidth = 1;
  context.setLineDash([1, 4]);
  context.beginPath();
  steps.forEach((step, i) => {
    if (i === 0 || step.number === steps[i - 1].number + 1) return;
    context.moveTo(x(i), TITLE - 14);
    context.lineTo(x(i), height);
  });
  context.stroke();
  context.setLineDash([]);
}

/** Steps without chunked prefill stand on a tinted ground. */
function tintUnchunked(context, height, { steps, stepWidth, x }, theme) {
  const top = TITLE - 14;
  let first = 0;
  steps.forEach((step, i) => {
    if (step.isChunked) first = i + 1;
    else if (i + 1 === steps.length || steps[i + 1].isChunked) {
      const width = (i + 1 - first) * stepWidth;
      context.fillStyle = theme.tint;
      context.fillRect(x(first), top, width, height - top);
    }
  });
}

function drawBudget(context, strip, { steps, stepWidth, x }, theme, heightOf) {
  if (!steps.length) return;
  context.strokeStyle = theme.text;
  context.lineWidth = 1.5;
  context.setLineDash([5, 3]);
  context.beginPath();
  steps.forEach((step, i) => {
    const y = strip.bottom - heightOf(step.budget);
    context.lineTo(x(i), y);
    context.lineTo(x(i) + stepWidth, y);
  });
  context.stroke();
  context.setLineDash([]);
}

function drawTimes(context, strip, { steps, stepWidth, x }, theme) {
  const top = niceAbove(Math.max(10, ...steps.map((step) => step.ms)));
  const scale = (strip.bottom - strip.top) / top;
  title(context, strip, theme, "Time of each step");
  gridLine(context, strip, theme, strip.top, duration(top));
  gridLine(context, strip, theme, strip.bottom, "0");
  context.fillStyle = theme.bar;
  steps.forEach((step, i) => {
    const size = Math.max(1, step.ms * scale);
    context.fillRect(x(i), strip.bottom - size, barWidth(stepWidth), size);
  });
}

function drawGaps(context, strip, { steps, stepWidth, x }, theme) {
  // Side by side, as streams that share their steps have the same gaps.
  const gaps = steps.flatMap((step, i) =>
    step.gaps.map((gap, k) => ({ ...gap, x: x(i) + (stepWidth * (k + 0.5)) / step.gaps.length })),
  );
  const largest = gaps.reduce((most, gap) => (gap.ms > (most?.ms ?? 0) ? gap : most), null);
  const decades = Math.max(2, Math.log10(Math.max(1, largest?.ms ?? 1)) + 0.2);
  const y = (value) =>
    strip.bottom - ((strip.bottom - strip.top) * Math.log10(Math.max(1, value))) / decades;
  title(context, strip, theme, "Gap before each token (log scale)");
  for (let power = 0; power <= decades; power++) {
    gridLine(context, strip, theme, y(10 ** power), duration(10 ** power));
  }
  for (const gap of gaps) {
    context.fillStyle = colourOf(theme, gap.request);
    context.beginPath();
    context.arc(gap.x, y(gap.ms), 1.8, 0, 7);
    context.fill();
  }
  if (largest === null) return;
  context.strokeStyle = context.fillStyle = theme.alarm;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(largest.x, y(largest.ms), 7, 0, 7);
  context.stroke();
  const isRight = largest.x > (strip.left + strip.right) / 2;
  context.textAlign = isRight ? "right" : "left";
  context.font = "600 12px system-ui, sans-serif";
  context.fillText(`${ms(largest.ms)} ms`, largest.x + (isRight ? -12 : 12), y(largest.ms) + 4);
  context.font = "12px system-ui, sans-serif";
}

function title(context, strip, theme, text) {
  context.fillStyle = theme.text;
  context.textAlign = "left";
  context.fillText(text, strip.left, strip.top - 12);
}

function gridLine(context, strip, theme, y, label) {
  const crisp = Math.round(y) - 0.5;
  context.strokeStyle = theme.grid;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(strip.left, crisp);
  context.lineTo(strip.right, crisp);
  context.stroke();
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.fillText(label, strip.left - 6, crisp + 4);
}
