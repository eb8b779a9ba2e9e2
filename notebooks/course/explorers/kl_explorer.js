// KLExplorer in the browser: a policy that can be moved, and the distribution of three estimators under its samples.

const NAMES = [..."abcdefghi"];
const REFERENCE = { centre: 4, width: 1.5 };
const LIMITS = { shift: [-3, 3], width: [0.5, 4] };
const STEP = 0.05;
const REPEATS = 2000;
const BINS = 36;
const BELOW_ZERO = -1e-12;  // k3 of two equal probabilities may come out as -1e-17
const ESTIMATORS = {
  k1: ["log (π / π ref)", (logRatio) => logRatio],
  k2: ["½ (log (π / π ref))²", (logRatio) => logRatio ** 2 / 2],
  k3: ["r − 1 − log r,  r = π ref / π", (logRatio) => Math.exp(-logRatio) - 1 + logRatio],
};

/** Log-probabilities of a Gaussian bump taken at the tokens, and the height of its peak on the same scale. */
function bump(centre, width) {
  const logits = NAMES.map((_, i) => -((i - centre) ** 2) / (2 * width ** 2));
  const top = Math.max(...logits);
  const total = top + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - top), 0));
  return { logp: logits.map((x) => x - total), at: (x) => Math.exp(-((x - centre) ** 2) / (2 * width ** 2) - total), peak: Math.exp(-total) };
}

const expectation = (p, values) => p.reduce((sum, chance, i) => sum + chance * values[i], 0);

/** Uniform numbers in [0, 1) from a seed (mulberry32): the same draws at every redraw, so that dragging shows no flicker. */
function seeded(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), 1 | state);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}

/** How often each token comes up in n draws of p, REPEATS times. */
function drawCounts(p, n) {
  const random = seeded(7);
  const bounds = p.map((_, i) => expectation(p.slice(0, i + 1), p.slice(0, i + 1).fill(1)));
  return Array.from({ length: REPEATS }, () => {
    const counts = p.map(() => 0);
    for (let k = 0; k < n; k++) {
      const u = random() * bounds.at(-1);
      counts[bounds.findIndex((bound) => u < bound)] += 1;
    }
    return counts;
  });
}

/** The distribution of one estimator as [value, share] pairs: exact for one sample, else of the mean of n samples. */
function outcomes(p, values, n, counts) {
  if (n === 1) return values.map((value, i) => [value, p[i]]);
  return counts.map((times) => [expectation(times, values) / n, 1 / REPEATS]);
}

function spread(pairs) {
  const mean = pairs.reduce((sum, [value, share]) => sum + share * value, 0);
  return Math.sqrt(pairs.reduce((sum, [value, share]) => sum + share * (value - mean) ** 2, 0));
}

/** The values between which all but one percent lies. */
function middle(pairs) {
  const sorted = [...pairs].sort((a, b) => a[0] - b[0]);
  const from = (list) => {
    let left = 0.005;
    return list.find(([, share]) => (left -= share) <= 0)?.[0] ?? list.at(-1)[0];
  };
  return [from(sorted), from(sorted.reverse())];
}

const digits = (x) => {
  const text = Math.abs(x) < 1000 ? fixed(x, 3) : x.toExponential(1).replace("+", "").replace("-", "−");
  return text === "−0.000" ? "0.000" : text;
};
const percent = (share) => (share > 0 && share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(1)}%`);

function render({ model, el }) {
  const view = mount(el, "kl", draw);
  const { root } = view;
  let [n, grip] = [1, null];

  const exact = (label) => {
    const value = h("b", {});
    return { value, field: h("span", {}, h("span", { class: "an-muted" }, label), value) };
  };
  const forward = exact("KL(policy, reference)");
  const backward = exact("KL(reference, policy)");
  const samples = select("Mean of n samples, n =", [1, 4, 16, 64].map((k) => [String(k), String(k)]), (value) => { n = Number(value); draw(); });
  const plot = s("svg", { class: "an-plot", role: "group", "aria-label": "Probability of each token under the policy and the reference" });
  const back = s("g");
  const handle = s("g", {
    class: "an-handle", tabindex: 0, role: "slider", "aria-label": "Peak of the policy. Left and right: shift. Up and down: width.",
    "aria-valuemin": LIMITS.shift[0], "aria-valuemax": LIMITS.shift[1],
  }, s("circle", { r: 7 }), s("path", { d: "M-12 -4l-5 4l5 4zM12 -4l5 4l-5 4z" }));
  plot.append(back, handle);
  const sliders = Object.fromEntries(Object.entries(LIMITS).map(([name, [min, max]]) => {
    const box = h("input", { type: "range", min, max, step: STEP, "aria-label": name, oninput: () => put({ [name]: Number(box.value) }) });
    const shown = h("output", {});
    return [name, { box, shown, field: h("label", {}, h("span", { class: "an-muted" }, name), box, shown) }];
  }));
  const panels = Object.entries(ESTIMATORS).map(([name, [formula, of]]) => {
    const chart = s("svg", { role: "img" });
    const [mean, std, below] = [h("span", {}), h("span", {}), h("span", {})];
    const box = h("section", { class: "an-estimator", "data-name": name, "aria-label": name },
      h("header", {}, h("strong", {}, name), h("span", { class: "an-muted" }, formula)),
      chart, h("div", { class: "an-stats" }, mean, std, below));
    return { name, of, chart, mean, std, below, box };
  });
  const detail = h("p", { class: "an-caption" });
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "Estimating the KL divergence"), samples.field,
      h("p", { class: "an-facts" }, forward.field, backward.field)),
    h("div", { class: "an-columns" },
      h("div", {},
        h("p", { class: "an-legend" }, h("span", {}, h("i", { class: "an-of-reference" }), "reference"), h("span", {}, h("i"), "policy")),
        plot, h("div", { class: "an-sliders" }, sliders.shift.field, sliders.width.field)),
      h("div", { class: "an-estimators" }, ...panels.map((panel) => panel.box))),
    detail);

  function put(values) {
    for (const [name, value] of Object.entries(values)) {
      const [low, high] = LIMITS[name];
      const whole = Math.round(Math.max(low, Math.min(high, value)) / STEP);
      model.set(name, Number((whole * STEP).toFixed(2)));
    }
    model.save_changes();
  }

  const HEIGHT = 300;
  const [LEFT, TOP, BASE] = [34, 22, HEIGHT - 22];
  const slot = () => (plot.clientWidth - LEFT) / NAMES.length;
  const xOf = (place) => LEFT + (place + 0.5) * slot();
  const placeOf = (event) => (event.clientX - plot.getBoundingClientRect().left - LEFT) / slot() - 0.5;

  function state() {
    const [shift, width] = [model.get("shift"), model.get("width")];
    const [policy, reference] = [bump(REFERENCE.centre + shift, width), bump(REFERENCE.centre, REFERENCE.width)];
    const logRatios = policy.logp.map((x, i) => x - reference.logp[i]);
    return { shift, width, policy, reference, logRatios, p: policy.logp.map(Math.exp), q: reference.logp.map(Math.exp) };
  }

  function draw() {
    const now = state();
    const kl = expectation(now.p, now.logRatios);
    forward.value.textContent = digits(kl);
    backward.value.textContent = digits(-expectation(now.q, now.logRatios));
    for (const [name, { box, shown }] of Object.entries(sliders)) {
      box.value = String(now[name]);
      shown.textContent = fixed(now[name], 2);
    }
    drawBumps(now);
    drawEstimators(now, kl);
    explain(null);
  }

  function drawBumps({ shift, width, policy, reference, p, q }) {
    const y = scale(0, 1.04 * Math.max(policy.peak, reference.peak), BASE, TOP);
    const parts = ticks(0, Math.max(policy.peak, reference.peak), 5).flatMap((tick) => [
      s("line", { x1: LEFT, x2: plot.clientWidth, y1: y(tick), y2: y(tick), class: "an-rule" }),
      s("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, fmt(tick))]);
    const bar = 0.36 * slot();
    NAMES.forEach((name, i) => parts.push(
      s("rect", { x: xOf(i) - bar - 1, width: bar, y: y(q[i]), height: BASE - y(q[i]), class: "an-reference" }),
      s("rect", { x: xOf(i) + 1, width: bar, y: y(p[i]), height: BASE - y(p[i]), class: "an-policy" }),
      s("text", { x: xOf(i), y: BASE + 16, "text-anchor": "middle" }, name)));
    const curve = Array.from({ length: 161 }, (_, k) => k / 20).map((place) => [xOf(place), y(policy.at(place))]);
    parts.push(s("path", { d: linePath(curve), class: "an-curve" }));
    plot.style.height = `${HEIGHT}px`;
    back.replaceChildren(s("rect", { x: LEFT, y: 0, width: Math.max(0, plot.clientWidth - LEFT), height: BASE, fill: "transparent" }), ...parts);
    handle.setAttribute("transform", `translate(${xOf(REFERENCE.centre + shift).toFixed(1)} ${y(policy.peak).toFixed(1)})`);
    handle.setAttribute("aria-valuenow", shift);
    handle.setAttribute("aria-valuetext", `shift ${fixed(shift, 2)}, width ${fixed(width, 2)}`);
  }

  function drawEstimators({ p, logRatios }, kl) {
    const counts = n === 1 ? null : drawCounts(p, n);
    const found = panels.map((panel) => {
      const values = logRatios.map(panel.of);
      return { panel, mean: expectation(p, values), pairs: outcomes(p, values, n, counts) };
    });
    const ends = found.flatMap(({ pairs }) => middle(pairs));
    const [lo, hi] = [Math.min(-0.1, ...ends), Math.max(0.3, kl, ...ends)];
    const bin = (hi - lo) / BINS;
    for (const { panel, mean, pairs } of found) {
      histogram(panel, pairs, kl, bin, Math.floor(lo / bin + 1e-9), Math.ceil(hi / bin + 1e-9) + 1);
      const bias = digits(mean - kl);
      panel.mean.replaceChildren("mean ", h("b", {}, digits(mean)), " bias ", h("b", { class: bias === "0.000" ? null : "an-biased" }, bias));
      panel.std.replaceChildren("std ", h("b", {}, digits(spread(pairs))));
      const below = pairs.reduce((sum, [value, share]) => sum + (value < BELOW_ZERO ? share : 0), 0);
      panel.below.replaceChildren("below 0 ", h("b", {}, percent(below)));
    }
  }

  /** Bins count from zero, so that no bar lies on both sides of it. */
  function histogram({ chart, name }, pairs, kl, bin, first, end) {
    const [width, height] = [chart.clientWidth, 84];
    const base = height - 16;
    const shares = new Map();
    let beyond = 0;
    for (const [value, share] of pairs) {
      const at = Math.floor(value / bin + 1e-9);
      if (at < first || at >= end) beyond += share;
      else shares.set(at, (shares.get(at) ?? 0) + share);
    }
    const x = scale(first * bin, end * bin, 0, width);
    const y = scale(0, Math.max(...shares.values()), base, 6);
    const parts = ticks(first * bin, end * bin, Math.max(2, width / 70)).map((tick) =>
      s("text", { x: x(tick), y: height - 3, "text-anchor": x(tick) < 12 ? "start" : x(tick) > width - 12 ? "end" : "middle" }, fmt(tick)));
    parts.push(s("line", { x1: 0, x2: width, y1: base, y2: base, class: "an-rule" }), s("line", { x1: x(0), x2: x(0), y1: 0, y2: base, class: "an-rule" }));
    for (const [at, share] of shares) {
      parts.push(s("rect", { x: x(at * bin) + 0.5, width: Math.max(1, x(bin) - x(0) - 1), y: y(share), height: base - y(share), class: at < 0 ? "an-neg" : "an-pos" }));
    }
    parts.push(s("line", { x1: x(kl), x2: x(kl), y1: 0, y2: base, class: "an-true" }));
    if (beyond >= 5e-5) parts.push(s("text", { x: width, y: 12, "text-anchor": "end" }, `${percent(beyond)} lie further out`));
    chart.style.height = `${height}px`;
    chart.setAttribute("aria-label", `Histogram of ${name}: most values from ${fmt(first * bin)} to ${fmt(end * bin)}; true KL ${digits(kl)}`);
    chart.replaceChildren(...parts);
  }

  function explain(i) {
    const now = i == null ? null : state();
    detail.textContent = i == null
      ? `${n === 1 ? "Histograms: the exact distribution for one sample." : `Histograms and std: the mean of ${n} samples, repeated ${fmt(REPEATS)} times.`} ` +
        "Dashed: the true KL(policy, reference). Orange: estimates below zero."
      : [`Token ${NAMES[i]}`, `policy ${fmt(now.p[i])}`, `reference ${fmt(now.q[i])}`,
        ...Object.entries(ESTIMATORS).map(([name, [, of]]) => `${name} ${digits(of(now.logRatios[i]))}`)].join("  ·  ");
  }

  plot.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    handle.focus();
    // A drag of the handle keeps its offset from the pointer; a press elsewhere moves the peak to the pointer.
    grip = handle.contains(event.target) ? placeOf(event) - REFERENCE.centre - model.get("shift") : 0;
    plot.setPointerCapture(event.pointerId);
    root.classList.add("an-dragging");
    put({ shift: placeOf(event) - REFERENCE.centre - grip });
  });
  plot.addEventListener("pointermove", (event) => {
    if (grip != null) put({ shift: placeOf(event) - REFERENCE.centre - grip });
    else explain(Math.max(0, Math.min(NAMES.length - 1, Math.round(placeOf(event)))));
  });
  for (const name of ["pointerup", "pointercancel"]) {
    plot.addEventListener(name, () => { grip = null; root.classList.remove("an-dragging"); });
  }
  plot.addEventListener("pointerleave", () => { if (grip == null) explain(null); });
  handle.addEventListener("keydown", (event) => {
    if (noKeys(event)) return;
    const [shift, width, by] = [model.get("shift"), model.get("width"), event.shiftKey ? 0.5 : 0.1];
    const change = {
      ArrowLeft: { shift: shift - by }, ArrowRight: { shift: shift + by }, Home: { shift: -3 }, End: { shift: 3 },
      ArrowUp: { width: width + by }, ArrowDown: { width: width - by },
    }[event.key];
    if (!change) return;
    event.preventDefault();
    put(change);
  });
  model.on("change:shift", view.request);
  model.on("change:width", view.request);
  return () => {
    view.stop();
    model.off("change:shift", view.request);
    model.off("change:width", view.request);
  };
}

export default { render };
