// What the pages do on top of mdBook's own script. Nothing on them is missing without it.
"use strict";

const SHORT = 26; // letters of code that fit into a line of a phone

// Sliders below the figures that have a frame for each setting. book/figures has drawn all frames with the
// reference: this only picks one. Without it a page shows the first.
for (const [name, figure] of Object.entries(globalThis.tinyLlmFrames)) {
  const images = [...document.querySelectorAll(`main img[src$="figures/${name}.svg"]`)];
  // mdBook has two of each: one in the text, and one that a tap shows alone.
  for (const paragraph of new Set(images.map((image) => image.closest("p")))) {
    paragraph.after(knobsOf(paragraph.querySelectorAll("img"), figure));
  }
}

function knobsOf(images, { sliders, start, says }) {
  const source = images[0].getAttribute("src");
  const box = document.createElement("div");
  box.className = "knobs";
  const said = document.createElement("output");
  const inputs = Object.entries(sliders).map(([name, values], place) => {
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min: 0, max: values.length - 1, step: 1 });
    input.value = values.indexOf(start[place]);
    const value = document.createElement("output");
    const label = document.createElement("label");
    const code = document.createElement("code");
    code.textContent = name;
    label.append(code, " ", value, input);
    box.append(label);
    return { input, value, chosen: () => values[input.value] };
  });
  const show = () => {
    for (const { input, value, chosen } of inputs) {
      value.textContent = chosen();
      input.setAttribute("aria-valuetext", chosen()); // not its place among the values
    }
    const setting = inputs.map(({ chosen }) => chosen()).join("-");
    for (const image of images) image.src = `${source}#${setting}`;
    said.textContent = says[setting];
  };
  box.addEventListener("input", show);
  box.append(said);
  show();
  return box;
}

// The recorded run is in a frame, which does not know the theme of the page.
const recorded = document.querySelector(".live-replay");
if (recorded) {
  const root = document.documentElement;
  const tell = () => recorded.contentWindow.postMessage(getComputedStyle(root).colorScheme, "*");
  recorded.addEventListener("load", tell);
  new MutationObserver(tell).observe(root, { attributeFilter: ["class"] });
}

// No line ends inside a flag: `--prefill-step` goes to the next one as a whole.
for (const code of document.querySelectorAll("main :not(pre) > code")) {
  const text = code.textContent;
  const isOne = text.length <= SHORT && !code.closest("table"); // where columns are narrow
  const words = isOne ? [text] : text.split(/( )/);
  code.replaceChildren(...words.map((word) => (word === " " || word.length > SHORT ? word : whole(word))));
}

function whole(word) {
  const span = document.createElement("span");
  span.className = "whole";
  span.textContent = word;
  return span;
}
