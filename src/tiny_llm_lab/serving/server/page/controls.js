// The switch and the slider: chunked prefill and its token budget, at once.

import { request } from "./connection.js";
import { count } from "./numbers.js";

export class Controls {
  constructor(state, onError) {
    this.state = state;
    this.onError = onError;
    this.chunked = document.getElementById("chunked");
    this.budget = document.getElementById("budget");
    this.output = document.getElementById("budget-output");
    this.chunked.addEventListener("change", () => this._send());
    this.budget.addEventListener("change", () => this._send());
    this.budget.addEventListener("input", () => this._label());
  }

  /** Show the engine's configuration. */
  show() {
    const { hello, config } = this.state;
    const { has_controls: isOn } = hello;
    this.chunked.disabled = this.budget.disabled = !isOn;
    document.getElementById("controls-note").hidden = isOn !== false;
    this.budget.min = hello.min_budget ?? 64;
    this.chunked.checked = config.enable_chunked_prefill;
    if (config.enable_chunked_prefill && document.activeElement !== this.budget) {
      this.budget.value = config.max_num_batched_tokens;
    }
    this._label();
  }

  /** Configure the engine; what is not given stays. */
  async set(change) {
    await request("live/config", { body: change });
  }

  async _send() {
    try {
      await this.set({
        enable_chunked_prefill: this.chunked.checked,
        max_num_batched_tokens: Number(this.budget.value),
      });
    } catch (error) {
      this.onError(error);
      this.show();
    }
  }

  _label() {
    this.output.textContent = `${count(Number(this.budget.value))} tokens`;
  }
}
