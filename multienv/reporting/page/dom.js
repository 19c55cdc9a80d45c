// Decides how values become elements and words. Whatever comes from an environment goes through `text`, as a text node.

const SVG = "http://www.w3.org/2000/svg";
const MISSING = "–";

/** Make an element; `on...` are listeners, `class` and the rest attributes, children nodes or texts. */
function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an SVG element. */
function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Give an element a style property; attributes named style are not allowed by the page's policy. */
function styled(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
  return element;
}

/** Make what cannot be seen visible: control characters, and those that turn the direction of writing. */
function text(value) {
  return String(value)
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
      (c) => `[U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
}

const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const whole = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });

/** Write a number with three digits that matter. */
function number(value) {
  if (value === null || value === undefined) return MISSING;
  if (typeof value !== "number") return text(value);
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return whole(value);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3 });
}

/** Write a reward, with its sign kept apart from a dash. */
const reward = (value) => number(value).replace(/^-/, "\u2212");

/** Write a mean, with as many digits as its neighbours of the same size. */
function mean(value) {
  const size = Math.abs(value);
  if (typeof value !== "number" || size >= 1000 || (size > 0 && size < 0.1)) return reward(value);
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0).replace(/^-/, "\u2212");
}

function percent(value) {
  if (value === null || value === undefined) return MISSING;
  const part = value * 100;
  if (part > 0 && part < 0.1) return "<0.1%";
  if (part < 100 && part > 99.9) return ">99.9%";
  return `${part.toFixed(part < 10 && part > 0 ? 1 : 0)}%`;
}

/** Write a duration given in seconds. */
function duration(seconds) {
  if (typeof seconds !== "number") return seconds === null || seconds === undefined ? MISSING : text(seconds);
  if (seconds < 0.0995) return `${number(seconds * 1000)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${number(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 90) return `${number(minutes)} min`;
  const hours = Math.round(minutes) / 60;
  return hours < 48 ? `${Math.floor(hours)} h ${Math.round((hours % 1) * 60)} min` : `${number(hours / 24)} days`;
}

/** Write a large count shortly. */
function short(value) {
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return number(value / (letter === "k" ? 1e3 : size)) + letter;
  }
  return whole(value);
}

/** Write a moment given in Unix seconds, in the reader's own time. */
function moment(seconds) {
  const date = new Date(seconds * 1000);
  if (typeof seconds !== "number" || !(seconds > 0) || Number.isNaN(date.getTime())) return MISSING;
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

/** Write from when until when; a day is named once. */
function span(first, last) {
  const [begin, end] = [moment(first), moment(last)], day = begin.slice(0, -5);
  return begin === end ? begin : `${begin} to ${end.startsWith(day) ? end.slice(-5) : end}`;
}

/** Name the training steps that a point stands for. */
const steps = (first, last) => (first === last ? `step ${whole(first)}` : `steps ${whole(first)}–${whole(last)}`);

/** Read the data that the page carries. */
const carried = (id) => JSON.parse(document.getElementById(id).textContent);

function swatch(look) {
  return s("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" },
    s("line", { x1: 1, x2: 21, y1: 5, y2: 5, class: `stroke-${look.colour}`, "stroke-width": 3, "stroke-dasharray": look.dash || undefined }));
}

const pill = (status) => h("span", { class: `pill ${status}` }, status);

/** Lay out a section of the page. */
function section(id, title, note, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` },
    h("div", { class: "section-head" }, h("h2", { id: `${id}-title` }, title), note ? h("p", { class: "note" }, note) : null), children);
}
