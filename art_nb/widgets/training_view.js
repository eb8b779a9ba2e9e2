// TrainingView in the browser: charts that share one step axis and one cursor.

const HELP = {
  reward: "Line: mean reward of the batch. Band: ± the standard deviation within a group, averaged over the groups. GRPO uses " +
    "only differences within a group: where the band closes, there is no training signal. The mean is noisy from step to step: " +
    "look at the trend over some 20 steps, and at the validation points (diamonds).",
  groups: "One strip per group, one dot per trajectory, on the scale of the reward chart. Training makes trajectories above " +
    "their group's mean (blue) more likely and those below (orange) less likely, in proportion to the distance. Dark shade: the " +
    "middle half of the group. Ring: all rewards are equal, no signal. Turn rewards are compared turn by turn; the chart " +
    "shows the reward of the whole trajectory.",
  kl: "KL divergence of the policy from the base model, in nats per token. It should grow slowly. A jump together with a " +
    "falling reward means that the learning rate is too high.",
  entropy: "Entropy of the policy, in nats per token. It falls during training. Near zero, all trajectories of a group are " +
    "the same and there is no signal: raise the temperature or lower the learning rate.",
  clip_fraction: "Share of tokens whose probability ratio is outside the clip range. With one update per batch the ratio is " +
    "1 and this is 0; it grows when a batch is used for several updates.",
  rollout_tokens_per_s: "Tokens per second: sampled (first number) and trained on (second).",
  loss: "A loss near zero is correct. With one update per batch every probability ratio is 1, and the advantages of a group " +
    "are centred on zero, so the loss is close to their mean; its gradient is not zero. Progress shows in reward, entropy and KL.",
  "costs/all": "Cost of the step, where prices are known: API calls, the judge, the machine. model.history() has the parts.",
  duration: "Mean duration of a rollout in seconds. Rollouts run concurrently, so their durations overlap.",
  sampled_tokens: "Mean tokens sampled per rollout, and mean share of the judge's tokens per rollout.",
  cost_usd: "Mean cost of a rollout's API calls, and mean share of the judge's cost per rollout.",
  task: "A metric that the task reports for each trajectory, averaged over the batch. Diamonds: validation.",
};
const LEGEND = "A dot is a trajectory. Blue earned more than its group's mean (line), orange less. Stronger shade: the middle half. " +
  "Ring: all equal, no signal unless turns have rewards of their own.";
const FIRST = 2;  // small panels that are shown at first, unless the notebook chooses them
const MARGIN = { left: 38, right: 8, top: 7 };

/** Right end of the step axis: the planned steps, or a half, a quarter, ... of them early in training. */
function lastStep(latest, total) {
  if (!total || total < latest) return Math.max(latest, 1);
  let end = total;
  while (end / 2 >= Math.max(latest, 8)) end /= 2;
  return Math.ceil(end);
}

/** A band of mean ± standard deviation; a single step becomes a vertical line. */
function spreadBand(rows, x, y) {
  const known = rows.filter((row) => row.reward != null && row.reward_std != null);
  const edge = (sign) => known.map((row) => `${x(row.step).toFixed(1)} ${y(row.reward + sign * row.reward_std).toFixed(1)}`);
  const d = known.length ? `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z` : "";
  return s("path", { d, class: known.length === 1 ? "an-band an-lone" : "an-band" });
}

const diamond = (x, y) => `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z`;

function noSignal(row) {
  const groups = row?.group_rewards ?? [];
  const silent = row?.groups_without_signal ?? groups.filter((rewards) => groupFacts(rewards.filter((r) => r != null)).silent).length;
  return { silent, of: row?.groups ?? groups.length };
}

function render({ model, el }) {
  const view = mount(el, "training", draw);
  const { root } = view;
  const [titleText, stepText, clockText, statusText] = ["strong", "span", "span", "span"].map((tag) => h(tag));
  const bar = h("i");
  const progress = h("div", { class: "an-progress", role: "progressbar", "aria-label": "steps done", "aria-valuemin": 0 }, bar);
  const notice = h("p", { class: "an-notice", hidden: true });
  const grid = h("div", {
    class: "an-grid", tabindex: 0, role: "group",
    "aria-label": "Training charts. Left and right arrow: step. Home and End: first and last step. Up and down: group of the step. " +
      "Escape: clear the selection.",
  });
  const more = h("button", { class: "an-more", type: "button", onclick: () => { showsAll = !showsAll; draw(); } });
  const quietList = h("div", { class: "an-quiet" });
  const groupText = h("p", { class: "an-group-text", "aria-live": "polite" });
  const caption = h("p", { class: "an-caption", "aria-live": "polite" });
  stepText.className = "an-step"; clockText.className = "an-muted"; statusText.className = "an-status";
  root.append(
    h("header", { class: "an-head" }, titleText, stepText, progress, clockText, statusText), notice, grid, more, quietList, caption);

  let [tiles, signature, cursor, picked, rows, vals, heardAt, showsAll] = [[], "", null, null, [], [], null, false];

  function makeTiles() {
    const big = [{ key: "reward", label: "Reward", series: ["reward"], big: true, help: HELP.reward }];
    if (rows.some((row) => row.group_rewards)) big.push({ key: "groups", label: "Groups", series: [], big: true, help: HELP.groups });
    const quiet = model.get("quiet");
    const small = model.get("tiles").map((tile) => ({ help: HELP[tile.key] ?? HELP.task, ...tile }));
    const loud = small.filter((tile) => !quiet[tile.key]);
    const chosen = loud.filter((tile) => tile.series.some((key) => model.get("panels").includes(key)));
    const first = chosen.length ? chosen : loud.slice(0, FIRST);
    const rest = loud.filter((tile) => !first.includes(tile));
    more.hidden = !rest.length;
    more.textContent = showsAll ? "Fewer panels" : `More panels (${rest.length})`;
    more.setAttribute("aria-expanded", String(showsAll));
    const plan = [...big, ...first, ...(showsAll ? rest : [])];
    showQuiet(small.filter((tile) => quiet[tile.key]), quiet);
    const before = signature;
    signature = plan.map((tile) => [tile.key, ...tile.series].join()).join(";");
    if (signature === before) return;
    tiles = plan.map((tile) => {
      const help = h("p", { class: "an-help", hidden: true }, tile.help);
      const ask = h("button", {
        class: "an-ask", type: "button", title: tile.help, "aria-expanded": "false",
        "aria-label": `What does ${tile.label} show?`,
        onclick: () => { help.hidden = !help.hidden; ask.setAttribute("aria-expanded", String(!help.hidden)); },
      }, "?");
      const value = h("span", { class: "an-value" });
      const svg = s("svg", { "aria-hidden": "true" });
      const section = h("section", { class: tile.big ? "an-tile an-big" : "an-tile", "data-key": tile.key },
        h("div", { class: "an-tile-head" }, h("span", { class: "an-label" }, tile.label), ask, value), svg, help);
      return { ...tile, value, svg, section };
    });
    grid.replaceChildren(...tiles.map((tile) => tile.section));
    tiles.find((tile) => tile.key === "groups")?.section.append(groupText);
  }

  /** One line for each constant panel, which opens to its help text. */
  function showQuiet(hushed, reasons) {
    const text = hushed.map((tile) => tile.key + reasons[tile.key]).join();
    if (quietList.dataset.text === text) return;
    quietList.dataset.text = text;
    quietList.replaceChildren(...hushed.map((tile) => h("details", { "data-key": tile.key },
      h("summary", {}, h("b", {}, tile.label), ` ${reasons[tile.key]}`), h("p", {}, tile.help))));
  }

  /** The scale of both big tiles: all rewards so far. */
  function rewardExtent() {
    const values = [...rows, ...vals].map((row) => row.reward);
    for (const row of rows) {
      values.push(...(row.group_rewards ?? []).flat());
      if (row.reward_std != null) values.push(row.reward - row.reward_std, row.reward + row.reward_std);
    }
    return extent(values);
  }

  /** Set a tile's area and scale `y`; return the grid lines and labels of its vertical axis. */
  function axis(tile, [lo, hi]) {
    const [width, height] = [tile.svg.clientWidth, tile.svg.clientHeight];
    tile.area = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - (tile.big ? 20 : 7) };
    tile.y = scale(lo, hi, tile.area.bottom, tile.area.top);
    const found = ticks(lo, hi, tile.big ? 5 : 2);
    const labels = tickLabels(found);
    return found.flatMap((tick, i) => [
      s("line", { x1: tile.area.left, x2: tile.area.right, y1: tile.y(tick), y2: tile.y(tick), class: "an-rule" }),
      s("text", { x: tile.area.left - 6, y: tile.y(tick) + 3.5, "text-anchor": "end" }, labels[i]),
    ]);
  }

  const shownRow = () => rows[cursor ?? rows.length - 1];

  function drawGroups(tile) {
    const groups = (shownRow()?.group_rewards ?? []).map((rewards) => rewards.filter((reward) => reward != null));
    if (picked != null && picked >= groups.length) picked = groups.length ? groups.length - 1 : null;
    tile.svg.replaceChildren(...axis(tile, rewardExtent()), ...(groups.length ? groupStrips(groups, tile.y, tile.area, picked) : []));
    const equal = groups.filter((rewards) => rewards.length && groupFacts(rewards).silent).length;
    tile.value.replaceChildren(h("span", { class: "an-s1" }, groups.length ? `${equal || "none"} of ${groups.length} all equal` : ""));
    tile.section.querySelector(".an-label").textContent = `Groups of step ${shownRow()?.step ?? ""}`;
    groupText.textContent = !groups.length ? "This step's row has no rewards by group."
      : picked != null ? describeGroup(groups, picked)
        : LEGEND;
  }

  function drawTile(tile, end) {
    if (tile.key === "groups") return;  // drawn by showNumbers, since it shows one step
    const first = Math.min(rows[0]?.step ?? 0, vals[0]?.step ?? Infinity);
    let [lo, hi] = tile.big ? rewardExtent() : extent([...rows, ...vals].flatMap((row) => tile.series.map((key) => row[key])));
    if (!tile.big && lo > 0 && lo < hi * 0.6) lo = 0;
    const parts = axis(tile, [lo, hi]);
    const { y, area } = tile;
    tile.x = scale(first, Math.max(end, first + 1), area.left, area.right);
    if (tile.big) {
      for (const tick of ticks(first, Math.max(end, first + 1), 8).filter(Number.isInteger)) {
        parts.push(s("text", { x: tile.x(tick), y: area.bottom + 16, "text-anchor": "middle" }, String(tick)));
      }
      parts.push(spreadBand(rows, tile.x, y));
    }
    tile.series.forEach((key, i) => {
      const points = rows.map((row) => [tile.x(row.step), row[key] == null ? null : y(row[key])]);
      parts.push(s("path", { d: linePath(points), class: `an-line an-s${i}` }));
      const alone = points.filter(([, py], k) => py != null && points[k - 1]?.[1] == null && points[k + 1]?.[1] == null);
      parts.push(...alone.map(([cx, cy]) => s("circle", { cx, cy, r: 2, class: `an-dot an-s${i}` })));
    });
    const checked = vals.filter((row) => row[tile.series[0]] != null);
    const at = checked.map((row) => [tile.x(row.step), y(row[tile.series[0]])]);
    parts.push(s("path", { d: linePath(at), class: "an-val-line" }));
    parts.push(s("path", { d: at.map(([px, py]) => diamond(px, py)).join(""), class: "an-val" }));
    tile.cursorLine = s("line", { y1: area.top, y2: area.bottom, class: "an-cursor", visibility: "hidden" });
    tile.svg.replaceChildren(...parts, tile.cursorLine);
  }

  function showNumbers() {
    const row = shownRow();
    const val = row && vals.findLast((one) => one.step <= row.step);
    for (const tile of tiles) {
      if (tile.key === "groups") { drawGroups(tile); continue; }
      const numbers = tile.series.map((key, i) => h("span", { class: `an-s${i}` }, fmt(row?.[key])));
      const check = val?.[tile.series[0]];
      if (tile.big && row?.reward_std != null) numbers.push(h("span", { class: "an-s1" }, `± ${fmt(row.reward_std)}`));
      tile.value.replaceChildren(...numbers, ...(check == null ? [] : [h("span", { class: "an-valnum" }, `◆ ${fmt(check)}`)]));
      if (!tile.cursorLine) continue;
      tile.cursorLine.setAttribute("visibility", cursor == null ? "hidden" : "visible");
      if (row) for (const end of ["x1", "x2"]) tile.cursorLine.setAttribute(end, tile.x(row.step));
    }
    const { silent, of } = noSignal(row);
    caption.textContent = row ? [
      `Step ${row.step}`,
      row.reward_min != null && `reward ${fmt(row.reward_min)} to ${fmt(row.reward_max)}`,
      of && `${counted(of, "group")}, ${silent || "none"} without signal`,
      row.trajectories && counted(row.trajectories, "trajectory", "trajectories"),
      row.rollout_s != null && `${fmt(row.rollout_s)} s gathering`,
      row.train_s != null && `${fmt(row.train_s)} s training`,
    ].filter(Boolean).join("  ·  ") : "Charts appear with the first finished step.";
    notice.hidden = !(of > 0 && silent === of);
    notice.textContent = `No signal at step ${row?.step}: inside every group all rewards are equal, so every advantage is zero and ` +
      "this step has no effect. If this persists: raise the temperature, or use larger groups, easier scenarios or a finer reward.";
  }

  function showHead() {
    const [total, title, done] = [model.get("total_steps"), model.get("title"), model.get("finished")];
    const latest = rows.at(-1)?.step ?? 0;
    titleText.textContent = title || "Training";
    stepText.textContent = total ? `step ${latest} of ${total}` : `step ${latest}`;
    const share = total ? Math.min(1, latest / total) : 0;
    progress.hidden = !total;
    progress.setAttribute("aria-valuemax", total ?? 0);
    progress.setAttribute("aria-valuenow", latest);
    bar.style.width = `${100 * share}%`;
    const since = heardAt == null || done ? 0 : (Date.now() - heardAt) / 1000;
    const elapsed = model.get("elapsed") + since;
    const recent = rows.slice(-6);
    const pace = recent.length > 1 ? (recent.at(-1).time - recent[0].time) / (recent.length - 1)
      : recent.length ? model.get("elapsed") : null;
    const left = total && pace && !done && total > latest ? Math.max(0, pace * (total - latest) - since) : null;
    clockText.textContent = `${clock(elapsed)} elapsed` + (left == null ? "" : `  ·  about ${clock(left)} left`);
    statusText.textContent = done ? "finished" : model.get("message");
  }

  function draw() {
    const all = [...model.get("rows"), ...model.get("tail")];
    rows = all.filter((row) => (row.split ?? "train") === "train");
    vals = all.filter((row) => row.split === "val");
    if (cursor != null) cursor = Math.min(cursor, rows.length - 1);
    root.dataset.steps = rows.length;
    makeTiles();
    const end = lastStep(Math.max(rows.at(-1)?.step ?? 0, vals.at(-1)?.step ?? 0), model.get("total_steps"));
    for (const tile of tiles) drawTile(tile, end);
    showNumbers();
    showHead();
  }

  const within = (index, count) => (index == null || !count ? null : Math.max(0, Math.min(count - 1, index)));

  function moveTo(index) {
    cursor = within(index, rows.length);
    showNumbers();
  }

  function pick(index) {
    picked = within(index, shownRow()?.group_rewards?.length ?? 0);
    showNumbers();
  }

  grid.addEventListener("pointermove", (event) => {
    const tile = tiles.find((one) => one.section.contains(event.target));
    if (!tile?.area || !rows.length) return;
    const px = event.clientX - tile.svg.getBoundingClientRect().left;
    if (tile.key === "groups") {
      const { left, right } = tile.area;
      pick(Math.floor(((px - left) / (right - left)) * (shownRow().group_rewards?.length ?? 0)));
      return;
    }
    let best = 0;
    rows.forEach((row, i) => { if (Math.abs(tile.x(row.step) - px) < Math.abs(tile.x(rows[best].step) - px)) best = i; });
    moveTo(best);
  });
  grid.addEventListener("pointerleave", () => { picked = null; moveTo(null); });
  grid.addEventListener("keydown", (event) => {
    if (noKeys(event)) return;
    const at = cursor ?? rows.length;
    const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: rows.length - 1, Escape: null };
    const groups = { ArrowUp: (picked ?? 0) - 1, ArrowDown: (picked ?? -1) + 1, Escape: null };
    if (!(event.key in steps || event.key in groups)) return;
    event.preventDefault();
    if (event.key in groups) pick(groups[event.key]);
    if (event.key in steps) moveTo(steps[event.key]);
  });

  const heard = () => { heardAt = Date.now(); view.request(); };
  model.on("change", heard);
  const timer = setInterval(() => { if (heardAt != null) showHead(); }, 1000);
  return () => { clearInterval(timer); model.off("change", heard); view.stop(); };
}

export default { render };
