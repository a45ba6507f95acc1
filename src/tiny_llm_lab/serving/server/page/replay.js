// A recorded run instead of an engine: the same drawings in the book. The record is {off: events, on: events}.

import { EngineState } from "./engine_state.js";
import { ms } from "./numbers.js";
import { View, write } from "./view.js";

const TICK_MS = 40;
const PLAY_MS = 5000; // whatever the run took: slow motion

const state = new EngineState();
const view = new View(state);
const { off, on } = globalThis.tinyLlmTrace;
let timer = null;

/** Show a run from its beginning, in slow motion. */
function play(events) {
  const steps = start(events);
  const [first, last] = [steps[0].start_ms, steps.at(-1).end_ms];
  const begun = performance.now();
  let next = 0;
  timer = setInterval(() => {
    const now = first + ((last - first) * (performance.now() - begun)) / PLAY_MS;
    // What is no step happened when the step before it ended.
    while (next < events.length && !(events[next].end_ms > now)) state.apply([events[next++]]);
    if (next === events.length) clearInterval(timer);
    view.draw();
  }, TICK_MS);
}

/** Show the end of a run, and its largest gap. */
function show(name, events) {
  start(events);
  state.apply(events);
  write(`largest-gap-${name}`, ms(state.largest.all.ms));
  view.draw();
}

function start(events) {
  clearInterval(timer);
  const steps = events.filter((event) => event.type === "step");
  Object.assign(state, new EngineState(), { columns: steps.length });
  return steps;
}

// The page around the frame says whether its theme is light or dark; before that the system's choice counts.
addEventListener("message", ({ data }) => {
  document.documentElement.className = data;
  view.restyle();
});

document.getElementById("play-off").addEventListener("click", () => play(off));
document.getElementById("play-on").addEventListener("click", () => play(on));
show("on", on);
show("off", off);
