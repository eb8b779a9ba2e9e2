// TrajectoryViewer in the browser: a filtered list, a board that replays, and the conversation token by token, or the task's
// own pane, if a `TaskPane` defines one (`taskPane`).

const ROW = 30;
const rank = (row) => row.reward ?? -Infinity;  // a reward that is not a number ranks last
const compare = (a, b) => (a > b) - (a < b);
const SORTS = {
  gathered: ["as gathered", (a, b) => a.i - b.i],
  high: ["reward, high first", (a, b) => compare(rank(b), rank(a)) || a.i - b.i],
  low: ["reward, low first", (a, b) => compare(rank(a), rank(b)) || a.i - b.i],
  long: ["longest first", (a, b) => b.turns - a.turns || a.i - b.i],
};

/** Decompress a chunk of trajectories. `bytes`: the DataView that the kernel sent. */
function unpack(bytes, from, to) {
  const part = new Uint8Array(bytes.buffer, bytes.byteOffset + from, to - from);
  const stream = new Blob([part]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** The stops of the left and right keys: each board with the answer to it; without boards, each turn. */
function stopsOf(turns) {
  if (!turns.some((turn) => turn.board)) return turns.map((_, i) => ({ turn: i, answer: turns[i].tokens ? i : null }));
  const stops = [];
  turns.forEach((turn, i) => {
    if (turn.board) stops.push({ board: turn.board, turn: i, answer: null });
    else if (turn.role === "assistant" && stops.length && stops.at(-1).answer == null) stops.at(-1).answer = i;
  });
  return stops;
}

const turnText = (turn) => (turn.tool_calls ?? []).map((call) => `${call.name}(${call.arguments})`).join(" ") || turn.content.trim();
const sum = (list) => list.reduce((a, b) => a + b, 0);
const known = (turn) => turn?.logprobs?.length && !turn.logprobs.includes(null);
const probability = (turn) => (known(turn) ? Math.exp(sum(turn.logprobs)) : null);

function drawBoard(box, board) {
  box.style.setProperty("--columns", board[0].length);
  box.replaceChildren(...board.flat().map((value) => h("span", {
    class: "an-cell",
    "data-level": value ? Math.min(11, Math.max(1, Math.round(Math.log2(Math.abs(value))))) : 0,
    "data-digits": String(value).length,
  }, value ? String(value) : "")));
}

function render({ model, el }) {
  const opened = performance.now();
  const view = mount(el, "viewer", draw);
  const { root } = view;
  const index = model.get("index").map((row, i) => ({ ...row, i }));
  const hasBoards = model.get("has_boards");
  const hasAdvantages = model.get("has_advantages");
  const advantageScale = model.get("advantage_scale") || 1;
  const state = { step: "", group: "", kind: "", sort: "gathered", min: "", max: "", colour: "logprob", as: "pane", list: [], at: 0, stop: 0, timer: 0 };
  const chunks = new Map();
  const listId = `an-list-${Math.random().toString(36).slice(2)}`;
  let [shown, turns, pane, stops, cards, request] = [null, [], null, [], [], 0];

  // -- left column: filters and list --
  const named = (row) => (row.split === "train" ? `step ${row.step}` : `${row.split} ${row.step}`);
  const stepNames = [...new Set(index.map(named))];
  const stepBox = select("Step", [["", "all"], ...stepNames.map((name) => [name, name])], (value) => {
    state.step = value; state.group = ""; fillGroups(); filter();
  });
  const groupBox = select("Group", [], (value) => { state.group = value; filter(); });
  const sortBox = select("Sort", Object.entries(SORTS).map(([key, [text]]) => [key, text]), (value) => { state.sort = value; filter(); });
  const [lowest, highest] = extent(index.map((row) => row.reward));
  const bound = (key, label, hint) => h("input", {
    type: "number", step: "any", placeholder: fmt(hint), "aria-label": label,
    oninput: (event) => { state[key] = event.target.value; filter(); },
  });
  const count = h("p", { class: "an-muted an-count", "aria-live": "polite" });
  const listBox = h("div", { class: "an-list", role: "listbox", "aria-label": "Trajectories", tabindex: 0 });
  const rewardX = scale(Math.min(0, lowest), Math.max(0, highest), 0, 100);
  const list = virtualList(listBox, ROW, (i) => {
    const row = index[state.list[i]];
    const [from, to] = [rewardX(Math.min(0, row.reward)), rewardX(Math.max(0, row.reward))];
    return h("div", {
      class: "an-row", id: `${listId}-${i}`, role: "option", title: row.kind, "aria-selected": String(i === state.at), onclick: () => { root.focus(); choose(i); },
    },
      h("span", { class: "an-who" }, `${state.step ? "" : `${row.split === "train" ? row.step : named(row)} · `}g${row.group} · ${row.index}`),
      h("span", { class: "an-bar" }, h("i", { style: `left:${from}%;width:${to - from}%`, class: row.reward < 0 ? "an-neg" : "" })),
      h("span", { class: "an-num" }, fmt(row.reward)));
  });

  function fillGroups() {
    const groups = [...new Set(index.filter((row) => !state.step || named(row) === state.step).map((row) => row.group))];
    groupBox.box.replaceChildren(...[["", "all"], ...groups.sort((a, b) => a - b).map((g) => [String(g), `group ${g}`])]
      .map(([value, text]) => h("option", { value }, text)));
    groupBox.box.value = state.group;
  }

  const kindBox = h("div", { class: "an-kinds", role: "group", "aria-label": "Kind" });

  /** A button per kind, with the number of trajectories that match the other filters. */
  function showKinds(rows) {
    const count = (kind) => rows.filter((row) => !kind || row.kind === kind).length;
    kindBox.replaceChildren(...["", ...model.get("kinds")].map((kind) => h("button", {
      type: "button", "aria-pressed": String(state.kind === kind),
      onclick: () => { state.kind = kind; filter(); kindBox.querySelector("[aria-pressed=true]").focus(); },
    }, h("span", {}, kind || "all"), h("b", {}, String(count(kind))))));
  }

  function filter() {
    const min = state.min === "" ? -Infinity : Number(state.min);
    const max = state.max === "" ? Infinity : Number(state.max);
    const before = state.list[state.at];
    const rows = index.filter((row) => (!state.step || named(row) === state.step) && (!state.group || String(row.group) === state.group)
      && rank(row) >= min && rank(row) <= max);
    if (model.get("kinds").length) showKinds(rows);
    state.list = rows.filter((row) => !state.kind || row.kind === state.kind).sort(SORTS[state.sort][1]).map((row) => row.i);
    count.textContent = `${state.list.length} of ${index.length} trajectories`;
    state.at = Math.max(0, state.list.indexOf(before));
    list.setCount(state.list.length);
    choose(state.at);
  }

  // -- middle: the board --
  const board = h("div", { class: "an-board", role: "img" });
  const move = h("p", { class: "an-move" });
  const chance = h("i");
  const slider = h("input", {
    type: "range", min: 0, value: 0, "aria-label": hasBoards ? "move" : "message",
    oninput: () => { pause(); goTo(Number(slider.value)); },
  });
  const playButton = iconButton("play", "▶", () => (state.timer ? pause() : play()));
  const where = h("span", { class: "an-muted an-where" });
  const controls = h("div", { class: "an-controls" },
    iconButton("previous", "‹", () => { pause(); goTo(state.stop - 1); }), playButton,
    iconButton("next", "›", () => { pause(); goTo(state.stop + 1); }), slider, where);

  function pause() {
    clearInterval(state.timer);
    state.timer = 0;
    playButton.textContent = "▶";
    for (const name of ["aria-label", "title"]) playButton.setAttribute(name, "play");
  }

  function play() {
    if (state.stop >= stops.length - 1) goTo(0);
    const pace = Math.max(120, Math.min(500, 15000 / stops.length));
    state.timer = setInterval(() => (state.stop < stops.length - 1 ? goTo(state.stop + 1) : pause()), pace);
    playButton.textContent = "❚❚";
    for (const name of ["aria-label", "title"]) playButton.setAttribute(name, "pause");
  }

  // -- right column: the conversation --
  const heading = h("div", { class: "an-heading" });
  const facts = h("p", { class: "an-muted an-facts" });
  const talk = h("div", { class: "an-talk", tabindex: 0, role: "log", "aria-label": "Conversation", "aria-live": "off" });
  const tip = tooltip(root);
  const legend = h("span", { class: "an-legend" });
  const toggle = h("div", { class: "an-toggle", role: "group", "aria-label": "Colour tokens by" },
    ...[["logprob", "log-probability"], ["advantage", "advantage"]].map(([key, text]) => h("button", {
      type: "button", "data-colour": key, "aria-pressed": String(state.colour === key), disabled: key === "advantage" && !hasAdvantages,
      title: key === "advantage" && !hasAdvantages ? "These records have no advantages: training computes them." : null,
      onclick: () => {
        state.colour = key;
        for (const one of toggle.children) one.setAttribute("aria-pressed", String(one.dataset.colour === key));
        showLegend();
        for (const card of cards) if (card.filled) fill(card);
      },
    }, text)));

  const taskBox = typeof taskPane === "function" ? taskPane((i) => { pause(); goTo(i); }) : { box: h("div", {}) };
  const asPane = () => pane != null && state.as === "pane";
  const showAs = h("div", { class: "an-toggle", role: "group", "aria-label": "Show as" },
    ...[["pane", model.get("pane")], ["tokens", "messages and tokens"]].map(([key, text]) => h("button", {
      type: "button", "data-as": key, onclick: () => { const turn = stops[state.stop]?.turn; state.as = key; arrange(); goToTurn(turn); },
    }, text)));

  /** Show the task's pane or the conversation, and set the stops of the left and right keys. */
  function arrange() {
    stops = asPane() ? pane.steps.map((step) => ({ turn: step.turn, answer: step.result })) : stopsOf(turns);
    for (const one of showAs.children) one.setAttribute("aria-pressed", String(one.dataset.as === state.as));
    showAs.hidden = pane == null;
    taskBox.box.hidden = !asPane();
    colours.hidden = talk.hidden = asPane();
    main.classList.toggle("an-with-board", hasBoards && pane == null);
    slider.max = Math.max(0, stops.length - 1);
  }

  function showLegend() {
    const words = state.colour === "logprob" ? ["sure", "surprising"] : ["made less likely", "made more likely"];
    legend.replaceChildren(h("span", {}, words[0]), h("i", { class: `an-ramp an-ramp-${state.colour}` }), h("span", {}, words[1]));
  }

  /** In GRPO every token has the trajectory's advantage, unless turns have rewards of their own. */
  const advantageOf = (turn, k) => turn.advantages?.[k] ?? (turn.trainable ? index[shown].advantage : null);

  function colourOf(turn, k) {
    if (state.colour === "logprob") {
      return `color-mix(in srgb, var(--an-surprise) ${Math.round(Math.min(1, -(turn.logprobs?.[k] ?? 0) / 4) * 75)}%, transparent)`;
    }
    const advantage = advantageOf(turn, k) ?? 0;
    const strength = Math.round(Math.min(1, Math.abs(advantage) / advantageScale) * 65);
    return `color-mix(in srgb, var(${advantage < 0 ? "--an-orange" : "--an-blue"}) ${strength}%, transparent)`;
  }

  function fill(card) {
    const { turn } = card;
    const body = h("div", { class: "an-text" });
    if (turn.tokens) {
      body.append(...turn.tokens.map((token, k) => h("span", {
        class: "an-token", "data-k": k, style: `background:${colourOf(turn, k)}`,
      }, token.includes("\n") ? token.replaceAll("\n", "↵\n") : token)));
    } else {
      const calls = (turn.tool_calls ?? []).map((call) => h("code", { class: "an-call" }, `${call.name}(${call.arguments})`));
      body.append(turn.content, ...calls);
    }
    card.filled = true;
    card.body.replaceChildren(body);
  }

  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = cards[Number(target.dataset.turn)];
      if (!card || card.box !== target) continue;
      if (isIntersecting && !card.filled) fill(card);
      else if (!isIntersecting && card.filled) {  // keep the height, remove the tokens
        card.body.style.minHeight = `${card.body.offsetHeight}px`;
        card.body.replaceChildren();
        card.filled = false;
      }
    }
  }, { root: talk, rootMargin: "300px 0px" });

  function showTurns() {
    near.disconnect();
    cards = turns.map((turn, i) => {
      const body = h("div", { class: "an-body", style: `min-height:${18 * (turn.content.split("\n").length + turn.content.length / 80 | 0)}px` });
      const p = probability(turn);
      const side = [p != null && `p ${fmt(p)}`, turn.reward != null && `reward ${signed(turn.reward)}`].filter(Boolean).join("  ·  ");
      const box = h("article", { class: `an-turn an-${turn.role}`, "data-turn": i, onclick: () => { pause(); goToTurn(i); } },
        h("header", {}, h("span", { class: "an-role" }, turn.role),
          turn.conversation > 0 && h("span", { class: "an-muted" }, `conversation ${turn.conversation + 1}`), h("span", { class: "an-muted" }, side)), body);
      return { turn, box, body, filled: false };
    });
    talk.replaceChildren(...cards.map((card) => card.box));
    talk.scrollTop = 0;
    for (const card of cards) near.observe(card.box);
  }

  function goToTurn(i) {
    const stop = stops.findLastIndex((one) => one.turn <= i);
    if (stop >= 0) goTo(stop);
  }

  function goTo(i) {
    state.stop = Math.max(0, Math.min(stops.length - 1, i));
    const stop = stops[state.stop];
    where.textContent = stop ? `${state.stop + 1} / ${stops.length}` : "";
    for (const part of game) part.hidden = !stop?.board || pane != null;
    if (!stop) return;
    slider.value = state.stop;
    root.dataset.stop = state.stop;
    if (asPane()) { taskBox.at(state.stop); return; }
    const answer = stop.answer == null ? null : turns[stop.answer];
    if (stop.board) {
      drawBoard(board, stop.board);
      board.setAttribute("aria-label", `board: ${stop.board.map((row) => row.join(" ")).join(" / ")}`);
      const p = probability(answer);
      move.replaceChildren(...(answer
        ? [h("b", {}, turnText(answer) || "(empty answer)"), h("span", { class: "an-muted" }, p == null ? "" : `p ${fixed(p, 2)}`)]
        : [h("span", { class: "an-muted" }, "end of the game")]));
      chance.style.width = `${100 * (p ?? 0)}%`;
    }
    cards.forEach((card, k) => card.box.classList.toggle("an-now", k === stop.turn || k === stop.answer));
    const [top, end] = [cards[stop.turn].box, cards[stop.answer ?? stop.turn].box];
    if (end.offsetTop + end.offsetHeight > talk.scrollTop + talk.clientHeight) {
      talk.scrollTop = Math.min(top.offsetTop - 8, end.offsetTop + end.offsetHeight - talk.clientHeight + 8);
    }
    if (top.offsetTop < talk.scrollTop) talk.scrollTop = top.offsetTop - 8;
  }

  async function choose(i) {
    state.at = Math.max(0, Math.min(state.list.length - 1, i));
    list.reveal(state.at);
    listBox.setAttribute("aria-activedescendant", `${listId}-${state.at}`);
    const chosen = state.list[state.at];
    main.hidden = chosen == null;
    const mine = ++request;
    if (chosen == null || chosen === shown) return;
    const { at: [from, to, place] } = index[chosen];
    if (!chunks.has(from)) {
      if (chunks.size > 12) chunks.delete(chunks.keys().next().value);
      chunks.set(from, unpack(model.get("bodies"), from, to));
    }
    const body = (await chunks.get(from))[place];
    if (mine === request) show(chosen, body);
  }

  function show(chosen, body) {
    pause();
    const held = root.contains(document.activeElement);
    [shown, turns, pane] = [chosen, body.turns, body.pane ?? null];
    const row = index[chosen];
    const number = (label, text) => h("span", { class: "an-fact" }, h("span", { class: "an-muted" }, label), h("b", {}, text));
    heading.replaceChildren(
      h("strong", {}, `${named(row)}, group ${row.group}, trajectory ${row.index}`), number("reward", fmt(row.reward)),
      ...(row.advantage == null ? [] : [number("advantage", signed(row.advantage))]),
      ...(row.kind == null ? [] : [number("kind", row.kind)]),
      ...Object.entries(row.metrics).slice(0, 5).map(([key, value]) => number(key.replaceAll("_", " "), fmt(Number(value)))));
    const known = [...Object.entries(body.metadata).map(([key, value]) => `${key}: ${value}`), ...body.logs];
    facts.replaceChildren(...known.flatMap((fact, i) => [i ? "  ·  " : "", h("bdi", {}, fact)]));
    facts.hidden = !known.length;
    root.dataset.shown = chosen;
    showTurns();
    arrange();
    if (pane) taskBox.show(pane);
    goTo(asPane() ? stops.length - 1 : 0);
    if (held && !root.contains(document.activeElement)) root.focus();  // keep keyboard control when the focused element was removed
    root.dataset.opened ||= (performance.now() - opened).toFixed(1);
  }

  talk.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".an-token");
    if (!token) { tip.hide(); return; }
    const { turn } = cards[Number(token.closest(".an-turn").dataset.turn)];
    const k = Number(token.dataset.k);
    const advantage = advantageOf(turn, k);
    const logprob = turn.logprobs?.[k];
    tip.show(token, [JSON.stringify(turn.tokens[k]),
      ...(logprob == null ? [] : [`p ${fmt(Math.exp(logprob))}   log-prob ${fmt(logprob)}`]),
      ...(advantage == null ? [] : [`advantage ${signed(advantage)}`])]);
  });
  talk.addEventListener("pointerleave", tip.hide);

  root.addEventListener("keydown", (event) => {
    const typing = event.target.matches("select, input[type=number]");
    if (typing || noKeys(event) || (event.key === " " && event.target.matches("button"))) return;
    const act = {
      ArrowLeft: () => { pause(); goTo(state.stop - 1); }, ArrowRight: () => { pause(); goTo(state.stop + 1); },
      ArrowUp: () => choose(state.at - 1), ArrowDown: () => choose(state.at + 1),
      " ": () => (state.timer ? pause() : play()),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  const game = hasBoards ? [board, move, h("div", { class: "an-chance" }, chance)] : [];
  const colours = h("div", { class: "an-colours" }, h("span", { class: "an-muted" }, "Colour by"), toggle, legend);
  const main = h("div", { class: hasBoards ? "an-main an-with-board" : "an-main" },
    h("div", { class: "an-top" }, heading, facts),
    h("div", { class: "an-game" }, ...game, controls,
      h("p", { class: "an-muted an-keys" }, `← → ${hasBoards ? "move" : "message"}   ↑ ↓ trajectory   space play`)),
    h("div", { class: "an-conversation" }, h("div", { class: "an-tools" }, showAs, colours), taskBox.box, talk));
  root.classList.toggle("an-with-pane", model.get("pane") !== "");
  root.tabIndex = 0;
  root.setAttribute("aria-label", "Trajectory viewer. Left and right: message or move. Up and down: trajectory. Space: play.");
  root.prepend(
    h("div", { class: "an-side" },
      h("div", { class: "an-filters" }, stepBox.field, groupBox.field, sortBox.field,
        h("div", { class: "an-field" }, h("span", {}, "Reward"), h("span", { class: "an-bounds" },
          bound("min", "lowest reward", index.reduce((low, row) => Math.min(low, row.reward ?? Infinity), Infinity)), "to",
          bound("max", "highest reward", index.reduce((high, row) => Math.max(high, row.reward ?? -Infinity), -Infinity))))),
      kindBox, count, listBox),
    main);

  let ready = false;
  function draw() {
    if (ready) { list.render(); return; }
    ready = true;
    fillGroups();
    showLegend();
    filter();
  }
  return () => { pause(); near.disconnect(); view.stop(); };
}

export default { render };
