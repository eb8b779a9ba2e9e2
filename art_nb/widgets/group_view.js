// GroupView in the browser: the rewards and advantages of one group, side by side.

const LINE = 24;

function render({ model, el }) {
  const view = mount(el, "group", draw);
  const { root } = view;
  const groups = model.get("groups");
  let [at, hovered] = [model.get("start"), null];

  const nameOf = (group) => `${group.split === "train" ? "step" : group.split} ${group.step}, group ${group.group}`;
  const picker = select("Group", groups.map((group, i) => [String(i), nameOf(group)]), (value) => pick(Number(value)));
  const numbers = h("p", { class: "an-facts" });
  const notice = h("p", { class: "an-notice", hidden: true });
  const chart = s("svg", { role: "img" });
  const box = h("div", {
    class: "an-chart", tabindex: 0, role: "group", "aria-label": "Trajectories of the group. Up and down: trajectory. Left and right: group.",
  }, chart);
  const detail = h("p", { class: "an-caption", "aria-live": "polite" });
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "One group"), picker.field,
      iconButton("previous group", "‹", () => pick(at - 1)), iconButton("next group", "›", () => pick(at + 1)), numbers),
    notice, box, detail);

  function pick(i) {
    at = Math.max(0, Math.min(groups.length - 1, i));
    hovered = null;
    draw();
  }

  function panel(title, left, right, values, parts, height) {
    let [lo, hi] = extent([...values, 0]);
    const room = (hi - lo) * 0.04;
    const x = scale(lo - room, hi + room, left, right);
    parts.push(s("text", { x: left, y: 14, class: "an-panel" }, title));
    const found = ticks(lo - room, hi + room, Math.max(2, Math.min(6, (right - left) / 60)));
    const labels = tickLabels(found);
    found.forEach((tick, i) => {
      parts.push(s("line", { x1: x(tick), x2: x(tick), y1: 24, y2: height - 18, class: tick === 0 ? "an-rule an-zero" : "an-rule" }),
        s("text", { x: x(tick), y: height - 4, "text-anchor": "middle" }, labels[i]));
    });
    return x;
  }

  function draw() {
    const group = groups[at];
    const size = group.rewards.length;
    const width = box.clientWidth;
    const height = 30 + size * LINE + 20;
    const half = Math.round((width - 64) / 2);
    const [left, mid] = [44, 64 + half];
    const parts = [];
    const rx = panel("Reward", left, left + half - 24, group.rewards, parts, height);
    const ax = panel("Advantage", mid, width - 10, group.advantages, parts, height);
    const [low, high] = [group.mean - group.std, group.mean + group.std];
    parts.push(s("rect", { x: rx(low), width: Math.max(0, rx(high) - rx(low)), y: 24, height: height - 42, class: "an-band" }),
      s("line", { x1: rx(group.mean), x2: rx(group.mean), y1: 24, y2: height - 18, class: "an-mean" }));
    group.rewards.forEach((reward, i) => {
      const y = 30 + i * LINE + LINE / 2;
      const advantage = group.advantages[i];
      parts.push(s("g", { class: i === hovered ? "an-member an-on" : "an-member", "data-i": i },
        s("rect", { x: 0, width, y: y - LINE / 2, height: LINE, class: "an-hit" }),
        s("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, String(group.index[i])),
        reward != null && s("line", { x1: rx(group.mean), x2: rx(reward), y1: y, y2: y, class: "an-stem" }),
        reward != null && s("circle", { cx: rx(reward), cy: y, r: 4.5, class: "an-mark" }),
        advantage != null && s("rect", {
          x: Math.min(ax(0), ax(advantage)), width: Math.abs(ax(advantage) - ax(0)), y: y - 7, height: 14, rx: 2,
          class: advantage < 0 ? "an-neg" : "an-pos",
        })));
    });
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.style.height = `${height}px`;
    chart.setAttribute("aria-label", `${nameOf(group)}: rewards ${group.rewards.map(fmt).join(", ")}`);
    chart.replaceChildren(...parts);
    picker.box.value = String(at);
    root.dataset.group = at;
    numbers.textContent = `${counted(size, "trajectory", "trajectories")}  ·  mean ${fmt(group.mean)}  ·  std ${fmt(group.std)}`;
    notice.hidden = group.advantages.some((advantage) => advantage);
    notice.textContent = size === 1
      ? "No signal: there is nothing to compare a group of one with. Its advantage is zero, so it has no effect on training."
      : "No signal: all advantages are zero, so this group has no effect on training unless turns have rewards of their own.";
    explain();
  }

  function explain(byKey = false) {
    const group = groups[at];
    for (const member of chart.querySelectorAll(".an-member")) member.classList.toggle("an-on", Number(member.dataset.i) === hovered);
    if (byKey) chart.querySelector(".an-on")?.scrollIntoView({ block: "nearest" });
    if (hovered == null) {
      detail.textContent = "Dots: rewards; line and band: mean ± one standard deviation. Bars: advantages. Training makes " +
        "a trajectory's tokens more (right) or less likely (left), in proportion to its advantage.";
      return;
    }
    const [reward, advantage] = [group.rewards[hovered], group.advantages[hovered]];
    const usual = Math.abs((reward - group.mean) / (group.std + 1e-4) - advantage) < 0.02;
    const metrics = Object.entries(group.metrics[hovered]).map(([key, value]) => `${key.replaceAll("_", " ")} ${fmt(Number(value))}`);
    detail.textContent = [`Trajectory ${group.index[hovered]}`, `reward ${fmt(reward)}`,
      usual && group.std > 0 ? `advantage (${fmt(reward)} − ${fmt(group.mean)}) / ${fmt(group.std)} = ${signed(advantage)}`.replace("− −", "+ ")
        : `advantage ${signed(advantage)}`, ...metrics].join("  ·  ");
  }

  const hover = (i, byKey) => { hovered = i; explain(byKey); };
  box.addEventListener("pointermove", (event) => {
    const member = event.target.closest(".an-member");
    hover(member ? Number(member.dataset.i) : null);
  });
  box.addEventListener("pointerleave", () => hover(null));
  box.addEventListener("keydown", (event) => {
    if (noKeys(event)) return;
    const last = groups[at].rewards.length - 1;
    const act = {
      ArrowUp: () => hover(Math.max(0, (hovered ?? 1) - 1), true), ArrowDown: () => hover(Math.min(last, (hovered ?? -1) + 1), true),
      ArrowLeft: () => pick(at - 1), ArrowRight: () => pick(at + 1), Escape: () => hover(null),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  return view.stop;
}

export default { render };
