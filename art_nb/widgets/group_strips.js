// A plot of one step's groups: a dot per trajectory, on a strip with the mean and the middle half.

const WIDEST_STRIP = 64;

/** Statistics of a group. `silent`: all rewards are equal up to rounding, as in training. */
function groupFacts(rewards) {
  const sorted = [...rewards].sort((a, b) => a - b);
  const n = sorted.length;
  const quantile = (share) => {
    const place = share * (n - 1);
    const below = sorted[Math.floor(place)];
    return below + (sorted[Math.ceil(place)] - below) * (place % 1);
  };
  const mean = sorted.reduce((sum, reward) => sum + reward, 0) / n;
  const spread = n > 1 ? Math.sqrt(sorted.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / (n - 1)) : 0;
  const [low, high] = [sorted[0], sorted[n - 1]];
  const silent = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  return { n, low, high, mean, spread, q1: quantile(0.25), q3: quantile(0.75), silent };
}

function describeGroup(groups, i) {
  const name = `Group ${i + 1} of ${groups.length}`;
  if (!groups[i].length) return `${name}: no trajectories, because every rollout failed.`;
  const { n, low, high, mean, spread, q1, q3, silent } = groupFacts(groups[i]);
  if (n === 1) return `${name}: one trajectory, reward ${fmt(mean)}. There is nothing to compare it to: no signal.`;
  if (silent) return `${name}: all ${n} trajectories earned ${fmt(mean)}: no signal unless turns have rewards of their own.`;
  return `${name}: ${n} trajectories, rewards ${fmt(low)} to ${fmt(high)}, the middle half ${fmt(q1)} to ${fmt(q3)}, ` +
    `mean ${fmt(mean)}, standard deviation ${fmt(spread)}.`;
}

/** [offset from the centre in dots, reward] for each trajectory, so that dots do not overlap. */
function sideBySide(rewards, y, size) {
  const rows = new Map();
  for (const reward of rewards) {
    const row = Math.round(y(reward) / size);
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push(reward);
  }
  return [...rows.values()].flatMap((row) => row.map((reward, k) => [k - (row.length - 1) / 2, reward]));
}

/** SVG elements of the groups between `left` and `right`; `y` maps a reward. Group `picked` has a frame from `top` to `bottom`. */
function groupStrips(groups, y, { left, right, top, bottom }, picked) {
  const pitch = (right - left) / groups.length;
  const width = Math.min(WIDEST_STRIP, pitch * 0.82);
  const radius = Math.min(3, Math.max(1.3, pitch * 0.2));
  const centre = (i) => left + pitch * (i + 0.5);
  const placed = groups.map((rewards) => sideBySide(rewards, y, 2 * radius));
  const most = Math.max(0.5, ...placed.flat().map(([away]) => away));
  const step = Math.min(2 * radius + 0.5, (width / 2 - radius) / most);
  const [strips, rings] = [[], []];
  const paths = { mean: "", silent: "", pos: "", neg: "", even: "" };
  const line = (i, reward) => `M${(centre(i) - width / 2).toFixed(1)} ${y(reward).toFixed(1)}h${width.toFixed(1)}`;
  const box = (i, from, to, name) => strips.push(s("rect", {
    x: centre(i) - width / 2, width, y: y(to), height: Math.max(2, y(from) - y(to)), rx: Math.min(3, width / 4), class: name,
  }));
  groups.forEach((rewards, i) => {
    if (!rewards.length) return;
    const { low, high, q1, q3, mean, silent } = groupFacts(rewards);
    if (silent) {
      paths.silent += line(i, mean);
      rings.push(s("circle", { cx: centre(i), cy: y(mean), r: radius + 0.5, class: "an-hollow" }));
      return;
    }
    box(i, low, high, "an-strip");
    box(i, q1, q3, "an-half");
    paths.mean += line(i, mean);
    for (const [away, reward] of placed[i]) {
      const kind = reward > mean ? "pos" : reward < mean ? "neg" : "even";
      paths[kind] += `M${(centre(i) + away * step).toFixed(1)} ${y(reward).toFixed(1)}h0`;
    }
  });
  const frame = picked == null ? [] : [s("rect", {
    x: left + pitch * picked, width: pitch, y: top - 4, height: bottom - top + 8, rx: 3, class: "an-frame",
  })];
  const lines = Object.entries(paths).map(([kind, d]) => s("path", { d, class: `an-${kind}`, "stroke-width": 2 * radius }));
  return [...frame, ...strips, ...lines, ...rings];
}
