// Numbers as people read them.

export function count(value) {
  return value.toLocaleString("en");
}

/** Milliseconds with as many digits as matter. */
export function ms(value) {
  return value < 10 ? value.toFixed(1) : count(Math.round(value));
}

/** A round number of milliseconds, as an axis has it. */
export function duration(value) {
  return value < 1000 ? `${count(value)} ms` : `${count(value / 1000)} s`;
}

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** The next 1, 2 or 5 times a power of ten. */
export function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value);
}
