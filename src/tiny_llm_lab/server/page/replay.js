// A recorded run instead of an engine: the same drawings in the book. The record is {off: events, on: events}.

import { EngineState } from "./engine_state.js";
import { ms } from "./numbers.js";
import { View, write } from "./view.js";

const TICK_MS = 40;
const SLOWER = 4; // a gap of 500 ms is seen, one of 2 ms is not

const state = new EngineState();
state.fillsWidth = true;
const view = new View(state);
const { off, on } = globalThis.tinyLlmTrace;
const largest = {};
let timer = null;

/** Show a run from its beginning, in slow motion; `isAtOnce` shows its end. */
function play(events, isAtOnce = false) {
  clearInterval(timer);
  Object.assign(state, new EngineState(), { fillsWidth: true });
  const first = events.find((event) => event.type === "step").start_ms;
  const begun = performance.now();
  let next = 0;
  const tick = () => {
    const now = first + (performance.now() - begun) / SLOWER;
    while (next < events.length && (isAtOnce || !(events[next].end_ms > now))) state.apply([events[next++]]);
    if (next === events.length) clearInterval(timer);
    for (const name of ["off", "on"]) {
      if (state.largest[name]) largest[name] = state.largest[name].ms;
      if (largest[name]) write(`largest-gap-${name}`, ms(largest[name]));
    }
    view.draw();
  };
  timer = setInterval(tick, TICK_MS);
  tick();
}

for (const [id, events] of [["play-off", off], ["play-on", on]]) {
  document.getElementById(id).addEventListener("click", () => play(events));
}
play(on, true);
play(off, true);
