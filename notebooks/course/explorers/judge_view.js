// JudgeView in the browser: one group in the judge's, the true or your own order, and how well these agree.

function render({ model, el }) {
  const view = mount(el, "judge", draw);
  const { root } = view;
  const groups = model.get("groups");
  let [at, by, chosen, dragged] = [0, "judge", null, null];
  let order = [];

  const picker = select("Group", groups.map((group, i) => [String(i), `${i}`]), (value) => pick(Number(value)));
  const sorter = select("Order", [["judge", "the judge's"], ["truth", "the true one"], ["mine", "my own"]], (value) => {
    by = value;
    sort();
    draw();
  });
  const facts = h("p", { class: "an-facts", "aria-live": "polite" });
  const list = h("ol", { tabindex: 0, role: "listbox", "aria-label": "Trajectories, best first. Up and down: select. Alt and up or down: move, in my own order." });
  const conversation = h("pre", { class: "an-said", "aria-label": "the trajectory" });
  const caption = h("p", { class: "an-caption" });
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "Judge and truth"), picker.field,
      iconButton("previous group", "‹", () => pick(at - 1)), iconButton("next group", "›", () => pick(at + 1)), sorter.field, facts),
    h("div", { class: "an-columns" }, list, conversation), caption);

  /** Ranks from 1, the best; equal values share their best rank. */
  const ranks = (values) => values.map((value) => 1 + values.filter((other) => other > value).length);

  /** [pairs ordered alike, pairs with different truths]; a pair of equal scores counts half. */
  function alike(values, truths) {
    let [same, pairs] = [0, 0];
    for (let i = 0; i < values.length; i++) {
      for (let j = 0; j < i; j++) {
        if (truths[i] === truths[j]) continue;
        pairs += 1;
        const product = (values[i] - values[j]) * (truths[i] - truths[j]);
        same += product > 0 ? 1 : product === 0 ? 0.5 : 0;
      }
    }
    return [same, pairs];
  }

  const column = (key) => groups[at].map((member) => member[key]);

  function sort() {
    const indices = groups[at].map((_, i) => i);
    if (by === "mine") order = model.get("mine")[at] ?? indices;
    else order = indices.sort((i, j) => column(by === "judge" ? "score" : "truth")[j] - column(by === "judge" ? "score" : "truth")[i] || i - j);
  }

  function pick(i) {
    at = Math.max(0, Math.min(groups.length - 1, i));
    chosen = null;
    sort();
    draw();
  }

  function move(from, to) {
    if (to < 0 || to >= order.length || from === to) return;
    order = [...order];
    order.splice(to, 0, ...order.splice(from, 1));
    model.set("mine", { ...model.get("mine"), [at]: order });
    model.save_changes();
    draw();
  }

  function row(i, place, judged, truly) {
    const member = groups[at][i];
    const off = Math.abs(judged[i] - truly[i]);
    const parts = [h("span", { class: "an-rank" }, `${place + 1}.`)];
    if (by === "mine") parts.push(h("span", {}, `no. ${i}`), h("span", { class: "an-reason" }, member.text.trim().split("\n").at(-1)));
    else {
      const bar = h("div", { class: "an-bar" }, h("i", { style: `width:${100 * member.score}%` }), h("span", {}, fmt(member.score)));
      const truth = `truth ${fmt(member.truth)}${off ? `, rank ${truly[i]}` : ""}`;
      parts.push(bar, h("span", { class: off ? "an-truth an-off" : "an-truth" }, truth), h("span", { class: "an-reason", title: member.reason }, member.reason));
    }
    return h("li", {
      role: "option", draggable: by === "mine" ? "true" : null, "data-i": i, "aria-selected": String(i === chosen), class: i === chosen ? "an-on" : null,
      onclick: () => { chosen = i; draw(); },
      ondragstart: (event) => { dragged = place; event.dataTransfer.effectAllowed = "move"; event.dataTransfer.setData("text/plain", ""); },
      ondragover: (event) => { if (dragged != null) event.preventDefault(); },
      ondrop: (event) => { event.preventDefault(); const from = dragged; dragged = null; if (from != null) move(from, place); },
      ondragend: () => { dragged = null; },
    }, ...parts);
  }

  function draw() {
    const [scores, truths] = [column("score"), column("truth")];
    const [judged, truly] = [ranks(scores), ranks(truths)];
    list.classList.toggle("an-own", by === "mine");
    list.replaceChildren(...order.map((i, place) => row(i, place, judged, truly)));
    picker.box.value = String(at);
    sorter.box.value = by;
    root.dataset.group = at;
    const own = model.get("mine")[at];
    const share = ([same, pairs]) => (pairs ? `${fmt(same)} of ${pairs} pairs alike` : "no pairs to compare");
    if (by !== "mine") facts.textContent = `judge and truth: ${share(alike(scores, truths))}`;
    else if (!own) facts.textContent = "Drag the best to the top.";
    else {
      const mine = own.map((_, i) => -own.indexOf(i));
      facts.textContent = `you and the truth: ${share(alike(mine, truths))}; you and the judge: ${share(alike(mine, scores))}`;
    }
    conversation.textContent = chosen == null ? "Select a trajectory to read it." : `${groups[at][chosen].text}`;
    caption.textContent = chosen != null && by !== "mine" ? `Trajectory ${chosen}, the judge: ${groups[at][chosen].reason}`
      : by === "mine" ? "Scores and truth are hidden in this order."
        : "Orange: the judge's rank differs from the true rank. The explanations are the judge's.";
  }

  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const place = order.indexOf(chosen);
    const next = place + (event.key === "ArrowUp" ? -1 : 1);
    if (event.altKey && by === "mine" && place >= 0) return move(place, next);
    chosen = order[Math.max(0, Math.min(order.length - 1, next))];
    draw();
    list.querySelector(".an-on").scrollIntoView({ block: "nearest" });
  });
  sort();
  return view.stop;
}

export default { render };
