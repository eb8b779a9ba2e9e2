// Functions that all widgets share: elements, number formats, themes, scales, virtual lists.
// Each widget's module is this file followed by its own (see view.py), so nothing is imported or downloaded.
// Text is inserted as text nodes only, so that a model's output is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null && child !== false));
  return node;
}
const h = (tag, attrs = {}, ...children) => build(document.createElement(tag), attrs, children);
const s = (tag, attrs = {}, ...children) => build(document.createElementNS(SVG, tag), attrs, children);

const compactNumber = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const smallNumber = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** 0.04217 -> "0.0422", 12345 -> "12.3K", 2e-6 -> "2.0e−6", null -> "–". */
function fmt(x) {
  if (x == null || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  const text = size >= 1e15 || (size > 0 && size < 1e-4) ? x.toExponential(1)
    : size >= 1e4 ? compactNumber.format(x)
      : size >= 100 ? String(Math.round(x)) : smallNumber.format(x);
  return text === "-0" ? "0" : text.replaceAll("-", "−");
}
const signed = (x) => (x > 0 ? "+" : "") + fmt(x);
const fixed = (x, digits) => (x < 0 ? "−" : "") + Math.abs(x).toFixed(digits);
const counted = (n, word, plural = `${word}s`) => `${n} ${n === 1 ? word : plural}`;

function clock(seconds) {
  const t = Math.max(0, Math.round(seconds));
  const pad = (n) => String(n).padStart(2, "0");
  const minutes = Math.floor(t / 60);
  return minutes < 60 ? `${minutes}:${pad(t % 60)}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${pad(t % 60)}`;
}

function extent(values) {
  let [lo, hi] = [Infinity, -Infinity];
  for (const v of values) {
    if (v == null || !Number.isFinite(v)) continue;
    if (v < lo) lo = v;
    if (v > hi) hi = v;
  }
  if (lo > hi) return [0, 1];
  // Values that differ by rounding alone are equal: between them there is no round number for a tick.
  if (hi - lo <= 1e-9 * Math.max(Math.abs(lo), Math.abs(hi))) return lo === 0 ? [0, 1] : [Math.min(lo * 2, 0), Math.max(lo * 2, 0)];
  return [lo, hi];
}

/** About n round numbers in [lo, hi]. */
function ticks(lo, hi, n) {
  const raw = (hi - lo) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const [first, last] = [Math.ceil(lo / step - 1e-9), Math.floor(hi / step + 1e-9)];
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

/** Labels for ticks: those of fmt, or with more digits where it would round a tick. */
function tickLabels(found) {
  const round = (x) => (Math.abs(x) >= 100 && Math.abs(x) < 1e4 ? Math.round(x) : Number(x.toPrecision(3)));
  const exact = found.map((x) => Number(x.toPrecision(10)));
  if (exact.every((x) => round(x) === x)) return exact.map(fmt);
  const digits = Math.max(...exact.map((x) => (String(x).split(".")[1] ?? "").length));
  return exact.map((x) => fixed(x, digits));
}

const scale = (lo, hi, from, to) => (v) => from + ((v - lo) / (hi - lo)) * (to - from);

/** An SVG path through the points; a missing value leaves a gap. */
function linePath(points) {
  let [path, pen] = ["", "M"];
  for (const [x, y] of points) {
    if (y == null || !Number.isFinite(y)) { pen = "M"; continue; }
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  return path;
}

const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
pixel.canvas.width = pixel.canvas.height = 1;

/** [red, green, blue, alpha], 0 to 255, of any CSS colour, including oklch() and color(). */
function rgba(colour) {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  return pixel.getImageData(0, 0, 1, 1).data;
}

/** "light" or "dark", from the background colour behind the widget, so that it follows any host's theme. */
function themeBehind(node) {
  for (let at = node.parentElement; at; at = at.parentElement) {
    const [r, g, b, a] = rgba(getComputedStyle(at).backgroundColor);
    if (a > 128) return 0.299 * r + 0.587 * g + 0.114 * b < 128 ? "dark" : "light";
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Append a widget's root to el. `redraw` runs when the root has a width, and when that changes; CSS handles themes. */
function mount(el, name, redraw) {
  // The attribute stops JupyterLab from handling the arrow keys.
  const root = h("div", { class: `art-nb an-${name}`, "data-lm-suppress-shortcuts": "true" });
  el.append(root);
  let [width, frame] = [0, 0];
  const draw = () => {
    frame = 0;
    if (root.clientWidth) redraw();
  };
  const request = () => { frame ||= requestAnimationFrame(draw); };
  const follow = () => { root.dataset.theme = themeBehind(root); };
  const resized = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    follow();
    request();
  });
  resized.observe(root);
  const themed = new MutationObserver(() => { follow(); setTimeout(follow, 400); });
  for (const node of [document.body, document.documentElement]) themed.observe(node, { attributes: true });
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  preferred.addEventListener("change", follow);
  const stop = () => {
    resized.disconnect();
    themed.disconnect();
    preferred.removeEventListener("change", follow);
    cancelAnimationFrame(frame);
  };
  return { root, request, stop };
}

function tooltip(root) {
  const box = h("div", { class: "an-tip", role: "tooltip", hidden: true });
  root.append(box);
  const hide = () => { box.hidden = true; };
  const show = (target, rows) => {
    box.replaceChildren(...rows.map((row) => h("div", {}, row)));
    box.hidden = false;
    const [outer, at] = [root.getBoundingClientRect(), target.getBoundingClientRect()];
    const left = Math.min(at.left - outer.left, outer.width - box.offsetWidth - 4);
    const above = at.top - outer.top - box.offsetHeight - 6;
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${above < 0 ? at.bottom - outer.top + 6 : above}px`;
  };
  return { show, hide };
}

/** A list that renders only the visible rows. */
function virtualList(box, rowHeight, renderRow) {
  const space = h("div", { class: "an-space" });
  box.append(space);
  let [count, shown] = [0, ""];
  const render = (force) => {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 4);
    const last = Math.min(count, Math.ceil((box.scrollTop + box.clientHeight) / rowHeight) + 4);
    if (!force && shown === `${first}-${last}`) return;
    shown = `${first}-${last}`;
    const rows = [];
    for (let i = first; i < last; i++) {
      const row = renderRow(i);
      row.style.top = `${i * rowHeight}px`;
      rows.push(row);
    }
    space.replaceChildren(...rows);
  };
  box.addEventListener("scroll", () => render(false));
  return {
    render: () => render(true),
    setCount(n) { count = n; space.style.height = `${n * rowHeight}px`; render(true); },
    reveal(i) {
      const top = i * rowHeight;
      if (top < box.scrollTop) box.scrollTop = top;
      else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
      render(true);
    },
  };
}

const iconButton = (label, text, onclick) =>
  h("button", { type: "button", class: "an-button", "aria-label": label, title: label, onclick }, text);

function select(label, options, onchange) {
  const box = h("select", { "aria-label": label, onchange: () => onchange(box.value) },
    ...options.map(([value, text]) => h("option", { value }, text)));
  return { box, field: h("label", { class: "an-field" }, h("span", {}, label), box) };
}

const noKeys = (event) => event.ctrlKey || event.metaKey || event.altKey;
