// A conversation with the model, streamed.

import { events, request } from "./connection.js";

const MAX_TOKENS = 300;

export class Chat {
  constructor(state) {
    this.state = state;
    this.messages = [];
    this.log = document.getElementById("chat-log");
    this.input = document.getElementById("chat-input");
    this.send = document.getElementById("chat-send");
    this.stop = document.getElementById("chat-stop");
    document.getElementById("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask();
      }
      if (event.key === "Escape") this._abort?.abort();
    });
    this.stop.addEventListener("click", () => this._abort?.abort());
    document.getElementById("chat-clear").addEventListener("click", () => this.clear());
  }

  clear() {
    this._abort?.abort();
    this.messages = [];
    this.greet();
    this.input.focus();
  }

  /** An empty conversation shows what the model can do, and two questions to press. */
  greet() {
    if (this.messages.length > 0) return;
    const { says, questions } = this.state.hello.greeting;
    this.log.replaceChildren();
    this._show("greeting", says);
    for (const question of questions) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "question";
      button.textContent = question;
      button.addEventListener("click", () => this.ask(question));
      this.log.append(button);
    }
  }

  /** Send a question, or what was typed, and show the answer as it comes. */
  async ask(question = "") {
    const text = question || this.input.value.trim();
    if (!text || this._abort) return;
    if (!question) this.input.value = "";
    const messages = this.messages;
    if (messages.length === 0) this.log.replaceChildren();
    messages.push({ role: "user", content: text });
    this._show("user", text);
    const bubble = this._show("assistant", "");
    this._busy(new AbortController());
    try {
      await this._stream(messages, bubble, this._abort.signal);
    } catch (error) {
      if (error.name !== "AbortError") this._show("problem", error.message);
    } finally {
      if (bubble.textContent) messages.push({ role: "assistant", content: bubble.textContent });
      else bubble.remove();
      this._busy(null);
    }
  }

  async _stream(messages, bubble, signal) {
    const body = { model: this.state.hello.model, messages, stream: true, max_tokens: MAX_TOKENS };
    for await (const event of events(await request("v1/chat/completions", { body, signal }))) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta;
      const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
      bubble.append(delta?.content ?? "");
      if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    }
  }

  _busy(abort) {
    this._abort = abort;
    this.log.setAttribute("aria-busy", String(abort !== null)); // read out whole, not word by word
    this.send.hidden = abort !== null;
    this.stop.hidden = abort === null;
  }

  _show(role, text) {
    const bubble = document.createElement("p");
    bubble.className = `bubble ${role}`;
    bubble.textContent = text;
    this.log.append(bubble);
    this.log.scrollTop = this.log.scrollHeight;
    return bubble;
  }
}
