// Colours from the style sheet, so that light and dark are decided in one place, and the hatching of prompts.

const NUM_COLOURS = 6;

/** The colours that count now. */
export function readTheme(element = document.documentElement) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: read("text"),
    muted: read("muted"),
    grid: read("grid"),
    surface: read("surface"),
    alarm: read("alarm"),
    tint: read("tint"),
    bar: read("bar"),
    requests: Array.from({ length: NUM_COLOURS }, (_, i) => read(`request-${i}`)),
    patterns: new Map(),
  };
}

export function colourIndex(request) {
  return request % NUM_COLOURS;
}

export function colourOf(theme, request) {
  return theme.requests[colourIndex(request)];
}

/** Tokens of a prompt are hatched in the colour of their request; decodes are plain. */
export function hatched(context, theme, request) {
  const colour = colourOf(theme, request);
  if (!theme.patterns.has(colour)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 8, 8);
    brush.strokeStyle = theme.surface;
    brush.lineWidth = 2;
    brush.globalAlpha = 0.75;
    brush.beginPath();
    for (const x of [-8, 0, 8]) {
      brush.moveTo(x - 1, 9);
      brush.lineTo(x + 9, -1);
    }
    brush.stroke();
    theme.patterns.set(colour, context.createPattern(tile, "repeat"));
  }
  return theme.patterns.get(colour);
}
