// AdvantageExplorer in the browser: one column per trajectory, with a draggable reward and three advantages below it.

const [SMALLEST, LARGEST, LIMIT, STD_EPSILON] = [2, 16, 10, 1e-4];
const [GUTTER, TOP, BASE, ROW] = [132, 22, 222, 74];
const PRESETS = {
  "All equal": (n) => Array(n).fill(0.5),
  "One outlier": (n) => Array.from({ length: n }, (_, i) => (i === n - 1 ? 1 : 0)),
  "Half and half": (n) => Array.from({ length: n }, (_, i) => (i < n / 2 ? 0 : 1)),
  "Close together": (n) => Array.from({ length: n }, (_, i) => (50 + (i % 4)) / 100),
};

/** As art_nb.training.grpo.group_advantages: mean, std (n - 1) and the advantages under each normalisation. */
function normalise(rewards, batchStd) {
  const mean = rewards.reduce((sum, r) => sum + r, 0) / rewards.length;
  const equal = rewards.every((r) => r === rewards[0]);
  const none = rewards.map((r) => (equal ? 0 : r - mean));
  const std = Math.sqrt(none.reduce((sum, c) => sum + c * c, 0) / (rewards.length - 1));
  return {
    mean, std, equal, none, group: none.map((c) => c / (std + STD_EPSILON)), batch: none.map((c) => c / (batchStd + STD_EPSILON)),
  };
}

function render({ model, el }) {
  const view = mount(el, "advantage", draw);
  const { root } = view;
  const rewards = () => model.get("rewards");
  const replace = (values) => { model.set("rewards", values); };
  const save = () => model.save_changes();
  let [handles, held, axis] = [[], null, [-1, 2]];

  const button = (text, label, onclick) => h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  const less = button("−", "Remove the last trajectory", () => { replace(rewards().slice(0, -1)); save(); });
  const more = button("+", "Add a trajectory at the mean", () => {
    replace([...rewards(), Math.round(normalise(rewards(), 1).mean * 100) / 100]);
    save();
  });
  const size = h("span", { class: "an-size" });
  const presets = Object.entries(PRESETS).map(([name, make]) => button(name, `${name}: set all rewards`, () => {
    replace(make(rewards().length));
    save();
  }));
  const batch = h("input", {
    type: "number", min: 0.05, max: 100, step: 0.05, "aria-label": "Standard deviation of the batch, set by you",
    onchange: () => {
      if (batch.valueAsNumber > 0 && batch.valueAsNumber <= 100) model.set("batch_std", batch.valueAsNumber);
      batch.value = model.get("batch_std");
      save();
    },
  });
  const facts = h("p", { class: "an-facts" });
  const [back, front] = [s("g"), s("g")];
  const chart = s("svg", { role: "group", "aria-label": "Rewards to drag, and the advantages that follow" }, back, front);
  const detail = h("p", { class: "an-caption", "aria-live": "polite" });
  const notice = h("p", { class: "an-notice", role: "status", hidden: true },
    "No signal: all rewards are equal. Every advantage is zero under each normalisation, and this group teaches nothing.");
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "Rewards of one group, and their advantages"), facts),
    h("div", { class: "an-tools" }, h("span", { class: "an-field" }, h("span", {}, "Trajectories"), less, size, more), ...presets,
      h("label", { class: "an-field" }, h("span", {}, "Batch std (you set it)"), batch)),
    h("div", { class: "an-chart" }, chart), detail, notice);

  const column = (width) => (width - GUTTER - 8) / rewards().length;
  const yOf = (value) => scale(axis[0], axis[1], BASE, TOP)(value);

  function makeHandles() {
    handles = rewards().map((_, i) => handle({
      label: `Reward of trajectory ${i + 1}`, vertical: true, step: 0.1, leap: 0.5,
      range: () => (held === i ? axis : [-LIMIT, LIMIT]),
      get: () => rewards()[i],
      set: (value) => replace(rewards().with(i, value)),
      done: () => { held = null; save(); view.request(); },
      valueAt: (event) => {
        held = i;
        const y = event.clientY - chart.getBoundingClientRect().top;
        return scale(BASE, TOP, axis[0], axis[1])(y);
      },
      shapes: [s("circle", { r: 14, class: "an-hit" }), s("circle", { r: 10.5, class: "an-ring" }), s("circle", { r: 6.5, class: "an-mark" })],
    }));
    handles.forEach(({ node }) => { node.addEventListener("focus", explain); node.addEventListener("blur", explain); });
    front.replaceChildren(...handles.map(({ node }) => node));
  }

  function drawRewards(found, width, parts) {
    const step = column(width);
    for (const tick of ticks(axis[0], axis[1], 6)) {
      parts.push(s("line", { x1: GUTTER, x2: width - 8, y1: yOf(tick), y2: yOf(tick), class: "an-rule" }),
        s("text", { x: GUTTER - 8, y: yOf(tick) + 4, "text-anchor": "end" }, fmt(tick)));
    }
    parts.push(s("text", { x: 0, y: 12, class: "an-panel" }, "Reward"));
    const [high, low] = [found.mean + found.std, found.mean - found.std].map((v) => Math.min(BASE, Math.max(TOP, yOf(v))));
    parts.push(s("rect", { x: GUTTER, width: width - 8 - GUTTER, y: high, height: low - high, class: "an-band" }),
      s("line", { x1: GUTTER, x2: width - 8, y1: yOf(found.mean), y2: yOf(found.mean), class: "an-mean" }),
      s("text", { x: 0, y: yOf(found.mean) + 4, class: "an-mean-label" }, `mean ${fmt(found.mean)}`));
    rewards().forEach((reward, i) => {
      const x = GUTTER + (i + 0.5) * step;
      parts.push(s("line", { x1: x, x2: x, y1: yOf(found.mean), y2: yOf(reward), class: "an-stem" }),
        s("text", { x, y: BASE + 18, "text-anchor": "middle" }, String(i + 1)));
      handles[i].node.setAttribute("transform", `translate(${x.toFixed(1)} ${yOf(reward).toFixed(1)})`);
      handles[i].say(`${fmt(reward)}; advantages: ${inWords(found, i)}`);
    });
  }

  function drawRow(name, label, divisor, values, reach, top, width, parts) {
    const step = column(width);
    const zero = top + ROW / 2;
    const y = scale(0, reach, zero, top + 14);
    parts.push(s("text", { x: 0, y: zero - 2, class: "an-panel" }, label), s("text", { x: 0, y: zero + 14 }, divisor),
      s("line", { x1: GUTTER, x2: width - 8, y1: zero, y2: zero, class: "an-rule an-zero" }));
    values.forEach((value, i) => {
      const x = GUTTER + (i + 0.5) * step;
      const wide = Math.min(26, step * 0.6);
      const length = Math.abs(y(value) - zero);
      parts.push(s("rect", { x: x - wide / 2, width: wide, y: Math.min(zero, y(value)), height: length, rx: 1.5, class: value < 0 ? "an-neg" : "an-pos" }));
      if (step < 34) return;
      const [at, text] = [value < 0 ? y(value) + 11 : y(value) - 4, (value > 0.005 ? "+" : "") + fixed(value, 2).replace("−0.00", "0.00")];
      parts.push(s("text", { x, y: at, "text-anchor": "middle", class: "an-number", "data-row": name, "data-i": i }, text));
    });
  }

  function draw() {
    const values = rewards();
    if (handles.length !== values.length) makeHandles();
    if (held == null) axis = [Math.min(-1, Math.floor(Math.min(...values))), Math.max(2, Math.ceil(Math.max(...values)))];
    const found = normalise(values, model.get("batch_std"));
    const width = chart.parentElement.clientWidth;
    const height = BASE + 30 + 3 * ROW;
    const reach = Math.max(1, ...[found.none, found.group, found.batch].flat().map(Math.abs));
    const parts = [];
    drawRewards(found, width, parts);
    drawRow("none", "none (Dr. GRPO)", "reward − mean", found.none, reach, BASE + 28, width, parts);
    drawRow("group", "group (GRPO)", `÷ (${fmt(found.std)} + 0.0001)`, found.group, reach, BASE + 28 + ROW, width, parts);
    drawRow("batch", "batch", `÷ (${fmt(model.get("batch_std"))} + 0.0001)`, found.batch, reach, BASE + 28 + 2 * ROW, width, parts);
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.style.height = `${height}px`;
    back.replaceChildren(...parts);
    facts.textContent = `mean ${fmt(found.mean)}  ·  std (n − 1) ${fmt(found.std)}`;
    size.textContent = String(values.length);
    less.disabled = values.length <= SMALLEST;
    more.disabled = values.length >= LARGEST;
    if (document.activeElement !== batch) batch.value = model.get("batch_std");
    notice.hidden = !found.equal;
    explain();
  }

  const inWords = (found, i) => ["none", "group", "batch"].map((name) => `${name} ${found[name][i] > 0 ? "+" : ""}${fixed(found[name][i], 4)}`).join(", ");

  function explain() {
    const i = handles.findIndex(({ node }) => node === document.activeElement);
    detail.textContent = i < 0
      ? "Drag a dot, or reach it with Tab and move it with the arrow keys (0.1; with Shift 0.5). Line and band: mean ± std. The three rows share one scale."
      : `Trajectory ${i + 1}  ·  reward ${fmt(rewards()[i])}  ·  advantage: ${inWords(normalise(rewards(), model.get("batch_std")), i)}`;
  }

  model.on("change:rewards", view.request);
  model.on("change:batch_std", view.request);
  return () => {
    model.off("change:rewards", view.request);
    model.off("change:batch_std", view.request);
    view.stop();
  };
}

export default { render };
