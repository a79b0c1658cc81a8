"use strict";

// The reports' data, written into the page; texts are numbers into one list.
const data = JSON.parse(document.getElementById("data").textContent);
const text = (index) => data.strings[index];

// Numbers as the text reports write them: ties go to the even digit.
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  if (Number.isInteger(value * 8) && scaled % 1 === 0.5 && Math.floor(scaled) % 2 === 0)
    return (Math.floor(scaled) / 10 ** digits).toFixed(digits);
  return value.toFixed(digits);
}

// Rounded first: 9.996 is 10.0, not 10.00.
function threeFigures(value) {
  let shown = fixed(value, 2);
  for (const [digits, limit] of [[1, 10], [0, 100]])
    if (Number(shown) >= limit) shown = fixed(value, digits);
  return shown;
}

const BYTES = [[1, "B"], [2 ** 10, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"]];
const TIMES = [[1, "us"], [1e3, "ms"], [1e6, "s"]];

function formatBytes(number) {
  const [factor, unit] = BYTES.find(([f, u]) => Math.abs(number) / f < 1000 || u === "TiB");
  const size = Math.abs(number) / factor;
  const shown = unit === "B" ? fixed(size, 0) : threeFigures(size);
  return `${number < 0 ? "-" : ""}${shown} ${unit}`;
}

function formatUs(us) {
  const [factor, unit] = us >= 1e6 ? TIMES[2] : us >= 1e3 ? TIMES[1] : TIMES[0];
  return `${unit === "us" ? fixed(us, 0) : threeFigures(us / factor)} ${unit}`;
}

const formatCount = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const formatShare = (part, whole) => {
  const share = (100 * part) / Math.max(1, whole);
  return share > 0 && share < 0.05 ? "< 0.1 %" : `${fixed(share, 1)} %`;
};

// Layers that differ by their number only are alike: `layer_*/attn`.
const alike = (module) => module.replace(/\d+/g, "*");
function manyAlike(modules) {
  const kinds = new Map();
  for (const module of new Set(modules)) kinds.set(alike(module), (kinds.get(alike(module)) ?? 0) + 1);
  return (module) => kinds.get(alike(module)) >= 4;
}

// A path cut to its last folder and file.
const short = (path) => path.split(/[\\/]/).slice(-2).join("/");

const tone = (name) => `var(--${data.tones[name] ?? "constant"})`;

// Elements are made with text nodes only: no name is ever read as markup.
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (value !== false && value != null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== "" && child != null));
  return element;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const SVG = document.querySelector("svg").namespaceURI;
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const pen = document.createElement("canvas").getContext("2d");
function widthOf(string, font) {
  pen.font = font;
  return pen.measureText(string).width;
}

// The first of some wordings that fits; else nothing.
const fitting = (wordings, width, font) => wordings.find((w) => w && widthOf(w, font) <= width) ?? "";

const bodyFont = (size, weight = "") => `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
const monoFont = (size) => `${size}px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;

// A number under an axis, moved where it would leave the drawing.
function axisLabel(x, y, label, width) {
  const half = widthOf(label, bodyFont(12)) / 2;
  return draw("text", { x: Math.max(half, Math.min(width - half, x)), y, "text-anchor": "middle" }, label);
}

// Round numbers from `from` to `to`, as [value, label], at most `count` apart from the first.
function ticks(from, to, count, units) {
  const unit = units.findLast(([factor]) => factor <= Math.max(to, units[0][0])) ?? units[0];
  const raw = (to - from) / unit[0] / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let k = Math.ceil(from / unit[0] / step - 1e-9); k * step <= (to / unit[0]) * 1.000001; k++) {
    const number = (k * step).toFixed(digits);
    found.push([k * step * unit[0], k === 0 ? "0" : `${unit[1] ? number : formatCount(number)} ${unit[1]}`.trim()]);
  }
  return found;
}

// One tooltip for the whole page.
const tip = document.getElementById("tip");
function showTip(x, y, heading, lines = [], rows = []) {
  tip.replaceChildren(
    make("div", { class: "name" }, heading),
    ...lines.filter(Boolean).map((line) => make("div", { class: "q" }, line)),
    rows.length
      ? make("table", {}, ...rows.map(([colour, name, value, kind]) =>
          make("tr", { class: kind ?? "" },
            make("td", {}, colour ? make("i", { class: `dot ${colour.class ?? ""}`, style: colour.class ? {} : { background: colour } }) : "", name),
            make("td", { class: "n" }, value))))
      : "");
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const beside = x + 16 + width > innerWidth - 8 ? x - 16 - width : x + 16;
  const left = Math.max(8, Math.min(innerWidth - width - 8, beside));
  const top = Math.max(8, Math.min(innerHeight - height - 8, y - height / 2));
  tip.style.transform = `translate(${left}px, ${top}px)`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

// Draws when the width changes, and only then; for paper, at a width that every sheet has.
const SHEET = 620;
function whenResized(host, render) {
  let width = 0;
  const check = () => {
    if (host.clientWidth && Math.abs(host.clientWidth - width) >= 1) {
      width = host.clientWidth;
      render();
    }
  };
  new ResizeObserver(check).observe(host);
  const setWidth = (value) => { host.style.width = value; check(); };
  addEventListener("beforeprint", () => setWidth(`${SHEET}px`));
  addEventListener("afterprint", () => setWidth(""));
  check();
}
