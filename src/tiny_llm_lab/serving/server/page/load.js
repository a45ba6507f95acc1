// What the page's buttons put on the engine: streams in the background, and a long prompt.

import { events, request } from "./connection.js";

const NUM_STREAMS = 3;
const STREAM_TOKENS = 1000;
const ROUNDS = 20; // a page that is left open does not compute for ever
const LONG_PROMPT_ANSWER = 4;
const ORDINARY_TOKENS = 1000; // the first of a vocabulary: control tokens come at its end

export class Load {
  constructor(state) {
    this.state = state;
    this._background = null;
  }

  get isBackgroundOn() {
    return this._background !== null;
  }

  /** Keep streams running until `stopBackground`; they are one request, as browsers open few connections. */
  async startBackground() {
    const abort = (this._background = new AbortController());
    const max_tokens = Math.min(STREAM_TOKENS, this.state.hello.max_model_len >> 1);
    try {
      for (let round = 0; round < ROUNDS && !abort.signal.aborted; round++) {
        const prompt = Array.from({ length: NUM_STREAMS }, () => this._tokens(8));
        await this._complete({ prompt, max_tokens, ignore_eos: true, temperature: 1 }, abort.signal);
      }
    } finally {
      if (this._background === abort) this._background = null;
    }
  }

  stopBackground() {
    this._background?.abort();
    this._background = null;
  }

  /** Send a prompt that no prefix cache has, and wait for its short answer. */
  async dropLongPrompt() {
    const prompt = this._tokens(this.state.hello.long_prompt_tokens);
    await this._complete({ prompt, max_tokens: LONG_PROMPT_ANSWER, ignore_eos: true });
  }

  async _complete(body, signal) {
    const asked = { model: this.state.hello.model, stream: true, ...body };
    try {
      for await (const event of events(await request("v1/completions", { body: asked, signal }))) {
        if (event.error) throw new Error(event.error.message);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  _tokens(count) {
    const most = Math.min(this.state.hello.vocab_size >> 1, ORDINARY_TOKENS);
    return Array.from({ length: count }, () => Math.floor(Math.random() * most));
  }
}
