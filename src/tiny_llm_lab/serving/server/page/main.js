// The live page: events from the server into the state, the state into the drawings.

import { Chat } from "./chat.js";
import { NoKeyError, events, hasKey, onKeyNeeded, request } from "./connection.js";
import { Controls } from "./controls.js";
import { Demo } from "./demo.js";
import { EngineState } from "./engine_state.js";
import { Load } from "./load.js";
import { count, ms } from "./numbers.js";
import { View, write } from "./view.js";
import { promptsText } from "./words.js";

const RETRY_MS = 2000;
const AFTER_PROMPT_MS = 300;
const element = (id) => document.getElementById(id);

const state = new EngineState();
const view = new View(state);
const load = new Load(state);
const controls = new Controls(state, complain);
const demo = new Demo(state, load, controls, view);
const chat = new Chat(state);

function complain(error) {
  write("demo-status", error.message);
}

function show() {
  readout("largest-gap", state.largest.all);
  readout("largest-gap-off", state.largest.off);
  readout("largest-gap-on", state.largest.on);
  const median = state.medianGap;
  write("median-gap", median === null ? "–" : `${ms(median)} ms`);
  write("rate", `${count(Math.round(state.tokensPerSecond))} tokens/s`);
  const waiting = state.live.size ? (state.lastStep?.waiting ?? 0) : 0;
  write("running", count(Math.max(0, state.live.size - waiting)));
  write("waiting", count(waiting));
  write("prompts", promptsText(state));
  element("background").setAttribute("aria-pressed", String(load.isBackgroundOn));
  view.draw();
}

function readout(id, gap) {
  write(id, gap ? ms(gap.ms) : "–");
  element(id).dataset.ms = gap ? gap.ms.toFixed(2) : "";
}

/** Follow the engine while the page can be seen; the server keeps nothing for a page that is not there. */
async function follow() {
  for (;;) {
    await visible();
    const abort = new AbortController();
    const hide = () => document.hidden && abort.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      for await (const batch of events(await request("live/events", { signal: abort.signal }))) {
        state.apply(batch);
        if (batch[0].type === "hello") greet();
        if (batch.some((event) => event.type === "config")) controls.show();
        show();
      }
      status("The server has ended the connection.", false);
    } catch (error) {
      if (error instanceof NoKeyError) return status(error.message, false);
      if (error.name !== "AbortError") status(`No connection: ${error.message}`, false);
    }
    document.removeEventListener("visibilitychange", hide);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function greet() {
  status(`${state.hello.model}, ${count(state.hello.max_model_len)} tokens`, true);
  write("long-prompt", `Drop a ${count(state.hello.long_prompt_tokens)}-token prompt`);
  chat.greet();
  for (const id of ["demo", "background", "long-prompt"]) element(id).disabled = false;
}

function status(text, isConnected) {
  write("status", text);
  element("status").classList.toggle("is-connected", isConnected);
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

/** While `act` runs, its button is disabled. */
function onClick(id, act) {
  element(id).addEventListener("click", async () => {
    element(id).disabled = true;
    try {
      await act();
    } catch (error) {
      complain(error);
    } finally {
      element(id).disabled = false;
    }
  });
}

onClick("demo", () => {
  view.release();
  return demo.run();
});
onClick("long-prompt", async () => {
  view.release();
  const from = state.numSteps;
  await load.dropLongPrompt();
  await new Promise((resolve) => setTimeout(resolve, AFTER_PROMPT_MS));
  const excerpt = state.excerpt(from);
  if (excerpt.length) view.hold(excerpt); // or it would be gone before it was seen
});
element("background").addEventListener("click", () => {
  if (load.isBackgroundOn) load.stopBackground();
  else load.startBackground().catch(complain).finally(show);
  show();
});
element("pause").addEventListener("click", () => (view.isHeld ? view.release() : view.hold()));
view.onHold = (isHeld) => {
  element("pause").setAttribute("aria-pressed", String(isHeld));
  write("pause", isHeld ? "Resume" : "Pause");
};
element("reset").addEventListener("click", () => {
  state.reset();
  show();
});

element("metrics").addEventListener("click", async (event) => {
  if (!hasKey()) return;
  event.preventDefault(); // a link can't send the key
  try {
    location.assign(URL.createObjectURL(await (await request("metrics")).blob()));
  } catch (error) {
    complain(error);
  }
});

onKeyNeeded(() => {
  const dialog = element("key-dialog");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? element("key").value : null), {
      once: true,
    });
  });
});

show();
follow();
