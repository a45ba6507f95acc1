// The one-click demonstration: streams, a long prompt without chunked prefill, the same with it.

import { count, ms, plural } from "./numbers.js";
import { write } from "./view.js";

const BUDGET = 256;
const TOKENS_BEFORE = 90;
const TOKENS_AFTER = 60;

export class Demo {
  constructor(state, load, controls) {
    Object.assign(this, { state, load, controls });
  }

  /** Show both ways; without controls, the way in which the engine runs. */
  async run() {
    const { state, load, controls } = this;
    const before = { ...state.config };
    const isOurs = !load.isBackgroundOn;
    const streams = isOurs ? load.startBackground() : Promise.resolve();
    streams.catch((error) => this._failed ??= error);
    state.reset();
    try {
      if (!state.hello.has_controls) return await this._drop("The long prompt arrives");
      const budget = Math.max(BUDGET, state.hello.min_budget);
      await controls.set({ enable_chunked_prefill: false });
      await this._drop("1 of 2: chunked prefill off, the long prompt takes one step");
      await controls.set({ enable_chunked_prefill: true, max_num_batched_tokens: budget });
      await this._drop(`2 of 2: chunked prefill on, ${count(budget)} tokens a step`);
      this._conclude(budget);
    } finally {
      if (isOurs) load.stopBackground();
      // As it was, but with the smaller budget: the next long prompt shows it again.
      if (state.hello.has_controls && !before.enable_chunked_prefill) {
        await controls.set({ enable_chunked_prefill: false });
      }
    }
  }

  async _drop(text) {
    write("demo-status", `${text} …`);
    await this._tokens(TOKENS_BEFORE);
    await this.load.dropLongPrompt();
    await this._tokens(TOKENS_AFTER);
  }

  _conclude(budget) {
    const { off, on } = this.state.largest;
    if (!off || !on) return;
    write(
      "demo-status",
      `With ${plural(this.state.hello.long_prompt_tokens, "prompt token")} in one step the streams stood still for ` +
        `${ms(off.ms)} ms. In chunks of at most ${count(budget)} tokens the longest gap was ${ms(on.ms)} ms.`,
    );
  }

  /** Wait until the engine has computed so many steps more. */
  async _tokens(count) {
    const until = this.state.numSteps + count;
    while (this.state.numSteps < until) {
      if (this._failed) throw this._failed;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
