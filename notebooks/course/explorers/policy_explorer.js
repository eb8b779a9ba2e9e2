// PolicyExplorer in the browser: a trained policy, step by step, on a board that the reader edits or plays on.
// qwen3.js runs the model; game_2048.js and tic_tac_toe.js have the rules. Weights come from files beside the page or from the kernel.

const GAMES = { 2048: RULES_2048, tic_tac_toe: RULES_TIC_TAC_TOE };
const OTHER = "other text"; // every token that is not an answer
const FIRST_SEED = 2_000_000; // of the test games
const SPARK = { width: 132, height: 26, pad: 5 };
const ENDS = {
  won: (tile) => `won: it reached ${tile}`, stuck: () => "over: no move is left", illegal: () => "over: an illegal answer",
  malformed: () => "over: its answer was not a move",
};
const percent = (p) => (p > 0 && p < 0.0005 ? "<0.1%" : p >= 0.9995 && p < 1 ? ">99.9%" :
  `${(100 * p).toFixed(p < 0.0995 || (p >= 0.995 && p < 1) ? 1 : 0)}%`);
const rest = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** Read a file beside the page, by fetch or, where the page is a file itself, as a script. progress(bytes read so far). */
async function readBeside(file, progress) {
  if (location.protocol !== "file:") {
    const response = await fetch(file.url);
    if (!response.ok) throw new Error(`${file.url}: ${response.status} ${response.statusText}`);
    const [reader, parts] = [response.body.getReader(), []];
    let size = 0;
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      parts.push(value);
      progress(size += value.length);
    }
    return new Blob(parts).arrayBuffer();
  }
  await new Promise((resolve, reject) => {
    document.head.append(h("script", { src: `${file.url}.js`, onload: resolve, onerror: () => reject(new Error(`${file.url}.js cannot be read`)) }));
  });
  const text = window.artNbFiles[file.url];
  delete window.artNbFiles[file.url];
  progress(file.bytes);
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

/** Return the probability of each answer and of OTHER at a temperature above 0. */
function distribution(logits, ids, temperature) {
  let top = -Infinity;
  for (const logit of logits) top = Math.max(top, logit);
  let total = 0;
  for (const logit of logits) total += Math.exp((logit - top) / temperature);
  const shares = ids.map((id) => Math.exp((logits[id] - top) / temperature) / total);
  return [...shares, Math.max(0, 1 - shares.reduce((sum, share) => sum + share, 0))];
}

/** Return the answer with the highest logit, or OTHER. */
function greedyAnswer(logits, ids, answers) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  return answers[ids.indexOf(best)] ?? OTHER;
}

/** The policy at each step whose weights have been added. */
class Policies {
  constructor({ config, tokenizer, scale, steps }, answers, render) {
    Object.assign(this, { config, scale, steps, answers, render, models: new Map() });
    this.tokenizer = new Tokenizer(tokenizer);
    this.ids = answers.map((answer) => this.tokenizer.ids.get(answer));
  }

  add(step, bytes) {
    const tensors = readSafetensors(bytes);
    const weights = step === 0 ? tensors : mergeAdapter(this.models.get(0).weights, tensors, this.scale);
    this.models.set(step, new Qwen3(this.config, weights));
  }

  logits(step, board) { return this.models.get(step).logits(this.tokenizer.prompt(this.render(board))); }
  shares(step, board) { return distribution(this.logits(step, board), this.ids, 1); }

  answer(step, board, temperature, random) {
    const logits = this.logits(step, board);
    if (temperature === 0) return greedyAnswer(logits, this.ids, this.answers);
    let left = random();
    const at = distribution(logits, this.ids, temperature).findIndex((share) => (left -= share) < 0);
    return this.answers[at] ?? OTHER;
  }
}

/** A board of buttons: click to change a cell, drag a tile onto another cell to swap them, arrow keys to go, + and - to change. */
function boardOf(rules, { change, swap, label }) {
  const isGrid = rules.columns === 3;
  const box = h("div", { class: "an-cells", role: "group", "aria-label": label, style: `--columns: ${rules.columns}` });
  let [held, target, moved] = [null, null, false]; // the cell where a drag began, the cell under the pointer
  const cellAt = (event) => cells.indexOf(document.elementFromPoint(event.clientX, event.clientY)?.closest("button"));
  const cells = Array.from({ length: rules.columns ** 2 }, (_, i) => h("button", {
    type: "button", class: "an-cell", tabindex: i ? -1 : 0, "data-square": isGrid && i + 1,
    onpointerdown: (event) => { if (event.button === 0) { [held, target, moved] = [i, i, false]; event.target.releasePointerCapture(event.pointerId); } },
    onclick: (event) => { if (!moved) change(i, event.shiftKey ? -1 : 1); },
    oncontextmenu: (event) => { event.preventDefault(); change(i, -1); },
    onkeydown: (event) => {
      if (noKeys(event)) return;
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, ArrowUp: i - rules.columns, ArrowDown: i + rules.columns }[event.key];
      const by = { "+": 1, "=": 1, "-": -1, Delete: null, Backspace: null, 0: null }[event.key];
      if (to === undefined && by === undefined) return;
      event.preventDefault();
      if (to === undefined) change(i, by);
      else if (cells[to]) { cells[i].tabIndex = -1; cells[to].tabIndex = 0; cells[to].focus(); }
    },
  }));
  box.addEventListener("pointermove", (event) => {
    if (held == null || !event.buttons) return;
    const over = cellAt(event);
    if (over < 0 || over === target) return;
    [target, moved] = [over, true];
    mark();
  });
  const mark = () => cells.forEach((cell, i) => cell.classList.toggle("an-target", held != null && target !== held && (i === held || i === target)));
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) box.addEventListener(end, () => {
    if (end === "pointerup" && held != null && target !== held) swap(held, target);
    held = null;
    mark();
    setTimeout(() => { moved = false; }); // after the click
  });
  box.append(...cells);
  /** shares: of the squares, or none; wrong: the taken square that the model has answered. */
  const draw = (board, shares, wrong) => cells.forEach((cell, i) => {
    const [text, row, column] = [rules.show(board[i]), Math.floor(i / rules.columns) + 1, (i % rules.columns) + 1];
    const shown = shares && (!text || shares[i] >= 0.03);
    cell.replaceChildren(h("span", {}, text), ...(shown ? [h("small", { "aria-hidden": "true" }, percent(shares[i]))] : []));
    cell.classList.toggle("an-wrong", i === wrong || Boolean(text && shown));
    cell.style.setProperty("--share", shares?.[i] != null && !text ? shares[i] : 0);
    cell.dataset.level = typeof board[i] === "number" ? Math.log2(board[i] || 1) : text && board[i];
    cell.dataset.digits = text.length;
    cell.style.touchAction = text ? "none" : "";
    cell.setAttribute("aria-label", `${isGrid ? `square ${i + 1}` : `row ${row}, column ${column}`}: ${{ x: "cross", o: "nought" }[board[i]] ?? (text || "empty")}`);
  });
  return { box, draw };
}

function render({ model, el }) {
  const [rules, known] = [GAMES[model.get("game")], model.get("positions")]; // known: [name, what to see, cells]
  const steps = model.get("steps").map((each) => each.step);
  const policies = new Policies({ config: model.get("config"), tokenizer: model.get("tokenizer"), scale: model.get("scale"), steps }, rules.answers, rules.render);
  const view = mount(el, "policy", () => {});
  const { root } = view;
  const isGrid = rules.columns === 3;
  root.toggleAttribute("data-needs-kernel", !model.get("steps")[0].file); // see book/static/live.js
  const winning = model.get("winning_tile");
  let [at, against, seed, temperature] = [0, 0, FIRST_SEED, 0.3];
  let [board, chosen] = [known[0][2], "0"]; // chosen: the last position of the list
  let [all, job, busy] = [new Map(), 0, null]; // step -> shares on this board; the latest request; the running play
  let attempt = 0; // to load the weights

  // Steps
  const slider = h("input", { type: "range", min: 0, max: steps.length - 1, step: 1, value: 0, "aria-label": "Training step", oninput: () => goTo(Number(slider.value)) });
  const ticks = h("div", { class: "an-ticks", "aria-hidden": "true" }, ...steps.map((step, i) => h("button", { type: "button", tabindex: -1, onclick: () => goTo(i) }, String(step))));
  const facts = h("p", { class: "an-facts" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Weights loaded" });
  const status = h("p", { class: "an-loading", role: "status" }, bar, h("span", {}, "The weights load when this view is on screen."));
  const compared = select("Compared with step", steps.map((step, i) => [String(i), String(step)]), (value) => { against = Number(value); draw(); });

  // Board and answers
  const positions = select("Position", [...known.map(([name], i) => [String(i), name]), ...(isGrid ? [] : [["start", "Start of a game"]]), ["", "your own"]], setPosition);
  const reset = h("button", { type: "button", onclick: () => setPosition(chosen) }, "Reset");
  const hint = h("p", { class: "an-hint an-muted" }, known[0][1]);
  const cells = boardOf(rules, { change, swap, label: "Board" });
  const arrows = isGrid ? [] : MOVES.map((move) => h("button", { type: "button", class: "an-arrow", "data-side": move, "aria-label": `Play ${move}`, onclick: () => playing.byHand(move) }, h("i", {}, { left: "◀", right: "▶", up: "▲", down: "▼" }[move])));
  const boardStatus = h("p", { class: "an-board-status", role: "status" });
  const rows = [...rules.answers, OTHER].map((answer) => {
    const [name, legal, value, spark] = [h("th", { scope: "row" }), h("td", { class: "an-legal" }), h("td", { class: "an-share" }), h("td", { class: "an-spark" })];
    name.append(isGrid && answer !== OTHER ? `square ${answer}` : answer);
    return { answer, name, legal, value, spark, row: h("tr", { "data-answer": answer }, name, legal, value, spark) };
  });
  const axis = h("span", { class: "an-axis", "aria-hidden": "true" });
  const table = h("table", { class: "an-answers" },
    h("caption", {}, "Probability of each answer on this board, at temperature 1"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "answer"), h("th", { scope: "col" }, ""), h("th", { scope: "col" }, "probability"), h("th", { scope: "col" }, "over the steps", axis))),
    h("tbody", {}, ...rows.map((each) => each.row)));
  const legend = h("p", { class: "an-help an-muted" });
  const change_ = h("p", { class: "an-change", "aria-live": "polite" });
  const own = h("strong"); // the title of the model's board
  const playing = isGrid ? playTicTacToe() : play2048();
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, model.get("title")), compared.field),
    h("div", { class: "an-steps" }, h("span", { class: "an-muted" }, "Training step"), h("div", {}, slider, ticks)), facts, status,
    h("div", { class: "an-columns" },
      h("div", { class: "an-left" }, positions.field, hint, h("div", { class: "an-stage" }, cells.box, ...arrows), h("div", { class: "an-controls" }, boardStatus, reset), ...playing.controls ?? [],
        h("p", { class: "an-help an-muted" }, isGrid ? "Click a square for ✕, ◯ or nothing; drag a mark to move it."
          : "The arrows play a move: the stronger the colour, the more probable. Click a cell to double its tile; drag a tile to move it.",
        h("span", { class: "an-keys" }, `${isGrid ? "" : " Shift-click halves a tile."} Keys: arrows, + and −, Delete.`))),
      h("div", { class: "an-right" }, table, legend, change_)),
    playing.box);
  ticks.style.setProperty("--last", steps.length - 1);
  drawAxis();
  draw();

  /** Load the base model, then the last step, then all others; the slider starts at the base model. */
  async function load() {
    const current = ++attempt;
    bar.hidden = false;
    const wanted = [0, ...new Set([steps.at(-1), ...steps.slice(1)])];
    const files = Object.fromEntries(model.get("steps").map((each) => [each.step, each.file]));
    const total = wanted.reduce((sum, step) => sum + (files[step]?.bytes ?? 1), 0);
    let before = 0;
    for (const step of wanted) {
      if (current !== attempt) return;
      const name = step ? `step ${step}` : "the base model";
      const show = (size) => {
        bar.value = (before + size) / total;
        status.lastChild.textContent = `Loading ${name}: ${((before + size) / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
      };
      if (!policies.models.has(step)) {
        show(0);
        const bytes = files[step] ? await readBeside(files[step], show) : await fromKernel(step);
        if (current !== attempt) return;
        policies.add(step, bytes);
      }
      before += files[step]?.bytes ?? 1;
      root.dataset.loaded = policies.models.size;
      if (step === 0) refresh();
      else if (!busy) fill(++job);
      playing.ready();
      await rest(0);
    }
    status.hidden = true;
  }

  /** Return the bytes of a step from the widget's trait; the kernel sets it once it is free. */
  async function fromKernel(step) {
    if (model.get("wanted") !== step) { model.set("wanted", step); model.save_changes(); }
    while (model.get("sent") !== step) {
      status.lastChild.textContent = "Waiting for the weights: the kernel sends them when no cell runs.";
      await new Promise((done) => { const once = () => { model.off("change:sent", once); done(); }; model.on("change:sent", once); });
    }
    return model.get("weights");
  }

  function goTo(index) {
    playing.stopGames();
    at = index;
    slider.value = String(index);
    refresh();
  }

  function setBoard(next, keepsPosition = false) {
    board = next;
    if (!keepsPosition) { positions.box.value = ""; hint.textContent = ""; }
    all = new Map();
    refresh();
  }

  function setPosition(value) {
    playing.stop();
    if (value === "") return;
    chosen = positions.box.value = value;
    const [, text, cellsOf] = value === "start" ? [null, "", new Game2048(seed, winning).board] : known[Number(value)];
    hint.textContent = text;
    setBoard(cellsOf, true);
    playing.restart();
  }

  function change(i, by) {
    if (playing.takes?.(i, by)) return;
    playing.stop();
    const marks = rules.marks(winning);
    const next = by == null ? 0 : Math.max(0, marks.indexOf(board[i]) + by) % marks.length;
    setBoard(board.with(i, marks[next]));
    playing.restart();
  }

  function swap(i, j) {
    if (playing.takes && playing.isOn()) return;
    playing.stop();
    setBoard(board.with(i, board[j]).with(j, board[i]));
    playing.restart();
  }

  /** Compute the chosen step now and the others between other tasks, until the board changes. */
  function refresh() {
    const current = ++job;
    for (const step of playing.isFast() ? [] : [steps[at], steps[against]]) compute(step);
    draw();
    fill(current);
  }

  async function fill(current) {
    for (const step of steps) {
      await rest(busy ? 60 : 0);
      if (current !== job) return;
      if (compute(step)) draw();
    }
  }

  /** Return why the model has no answer to give on this board, or null. */
  function noAnswer() { return rules.refuse(board) ?? rules.over(board, winning); }

  function compute(step) {
    if (noAnswer() || all.has(step) || !policies.models.has(step)) return false;
    all.set(step, policies.shares(step, board));
    return true;
  }

  function draw() {
    const [step, over] = [steps[at], noAnswer()];
    const [now, then] = over ? [] : [all.get(step), all.get(steps[against])];
    const legal = rules.legal(board);
    const best = now && now.indexOf(Math.max(...now));
    slider.setAttribute("aria-valuetext", step ? `after step ${step}` : "before training");
    [...ticks.children].forEach((tick, i) => tick.classList.toggle("an-on", i === at));
    facts.textContent = model.get("steps")[at].facts;
    cells.draw(board, isGrid && now ? now.slice(0, 9) : null, playing.wrong?.());
    reset.disabled = positions.box.value === chosen;
    own.textContent = `Model (step ${step})`;
    legend.textContent = `Bar and large dot: step ${step}. ${at === against ? "" : `Tick across the bar and dot of its colour: step ${steps[against]}, the compared step. `}The points of each curve are the steps ${steps.join(", ")}, equally spaced.`;
    arrows.forEach((arrow, i) => {
      arrow.style.setProperty("--share", now ? now[i] : 0);
      arrow.classList.toggle("an-illegal", !over && !legal.includes(MOVES[i]));
      arrow.setAttribute("aria-disabled", Boolean(over) || !legal.includes(MOVES[i]));
    });
    const told = playing.message?.();
    boardStatus.textContent = told || (over ?? (isGrid ? `${rules.show(toMove(board))} is to move.` : ""));
    boardStatus.classList.toggle("an-warn", told ? playing.isIllegal() : Boolean(over));
    rows.forEach((each, i) => {
      const [allowed, share] = [Boolean(over) || legal.includes(each.answer), now?.[i]];
      each.row.classList.toggle("an-illegal", !allowed);
      each.row.classList.toggle("an-best", i === best);
      each.legal.textContent = allowed ? "" : "illegal";
      each.value.replaceChildren(h("span", { class: "an-bar", "aria-hidden": "true" },
        h("i", { style: `width: ${100 * (share ?? 0)}%` }), then && against !== at ? h("u", { style: `left: ${100 * then[i]}%` }) : null),
      h("span", {}, share == null ? "–" : percent(share)));
      each.spark.replaceChildren(spark(i));
    });
    change_.replaceChildren(...describe(now, then, legal));
    root.dataset.step = step;
    root.dataset.shown = over ? "" : all.size;
  }

  function placeOf(i) { return SPARK.pad + (i * (SPARK.width - 2 * SPARK.pad)) / Math.max(1, steps.length - 1); }

  function spark(answer) {
    const y = (share) => SPARK.height - 4 - share * (SPARK.height - 8);
    const points = steps.map((step, i) => [placeOf(i), all.has(step) ? y(all.get(step)[answer]) : null]);
    const text = steps.filter((step) => all.has(step)).map((step) => `step ${step}: ${percent(all.get(step)[answer])}`).join(", ");
    return s("svg", { viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, role: "img", "aria-label": text },
      s("title", {}, text), s("path", { class: "an-rule", d: `M0 ${y(0)}H${SPARK.width}` }),
      s("path", { class: "an-cursor", d: `M${placeOf(at)} 0V${SPARK.height}` }),
      s("path", { class: "an-line", d: linePath(points) }),
      ...points.flatMap(([x, py], i) => (py == null ? [] : [s("circle", { cx: x, cy: py, r: i === at ? 3.4 : 1.7, class: i === at ? "an-now" : i === against ? "an-then" : "" })])));
  }

  function drawAxis() {
    axis.replaceChildren(...[[steps[0], 0], [steps.at(-1), steps.length - 1]].map(([step, i]) => h("i", { style: `left: ${(100 * placeOf(i)) / SPARK.width}%` }, String(step))));
  }

  /** What changed between the two steps on this board, in a sentence or two. */
  function describe(now, then, legal) {
    if (playing.isFast()) return ["The games run at full speed. The table is filled in again when they end."];
    if (!now || !then) return [""];
    if (at === against) return [`Move the slider to compare another step with step ${steps[against]}.`];
    const name = (i) => rows[i].name.textContent;
    const told = now.map((share, i) => [share - then[i], i]).filter(([gain]) => Math.abs(gain) >= 0.03)
      .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 2)
      .map(([gain, i]) => `${name(i)} ${gain > 0 ? "rose" : "fell"} from ${percent(then[i])} to ${percent(now[i])}`);
    const wrong = (shares) => shares.reduce((sum, share, i) => sum + (legal.includes(rows[i].answer) ? 0 : share), 0);
    return [h("b", {}, `Step ${steps[against]} to step ${steps[at]}, on this board: `),
      told.length ? `${told.join(", ")}. ` : "no answer changed by 3 points or more. ",
      `All illegal answers together: from ${percent(wrong(then))} to ${percent(wrong(now))}.`];
  }

  function isReady() { return policies.models.has(steps[at]); }

  function dial() {
    const shown = h("output", {}, "0.3");
    const box = h("input", { type: "range", min: 0, max: 1, step: 0.1, value: 0.3, "aria-label": "Temperature",
      oninput: () => { playing.stopGames(); temperature = Number(box.value); shown.textContent = temperature ? box.value : "0 (greedy)"; } });
    return [h("label", { class: "an-field an-dial" }, h("span", {}, "Temperature"), box, shown),
      h("p", { class: "an-help an-muted" }, "Low: it nearly always plays the most likely answer. 1: it plays answers with the probabilities of the table.")];
  }

  /** The policy and the corner rule from the board shown, on the same tiles. */
  function play2048() {
    let [game, rule, random, tally, fast] = [null, null, null, null, false];
    const [left, right] = ["model", "corner rule"].map((name) => boardOf(rules, { change: () => {}, swap: () => {}, label: `Board of the ${name}` }));
    left.box.inert = right.box.inert = true;
    const tiles = pythonRandom(FIRST_SEED); // of the reader's own moves
    const [mine, theirs, score] = [h("p", { class: "an-game" }), h("p", { class: "an-game" }), h("p", { class: "an-score", role: "status" })];
    const button = (label, onclick) => h("button", { type: "button", disabled: true, onclick }, label);
    const buttons = [
      button("Play", () => {
        const paused = busy && !fast;
        stop();
        if (!paused) run(nextGame, false);
      }),
      button("One move", () => { stop(); one(); }), button("New game", () => { stop(); nextGame(); }),
      button("Play 10 games", () => { if (fast) { stopGames(); return; } stop(); seed = FIRST_SEED; tally = { step: steps[at], temperature, games: 0, mine: 0, theirs: 0, illegal: 0 }; nextGame(); run(() => nextGame(), true); }),
    ];
    const box = h("section", { class: "an-play", "aria-label": "Play" },
      h("p", { class: "an-title" }, "Let it play alongside a fixed rule"),
      h("p", { class: "an-muted" }, "The corner rule takes the first legal move of down, left, right, up. Both sides get the same new tiles."),
      h("div", { class: "an-controls" }, ...buttons, ...dial()),
      h("div", { class: "an-sides" }, h("div", {}, own, left.box, mine), h("div", {}, h("strong", {}, "Corner rule"), right.box, theirs)), score);

    function start(from) {
      [game, rule, random] = [new Game2048(seed, winning, from), new Game2048(seed, winning, from), pythonRandom(seed + 1)];
      show();
    }
    function nextGame() {
      seed += 1;
      start();
      positions.box.value = "";
      setBoard(game.board);
    }
    function describeGame(each) {
      return `${counted(each.moves, "move")}, largest tile ${Math.max(...each.board)}${each.endedBy ? `; ${ENDS[each.endedBy](winning)}` : ""}`;
    }
    function show() {
      mine.textContent = describeGame(game);
      theirs.textContent = describeGame(rule);
      left.draw(game.board);
      right.draw(rule.board);
      root.dataset.seed = seed;
      root.dataset.moves = game.moves;
      root.dataset.ended = game.endedBy ?? "";
    }
    function one() {
      if (!game || !isReady()) return;
      if (!game.endedBy) game.move(policies.answer(steps[at], game.board, temperature, random));
      if (!rule.endedBy) rule.move(cornerRule(rule.board));
      show();
      if (board !== game.board) setBoard(game.board);
    }
    /** The reader's move. Both sides continue from the resulting board. */
    function byHand(move) {
      if (noAnswer() || !legalMoves(board).includes(move)) return;
      stop();
      setBoard(spawn(slide(board, move).board, tiles));
      start(board);
    }
    function stop() {
      busy = null;
      fast = false;
      buttons[0].textContent = "Play";
      buttons[3].textContent = "Play 10 games";
    }
    function stopGames() {
      if (!fast) return;
      stop();
      refresh();
    }
    /** Play to the end, in a batch of ten games or at reading speed. next(): begins the next game. */
    async function run(next, isBatch) {
      const mark = busy = {};
      fast = isBatch;
      buttons[isBatch ? 3 : 0].textContent = isBatch ? "Stop" : "Pause";
      if (game.endedBy && !isBatch) next();
      for (;;) {
        const since = performance.now();
        while (busy === mark && !(game.endedBy && rule.endedBy)) {
          one();
          if (!isBatch || performance.now() - since > 12) break;
        }
        if (busy !== mark) return;
        if (game.endedBy && rule.endedBy) {
          if (!isBatch) break;
          tally.games += 1;
          tally.mine += game.endedBy === "won";
          tally.theirs += rule.endedBy === "won";
          tally.illegal += game.endedBy === "illegal" || game.endedBy === "malformed";
          score.textContent = `Step ${tally.step}, temperature ${tally.temperature}, ${counted(tally.games, "game")}: the model won ${tally.mine}`
            + `${tally.illegal ? ` (${tally.illegal} ended by an illegal answer)` : ""}, the corner rule ${tally.theirs}.`;
          root.dataset.games = tally.games;
          if (tally.games === 10) break;
          next();
        }
        await rest(isBatch ? 0 : 220);
      }
      if (busy === mark) stop();
      refresh();
    }
    start(board);
    return { box, stop, stopGames, byHand, restart: () => start(board), isFast: () => fast, ready: () => buttons.forEach((each) => { each.disabled = false; }) };
  }

  /** The reader against any step, and any step against the players without a model. */
  function playTicTacToe() {
    let [side, over, random] = [null, "", pythonRandom(FIRST_SEED)];
    let [said, wrong, matching] = ["", null, null]; // the line below the board; the taken square it answered; the button of the match
    const choices = [["", "set up the board"], ["x", "play ✕ against it"], ["o", "play ◯ against it"], ["both", "watch it play itself"]];
    const mode = select("You", choices, (value) => { side = value || null; if (side) newGame(); else { stop(); over = ""; tell(""); } });
    const score = h("p", { class: "an-score", role: "status" });
    const button = (label, onclick) => h("button", { type: "button", disabled: true, onclick }, label);
    const labelOf = (name) => `40 games against the ${name} player`;
    const matches = Object.keys(PLAYERS).map((name) => button(labelOf(name), () => (matching === name ? stop() : match(name))));
    const buttons = [button("New game", newGame), ...matches];
    const controls = [h("div", { class: "an-controls" }, mode.field, buttons[0], ...dial())];
    const box = h("section", { class: "an-play", "aria-label": "Play" },
      h("p", { class: "an-title" }, "Let it play 40 games"),
      h("p", { class: "an-muted" }, "Each game starts after two random moves, one per side, from which neither side can force a win. The model alternates between ✕ and ◯, at the temperature set above."),
      h("div", { class: "an-controls" }, ...matches), score);

    function newGame() {
      stop();
      over = "";
      setBoard([..."........."]);
      turn();
    }
    function stop() {
      busy = matching = null;
      matches.forEach((each, i) => { each.textContent = labelOf(Object.keys(PLAYERS)[i]); });
    }
    function tell(text, square = null) {
      [said, wrong] = [text, square];
      root.dataset.ended = over;
      draw();
    }

    function ended() {
      const won = winnerOf(board);
      if (won) over = won;
      else if (!freeSquares(board).length) over = "draw";
      return over;
    }

    async function turn() {
      if (!side || !isReady()) { tell(side ? "The weights are still being loaded." : ""); return; }
      const mark = busy = {};
      while (!ended()) {
        if (toMove(board) === side) { stop(); tell(`Your turn: you are ${rules.show(side)}.`); return; }
        tell("It is choosing a square.");
        await rest(350);
        if (busy !== mark) return;
        if (!isReady()) { stop(); tell("The weights are still being loaded."); return; }
        const square = policies.answer(steps[at], board, temperature, random);
        if (!freeSquares(board).includes(square)) {
          over = "illegal";
          stop();
          tell(`It answered ${square === OTHER ? "something other than a square" : `square ${square}, which is taken`}: it loses.`, SQUARES.indexOf(square));
          return;
        }
        setBoard(afterSquare(board, square));
      }
      stop();
      tell(over === "draw" ? "A draw." : over === side ? "You won." : side === "both" ? `${rules.show(over)} won.` : "It won.");
    }

    /** Play 40 games of this step against a player without a model, sides in turn, each from two random moves after which perfect play draws. */
    async function match(name) {
      stop();
      if (!isReady()) return;
      if (side && !over && toMove(board) !== side) tell("The game was stopped. Start a new one.");
      const [mark, step] = [busy = {}, steps[at]];
      matching = name;
      matches[Object.keys(PLAYERS).indexOf(name)].textContent = "Stop";
      const found = { won: 0, drawn: 0, lost: 0 };
      const chance = pythonRandom(FIRST_SEED);
      for (let i = 0; i < 40; i++) {
        let [state, loser] = [null, null];
        do {
          state = [..."........."];
          for (let k = 0; k < 2; k++) state = afterSquare(state, PLAYERS.random(state, chance));
        } while (valueOf(state) !== 0);
        const mine = "xo"[i % 2];
        while (freeSquares(state).length && !loser) {
          if (toMove(state) === mine) {
            const square = policies.answer(step, state, temperature, chance);
            if (freeSquares(state).includes(square)) state = afterSquare(state, square);
            else loser = mine;
          } else state = afterSquare(state, PLAYERS[name](state, chance));
        }
        const won = loser ? null : winnerOf(state);
        found[loser || (won && won !== mine) ? "lost" : won ? "won" : "drawn"] += 1;
        score.textContent = `Step ${step}, temperature ${temperature}, ${counted(i + 1, "game")} against the ${name} player: won ${found.won}, drew ${found.drawn}, lost ${found.lost}.`;
        root.dataset.games = i + 1;
        await rest(0);
        if (busy !== mark) return;
      }
      stop();
    }

    return {
      box, controls, stop, stopGames: () => { if (matching) stop(); }, message: () => said, wrong: () => wrong, isIllegal: () => over === "illegal",
      isOn: () => side, isFast: () => false, restart: () => { over = ""; if (side) turn(); },
      ready() {
        buttons.forEach((each) => { each.disabled = false; });
        if (side && !busy && !over) turn();
      },
      takes(i, by) {
        if (!side || side === "both") return Boolean(side);
        if (by === 1 && !over && !busy && isReady() && toMove(board) === side && board[i] === ".") {
          setBoard(afterSquare(board, SQUARES[i]));
          turn();
        }
        return true;
      },
    };
  }

  const start = () => {
    const current = attempt + 1;
    load().catch((error) => { if (current === attempt) failed(error); });
  };
  const failed = (error) => {
    status.hidden = false;
    bar.hidden = true;
    status.lastChild.textContent = `The weights could not be loaded (${error.message}). Reload the page to try again.`;
  };
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    start();
  }, { rootMargin: "300px" });
  seen.observe(root);
  // Firefox and WebKit keep a page in the back/forward cache but abort its downloads: restart them on return.
  const back = (event) => { if (event.persisted && attempt && !status.hidden) start(); };
  addEventListener("pageshow", back);
  return () => { attempt++; job++; removeEventListener("pageshow", back); seen.disconnect(); playing.stop(); view.stop(); };
}

export default { render };
