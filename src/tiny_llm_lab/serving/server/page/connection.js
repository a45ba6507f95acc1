// Requests to the server, with the API key if it asks for one, and server-sent events.

const KEY = "tiny-llm-api-key";
let askForKey = async () => null;

/** `ask` shows a dialog and resolves to a key, or to null. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Whether somebody gave a key. */
export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Thrown if the server asks for a key, and nobody gives one. */
export class NoKeyError extends Error {}

/** The response to a request; throws an Error with the server's message for any status but 2xx. */
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: {
        ...(body !== undefined && { "Content-Type": "application/json" }),
        ...(key && { Authorization: `Bearer ${key}` }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
    if (response.ok) return response;
    if (response.status === 401) {
      const given = await askForKey();
      if (given) {
        sessionStorage.setItem(KEY, given);
        continue;
      }
      throw new NoKeyError("This server asks for an API key: load the page again to give it.");
    }
    throw new Error(await complaint(response));
  }
}

/** The data of every event of a response, as JSON, until its end or [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue; // a comment keeps the connection alive
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function complaint(response) {
  const text = await response.text();
  try {
    const found = JSON.parse(text);
    return found.error?.message ?? found.detail ?? text;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}
