// The picture in words: for those who do not see it, and for everybody who points at a step.

import { count, ms, plural } from "./numbers.js";

/** A request as the legend names it. */
export function nameOf(state, request) {
  const tokens = state.requests.get(request);
  return tokens === undefined ? `request ${request}` : `request ${request}, ${plural(tokens, "prompt token")}`;
}

/** How far the prompts are, and why the last one was computed. */
export function promptsText(state) {
  const lines = state.prompts.slice(0, 3).map(({ request, done, total, left }) => {
    const seconds = left === null ? "" : `, about ${plural(Math.ceil(left), "second")} left`;
    return `Request ${request}: ${count(done)} of ${plural(total, "prompt token")}${seconds}`;
  });
  return [...lines, ...(state.reuse ? [state.reuse] : [])].join("\n");
}

/** One step in a line. */
export function stepText(state, step) {
  const parts = step.parts.map(
    ({ request, tokens, isDecode }) => `request ${request} ${isDecode ? "decodes" : "prompt"} ${count(tokens)}`,
  );
  const shown = parts.length > 5 ? [...parts.slice(0, 5), `and ${parts.length - 5} more`] : parts;
  const gap = Math.max(0, ...step.gaps.map((each) => each.ms));
  const gaps = gap ? `; largest gap ${ms(gap)} ms` : "";
  return `Step ${count(step.number)}: ${plural(step.total, "token")} of ${count(step.budget)} in ${ms(step.ms)} ms (${shown.join(", ")})${gaps}`;
}

/** All that is drawn, in two sentences. */
export function summaryText(state) {
  const steps = state.steps;
  if (!steps.length) return "The engine is idle: no step has been recorded yet.";
  const prompts = steps.filter((step) => step.parts.some((part) => !part.isDecode));
  const longest = steps.reduce((most, step) => (step.ms > most.ms ? step : most));
  const largest = steps.flatMap((step) => step.gaps).reduce((most, gap) => Math.max(most, gap.ms), 0);
  const mode = state.config.enable_chunked_prefill
    ? `on, ${count(state.config.max_num_batched_tokens)} tokens a step`
    : "off, a prompt takes one step";
  return (
    `Of ${plural(steps.length, "step")}, ${count(prompts.length)} computed prompt tokens; the longest took ` +
    `${ms(longest.ms)} ms for ${plural(longest.total, "token")}, and the largest gap between two tokens of a stream ` +
    `was ${ms(largest)} ms. Chunked prefill is ${mode}.`
  );
}
