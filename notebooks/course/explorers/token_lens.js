// TokenLens in the browser: the tokens as chips, a line of numbers for the selected token, and a sortable table.

const ROW = 24;
const COLOURED = ["logprob", "ratio", "KL", "advantage"];
const COLUMNS = ["logprob", "reference", "old", "ratio", "clipped?", "KL", "advantage"]; // a saved notebook sorts the keys of an object

const visible = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·") || "∅";

function cell(name, value) {
  if (name === "clipped?") return value ? "yes" : "no";
  if (name === "advantage") return value == null ? "–" : signed(value);
  return value != null && Math.abs(value) < 1000 && Math.abs(value) >= 1e-3 ? fixed(value, 3) : fmt(value);
}

/** Return a quantity's colour scale. of: value -> [CSS variable, strength 0 to 1]; ends: the labels of its ends. */
function palette(name, values) {
  const known = values.filter((value) => value != null);
  if (name === "logprob") return { ramp: "one", ends: ["sure (0)", "surprising (−4 or less)"], of: (x) => ["--an-surprise", -x / 4] };
  if (name === "KL") {
    const most = extent(known)[1];
    return { ramp: "one", ends: ["0", fmt(most)], of: (x) => ["--an-surprise", x / most] };
  }
  const from = name === "ratio" ? Math.log : (x) => x;
  const most = known.reduce((top, x) => Math.max(top, Math.min(20, Math.abs(from(x)))), name === "ratio" ? Math.log(1.25) : 0) || 1;
  const ends = name === "ratio" ? [`× ${fmt(Math.exp(-most))}`, `× ${fmt(Math.exp(most))}`] : [fmt(-most), signed(most)];
  return { ramp: "two", ends, of: (x) => [from(x) < 0 ? "--an-orange" : "--an-blue", Math.abs(from(x)) / most] };
}

function render({ model, el }) {
  const view = mount(el, "lens", () => renderRows(true));
  const { root } = view;
  const tokens = model.get("tokens");
  const columns = model.get("columns");
  const names = COLUMNS.filter((name) => name in columns);
  const heads = ["#", "token", ...names];
  const clipped = columns["clipped?"];
  const valuesOf = (head) => (head === "#" ? tokens.map((_, i) => i) : head === "token" ? tokens : columns[head]);
  let [order, sorted, at, seen] = [valuesOf("#"), ["#", "ascending"], 0, ""];

  const colour = select("Colour", COLOURED.filter((name) => name in columns).map((name) => [name, name]), paint);
  const legend = h("span", { class: "an-legend" });
  const chips = tokens.map((token, i) => h("span", {
    class: clipped?.[i] ? "an-chip an-clipped" : "an-chip", role: "option", tabindex: i ? -1 : 0, "data-i": i,
  }, visible(token)));
  const chipBox = h("div", { class: "an-chips", role: "listbox", "aria-label": "Tokens. Left and right: token." },
    ...chips.flatMap((chip, i) => (tokens[i].includes("\n") ? [chip, h("br")] : [chip])));
  const facts = heads.slice(1).map((head) => ({ head, value: h("b", {}) }));
  const now = h("p", { class: "an-now", "aria-live": "polite" },
    ...facts.map(({ head, value }) => h("span", {}, h("span", { class: "an-muted" }, head), value)));
  const headCells = heads.map((head) => h("th", { scope: "col", "data-head": head },
    h("button", { type: "button", onclick: () => sort(head) }, head)));
  const body = h("tbody");
  const rows = h("div", { class: "an-rows", tabindex: 0, role: "region", "aria-label": "Table of the tokens" },
    h("table", { "aria-rowcount": tokens.length + 1 }, h("thead", {}, h("tr", {}, ...headCells)), body));
  const count = counted(tokens.length, "token");
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, model.get("title") || "One completion"),
      h("p", { class: "an-facts" }, clipped ? `${count}  ·  ${clipped.filter(Boolean).length} clipped (underlined)` : count)),
    h("div", { class: "an-tools" }, colour.field, legend), chipBox, now, rows);

  function paint() {
    const name = colour.box.value;
    const { ramp, ends, of } = palette(name, columns[name]);
    chips.forEach((chip, i) => {
      const [variable, strength] = columns[name][i] == null ? ["--an-fg", 0] : of(columns[name][i]);
      const share = Math.round(Math.max(0, Math.min(1, strength)) * (ramp === "one" ? 75 : 65));
      chip.style.background = share ? `color-mix(in srgb, var(${variable}) ${share}%, transparent)` : "var(--an-faint)";
    });
    legend.replaceChildren(h("span", {}, ends[0]), h("i", { class: `an-ramp an-ramp-${ramp}` }), h("span", {}, ends[1]));
  }

  function sort(head) {
    const [before, direction] = sorted;
    sorted = [head, before === head && direction === "ascending" ? "descending" : "ascending"];
    const values = valuesOf(head);
    const way = sorted[1] === "ascending" ? 1 : -1;
    const compare = head === "token" ? (a, b) => values[a].localeCompare(values[b]) : (a, b) => values[a] - values[b];
    // A number that is missing comes last whichever way one sorts; equal ones stay in the order of the text.
    order = valuesOf("#").sort((a, b) => (values[a] == null) - (values[b] == null) || way * compare(a, b) || a - b);
    showSorted();
    rows.scrollTop = 0;
    renderRows(true);
  }

  function showSorted() {
    for (const th of headCells) {
      const mine = th.dataset.head === sorted[0];
      th.setAttribute("aria-sort", mine ? sorted[1] : "none");
      th.firstChild.textContent = th.dataset.head + (mine ? (sorted[1] === "ascending" ? " ▴" : " ▾") : "");
    }
  }

  /** Only the rows in sight are in the page; two empty rows keep the height of the others. */
  function renderRows(force) {
    const first = Math.max(0, Math.floor(rows.scrollTop / ROW) - 5);
    const last = Math.min(order.length, Math.ceil((rows.scrollTop + rows.clientHeight) / ROW) + 5);
    if (!force && seen === `${first}-${last}`) return;
    seen = `${first}-${last}`;
    const gap = (count) => (count ? [h("tr", { class: "an-gap", "aria-hidden": "true", style: `height:${count * ROW}px` })] : []);
    body.replaceChildren(...gap(first), ...order.slice(first, last).map((i, k) => h("tr", {
      "data-i": i, class: i === at ? "an-on" : null, "aria-rowindex": first + k + 2,
    }, h("td", {}, String(i)), h("td", {}, visible(tokens[i])), ...names.map((name) => h("td", {
      class: name === "clipped?" && columns[name][i] ? "an-cut" : null,
    }, cell(name, columns[name][i]))))), ...gap(order.length - last));
  }

  function show(i) {
    for (const { head, value } of facts) value.textContent = head === "token" ? `${visible(tokens[i])}  (${i})` : cell(head, columns[head][i]);
  }

  /** Select token i: its chip, its row and its numbers. */
  function choose(i) {
    chips[at].tabIndex = -1;
    chips[at].classList.remove("an-on");
    chips[at].setAttribute("aria-selected", "false");
    at = Math.max(0, Math.min(tokens.length - 1, i));
    chips[at].tabIndex = 0;
    chips[at].classList.add("an-on");
    chips[at].setAttribute("aria-selected", "true");
    show(at);
    renderRows(true);
  }

  function revealRow() {
    const top = order.indexOf(at) * ROW;
    const room = rows.clientHeight - 28;
    if (top < rows.scrollTop) rows.scrollTop = top;
    else if (top + ROW > rows.scrollTop + room) rows.scrollTop = top + ROW - room;
    renderRows(true);
  }

  const hovered = (event) => event.target.closest("[data-i]");
  for (const box of [chipBox, rows]) {
    box.addEventListener("pointerover", (event) => show(hovered(event) ? Number(hovered(event).dataset.i) : at));
    box.addEventListener("pointerleave", () => show(at));
  }
  chipBox.addEventListener("focusin", (event) => { choose(Number(event.target.dataset.i)); revealRow(); });
  chipBox.addEventListener("click", (event) => hovered(event)?.focus());
  chipBox.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to == null || noKeys(event)) return;
    event.preventDefault();
    chips[Math.max(0, Math.min(tokens.length - 1, to))].focus();
  });
  body.addEventListener("click", (event) => {
    if (!hovered(event)) return;
    choose(Number(hovered(event).dataset.i));
    const { offsetTop: top, offsetHeight: height } = chips[at];
    if (top < chipBox.scrollTop) chipBox.scrollTop = top - 6;
    else if (top + height > chipBox.scrollTop + chipBox.clientHeight) chipBox.scrollTop = top + height - chipBox.clientHeight + 6;
  });
  rows.addEventListener("scroll", () => renderRows(false));
  paint();
  showSorted();
  choose(0);
  return view.stop;
}

export default { render };
