// Three strips over the same steps: tokens by request, the time of the step, the gaps that ended in it.

import { count, ms, niceAbove } from "./numbers.js";
import { colourOf, hatched } from "./theme.js";

const LEFT = 52;
const RIGHT = 10;
const TITLE = 22;
const BOTTOM = 6;
const STEP_WIDTH = 5;
const SHARES = [0.48, 0.17, 0.35];
const LEAST_BAR = 3; // px: one decode of a budget of thousands is still to be seen

/** The steps that a width has room for, newest at the right: {steps, stepWidth, x(i), at(x)}. */
export function axisOf(state, width) {
  const room = width - LEFT - RIGHT;
  const most = Math.max(40, Math.min(220, Math.floor(room / STEP_WIDTH)));
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
  const top = 2 ** Math.ceil(Math.log2(highest)) * 1.06;
  const scale = (strip.bottom - strip.top) / top;
  title(context, strip, theme, "Tokens of each step");
  for (const value of [0.5, 1]) {
    gridLine(context, strip, theme, strip.bottom - (value * top * scale) / 1.06, count((value * top) / 1.06));
  }
  gridLine(context, strip, theme, strip.bottom, "0");
  steps.forEach((step, i) => {
    let y = strip.bottom;
    // Decodes below, so that a prompt stands on the streams that it shares the step with.
    for (const part of [...step.parts].sort((a, b) => b.isDecode - a.isDecode)) {
      const size = Math.max(LEAST_BAR, part.tokens * scale);
      context.fillStyle = part.isDecode ? colourOf(theme, part.request) : hatched(context, theme, part.request);
      context.fillRect(x(i), y - size, Math.max(1, stepWidth - 1), size);
      y -= size;
    }
  });
  drawBudget(context, strip, { steps, stepWidth, x }, theme, scale);
}

function drawBudget(context, strip, { steps, stepWidth, x }, theme, scale) {
  if (!steps.length) return;
  context.strokeStyle = theme.text;
  context.lineWidth = 1.5;
  context.setLineDash([5, 3]);
  context.beginPath();
  steps.forEach((step, i) => {
    const y = strip.bottom - step.budget * scale;
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
  gridLine(context, strip, theme, strip.top, `${count(top)} ms`);
  gridLine(context, strip, theme, strip.bottom, "0");
  context.fillStyle = theme.bar;
  steps.forEach((step, i) => {
    const size = Math.max(1, step.ms * scale);
    context.fillRect(x(i), strip.bottom - size, Math.max(1, stepWidth - 1), size);
  });
}

function drawGaps(context, strip, { steps, stepWidth, x }, theme) {
  const gaps = steps.flatMap((step, i) => step.gaps.map((gap) => ({ ...gap, x: x(i) + stepWidth / 2 })));
  const largest = gaps.reduce((most, gap) => (gap.ms > (most?.ms ?? 0) ? gap : most), null);
  const decades = Math.max(2, Math.ceil(Math.log10(Math.max(1, largest?.ms ?? 1)) + 0.05));
  const y = (value) =>
    strip.bottom - ((strip.bottom - strip.top) * Math.log10(Math.max(1, value))) / decades;
  title(context, strip, theme, "Gap before each token, by stream (log scale)");
  for (let power = 0; power <= decades; power++) {
    gridLine(context, strip, theme, y(10 ** power), `${count(10 ** power)} ms`);
  }
  for (const gap of gaps) {
    context.fillStyle = colourOf(theme, gap.request);
    context.beginPath();
    context.arc(gap.x, y(gap.ms), 2.2, 0, 7);
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
  context.fillText(text, strip.left, strip.top - 8);
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
