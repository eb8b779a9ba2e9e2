// SurrogateExplorer in the browser: the clipped surrogate with a point and two bounds to drag, and its gradient.

const [TOP, BASE, HEIGHT] = [44, 268, 304];
const STATE = ["ratio", "epsilon_low", "epsilon_high", "advantage"];

/** As course.grpo.clipped_surrogate, and its gradient with respect to the ratio (kept on the bound itself). */
function surrogate(ratio, { epsilon_low: low, epsilon_high: high, advantage }) {
  const clipped = Math.min(1 + high, Math.max(1 - low, ratio));
  const cut = (advantage > 0 && ratio > 1 + high) || (advantage < 0 && ratio < 1 - low);
  return { clipped, cut, value: Math.min(ratio * advantage, clipped * advantage), gradient: cut ? 0 : advantage };
}

/** Whether the gradient is cut or kept here, and why, in words. */
function reason(at) {
  const { ratio, epsilon_low: low, epsilon_high: high, advantage } = at;
  const outside = ratio > 1 + high ? "above" : ratio < 1 - low ? "below" : null;
  const bound = outside === "above" ? `1 + ε_high = ${fixed(1 + high, 2)}` : `1 − ε_low = ${fixed(1 - low, 2)}`;
  if (advantage === 0) return ["None", "The advantage is 0: this token pushes the policy nowhere, whatever its ratio."];
  const [good, wish] = advantage > 0 ? ["better", "more likely"] : ["worse", "less likely"];
  if (!outside) {
    return ["Kept", `The ratio lies within the bounds. The completion was ${good} than its group's mean, so a step makes the token ${wish}.`];
  }
  if (surrogate(ratio, at).cut) {
    return ["Cut", `The ratio is ${outside} ${bound}: the policy has already made this token ${wish}, as the advantage asks, ` +
      "by as much as one batch may. The minimum takes the flat, clipped branch."];
  }
  return ["Kept", `The ratio is ${outside} ${bound}, but on the wrong side: the advantage asks for a token that is ${wish}. ` +
    "The minimum takes the unclipped branch, so that the gradient can bring it back."];
}

function render({ model, el }) {
  const view = mount(el, "surrogate", draw);
  const { root } = view;
  const state = () => Object.fromEntries(STATE.map((name) => [name, model.get(name)]));
  const save = () => model.save_changes();
  const put = (values) => {
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    save();
  };
  let x = null; // ratio -> pixels, in the left plot

  const button = (text, label, onclick) => h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  const slider = h("input", {
    type: "range", min: -2, max: 2, step: 0.05, "aria-label": "Advantage",
    oninput: () => model.set("advantage", slider.valueAsNumber), onchange: save,
  });
  const shown = h("b", { class: "an-amount" });
  const bounds = h("p", { class: "an-facts" });
  const back = s("g");
  const chart = s("svg", { role: "group", "aria-label": "Clipped surrogate and its gradient against the ratio" }, back);
  const words = {
    value: h("b", { class: "an-v" }), formula: h("span", { class: "an-muted" }), gradient: h("b", { class: "an-g" }),
    verdict: h("b", { class: "an-verdict" }), why: h("span"),
  };
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "The clipped surrogate of one token"), bounds),
    h("div", { class: "an-tools" },
      h("label", { class: "an-field" }, h("span", {}, "Advantage"), slider, shown),
      button("Flip sign", "Flip the sign of the advantage", () => put({ advantage: 0 - model.get("advantage") })),
      button("PPO 0.2 / 0.2", "Bounds 0.2 and 0.2, as in PPO and GRPO", () => put({ epsilon_low: 0.2, epsilon_high: 0.2 })),
      button("DAPO 0.2 / 0.28", "Bounds 0.2 and 0.28, as in DAPO", () => put({ epsilon_low: 0.2, epsilon_high: 0.28 }))),
    h("div", { class: "an-chart" }, chart),
    h("div", { class: "an-words", "aria-live": "polite" },
      h("p", {}, "Surrogate ", words.value, " ", words.formula),
      h("p", {}, "Gradient with respect to the ratio ", words.gradient),
      h("p", {}, words.verdict, " ", words.why)));

  const ratioAt = (event) => {
    const px = event.clientX - chart.getBoundingClientRect().left;
    return ((px - x(0)) / (x(2) - x(0))) * 2;
  };
  const shared = { step: 0.01, leap: 0.1, done: save };
  const flag = (side) => [
    s("rect", { x: -8, width: 16, y: TOP - 22, height: BASE - TOP + 22, class: "an-hit" }),
    s("line", { y1: TOP - 6, y2: BASE, class: "an-bound" }),
    s("path", { d: `M0 ${TOP - 20}h${side * 13}v14h${-side * 13}z`, class: "an-flag" }),
    s("rect", { x: side < 0 ? -16 : -3, width: 19, y: TOP - 23, height: 20, rx: 3, class: "an-ring" }),
  ];
  const low = handle({
    ...shared, label: "Lower bound, 1 − epsilon low", range: () => [0, 1], get: () => 1 - model.get("epsilon_low"),
    set: (value) => model.set("epsilon_low", Math.round(100 - value * 100) / 100), valueAt: ratioAt, shapes: flag(-1),
  });
  const high = handle({
    ...shared, label: "Upper bound, 1 + epsilon high", range: () => [1, 2], get: () => 1 + model.get("epsilon_high"),
    set: (value) => model.set("epsilon_high", Math.round(value * 100 - 100) / 100), valueAt: ratioAt, shapes: flag(1),
  });
  const point = handle({
    ...shared, label: "Ratio", range: () => [0, 2], get: () => model.get("ratio"), set: (value) => model.set("ratio", value),
    valueAt: ratioAt,
    shapes: [s("circle", { r: 15, class: "an-hit" }), s("circle", { r: 11, class: "an-ring" }), s("circle", { r: 7, class: "an-mark" })],
  });
  chart.append(low.node, high.node, point.node);

  function panel(title, across, y, [lo, hi], at, parts) {
    parts.push(s("text", { x: across(0), y: 12, class: "an-panel" }, title));
    for (const tick of ticks(lo, hi, 6)) {
      parts.push(s("line", { x1: across(0), x2: across(2), y1: y(tick), y2: y(tick), class: tick === 0 ? "an-rule an-zero" : "an-rule" }),
        s("text", { x: across(0) - 8, y: y(tick) + 4, "text-anchor": "end" }, fmt(tick)));
    }
    for (const tick of [0, 0.5, 1, 1.5, 2]) {
      parts.push(s("text", { x: across(tick), y: BASE + 18, "text-anchor": "middle" }, fmt(tick)));
    }
    parts.push(s("text", { x: across(1), y: HEIGHT - 2, "text-anchor": "middle" }, "ratio π / π_old"));
    const from = at.advantage > 0 ? 1 + at.epsilon_high : 0;
    const to = at.advantage > 0 ? 2 : 1 - at.epsilon_low;
    if (at.advantage === 0 || to <= from) return;
    parts.push(s("rect", { x: across(from), width: across(to) - across(from), y: TOP, height: BASE - TOP, class: "an-band" }));
    if (across(to) - across(from) > 30) {
      parts.push(s("text", { x: (across(from) + across(to)) / 2, y: TOP + 14, "text-anchor": "middle" }, "cut"));
    }
  }

  function drawSurrogate(at, y, reach, parts) {
    panel("Surrogate", x, y, reach, at, parts);
    const corners = [0, 1 - at.epsilon_low, 1 + at.epsilon_high, 2];
    parts.push(s("path", { d: linePath([[x(0), y(0)], [x(2), y(2 * at.advantage)]]), class: "an-unclipped" }),
      s("path", { d: linePath(corners.map((r) => [x(r), y(surrogate(r, at).value)])), class: "an-curve" }));
    const { value } = surrogate(at.ratio, at);
    point.node.setAttribute("transform", `translate(${x(at.ratio).toFixed(1)} ${y(value).toFixed(1)})`);
    point.say(`${fixed(at.ratio, 2)}; surrogate ${fixed(value, 3)}`);
    low.node.setAttribute("transform", `translate(${x(1 - at.epsilon_low).toFixed(1)} 0)`);
    low.say(`${fixed(1 - at.epsilon_low, 2)}, epsilon low ${at.epsilon_low}`);
    high.node.setAttribute("transform", `translate(${x(1 + at.epsilon_high).toFixed(1)} 0)`);
    high.say(`${fixed(1 + at.epsilon_high, 2)}, epsilon high ${at.epsilon_high}`);
  }

  function drawGradient(at, across, y, reach, parts) {
    panel("Gradient", across, y, reach, at, parts);
    const jump = at.advantage > 0 ? 1 + at.epsilon_high : 1 - at.epsilon_low;
    const [left, right] = at.advantage > 0 ? [at.advantage, 0] : [0, at.advantage];
    for (const bound of [1 - at.epsilon_low, 1 + at.epsilon_high]) {
      parts.push(s("line", { x1: across(bound), x2: across(bound), y1: TOP, y2: BASE, class: "an-bound an-still" }));
    }
    parts.push(s("path", { d: linePath([[across(0), y(left)], [across(jump), y(left)]]), class: "an-curve" }),
      s("path", { d: linePath([[across(jump), y(right)], [across(2), y(right)]]), class: "an-curve" }),
      s("circle", { cx: across(at.ratio), cy: y(surrogate(at.ratio, at).gradient), r: 6, class: "an-mark" }));
  }

  function draw() {
    const at = state();
    const width = chart.parentElement.clientWidth;
    const half = Math.floor((width - 40) / 2);
    x = scale(0, 2, 40, half);
    const across = scale(0, 2, half + 70, width - 14);
    const most = Math.abs(at.advantage) <= 1 ? 1 : 2;
    const reach = (size) => (at.advantage < 0 ? [-1.08 * size, 0.28 * size] : [-0.28 * size, 1.08 * size]);
    const [values, gradients] = [reach(2 * most), reach(most)];
    const parts = [];
    drawSurrogate(at, scale(...values, BASE, TOP), values, parts);
    drawGradient(at, across, scale(...gradients, BASE, TOP), gradients, parts);
    chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    chart.style.height = `${HEIGHT}px`;
    back.replaceChildren(...parts);
    tell(at);
  }

  function tell(at) {
    const { clipped, value, gradient } = surrogate(at.ratio, at);
    const [ratio, advantage] = [fixed(at.ratio, 2), fixed(at.advantage, 2)];
    slider.value = at.advantage;
    shown.textContent = advantage;
    bounds.textContent = `ε_low ${fixed(at.epsilon_low, 2)}  ·  ε_high ${fixed(at.epsilon_high, 2)}  ·  ratio ${ratio}`;
    words.value.textContent = fixed(value, 4);
    words.formula.textContent = `= min(${ratio} × ${advantage}, ${fixed(clipped, 2)} × ${advantage})`;
    words.gradient.textContent = fixed(gradient, 2);
    [words.verdict.textContent, words.why.textContent] = reason(at).map((text, i) => (i ? text : `${text}.`));
  }

  for (const name of STATE) model.on(`change:${name}`, view.request);
  return () => {
    for (const name of STATE) model.off(`change:${name}`, view.request);
    view.stop();
  };
}

export default { render };
