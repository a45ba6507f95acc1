// The one-click demonstration: streams, a long prompt without chunked prefill, the same with it.

import { count, ms, plural } from "./numbers.js";
import { write } from "./view.js";

const BUDGET = 256;
const STEPS_BEFORE = 60;
const STEPS_AFTER = 30;

export class Demo {
  constructor(state, load, controls, view) {
    Object.assign(this, { state, load, controls, view });
  }

  /** Show both ways; without controls, the way in which the engine runs. */
  async run() {
    const { state, load, controls } = this;
    const before = { ...state.config };
    const isOurs = !load.isBackgroundOn;
    const streams = isOurs ? load.startBackground() : Promise.resolve();
    this._failed = null;
    streams.catch((error) => (this._failed = error));
    state.reset();
    const from = state.numSteps;
    try {
      if (!state.hello.has_controls) return await this._drop("The long prompt arrives");
      const budget = Math.max(BUDGET, state.hello.min_budget);
      await controls.set({ enable_chunked_prefill: false });
      await this._drop("1 of 2: chunked prefill off, the long prompt takes one step");
      await controls.set({ enable_chunked_prefill: true, max_num_batched_tokens: budget });
      await this._drop(`2 of 2: chunked prefill on, ${count(budget)} tokens a step`);
      this._conclude(budget);
    } finally {
      const excerpt = state.excerpt(from);
      if (excerpt.length) this.view.hold(excerpt);
      if (isOurs) load.stopBackground();
      // As it was, but with the smaller budget: the next long prompt shows it again.
      if (state.hello.has_controls && !before.enable_chunked_prefill) {
        await controls.set({ enable_chunked_prefill: false });
      }
    }
  }

  async _drop(text) {
    write("demo-status", `${text} …`);
    await this._steps(STEPS_BEFORE);
    await this.load.dropLongPrompt();
    await this._steps(STEPS_AFTER);
  }

  _conclude(budget) {
    const { off, on } = this.state.largest;
    if (!off || !on) return;
    write(
      "demo-status",
      `${plural(this.state.hello.long_prompt_tokens, "prompt token")} in one step: no stream moved for ${ms(off.ms)} ms. ` +
        `In chunks of ${count(budget)}: ${ms(on.ms)} ms at most.`,
    );
  }

  /** Wait until the engine has computed so many steps more. */
  async _steps(count) {
    const until = this.state.numSteps + count;
    while (this.state.numSteps < until) {
      if (this._failed) throw this._failed;
      if (!this.load.isBackgroundOn) return; // the streams were stopped: no step would come
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
