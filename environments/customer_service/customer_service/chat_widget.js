// ChatWidget in the browser: the reader writes as the customer; the kernel runs the agent and sends its reply.

function render({ model, el }) {
  const view = mount(el, "chat", draw);
  const { root } = view;
  const hasKernel = typeof model.send === "function"; // a page of the book has only the state
  const [stop, longest] = [model.get("stop"), model.get("longest")];
  const open = new Set(); // the calls that are unfolded

  const shown = () => model.get("shown");
  const lines = () => model.get("lines");
  const waits = () => lines().length !== shown().lines;

  const talk = h("ol", { class: "an-talk", role: "log", tabindex: 0, "aria-label": "The conversation" });
  const changes = h("ul", { class: "an-changes" });
  const broken = h("ul", { class: "an-broken" });
  const outcome = h("p", { class: "an-outcome", role: "status" });
  const input = h("input", {
    type: "text", class: "an-line", maxlength: longest, "aria-label": "What you say as the customer", placeholder: "Write as the customer",
    onkeydown: (event) => { // a form would do, but JupyterLab keeps Enter from submitting it
      if (event.key !== "Enter" || event.isComposing || noKeys(event)) return;
      event.preventDefault();
      say(input.value);
    },
  });
  const button = (text, title, onclick) => h("button", { type: "button", title, onclick }, text);
  const send = button("Send", "Send your line (Enter)", () => say(input.value));
  const scripted = button("Let the customer speak", "", () => say(shown().suggestion));
  const leave = button("Leave", "Leave and end the conversation", () =>
    say(`${(input.value.trim() || "Goodbye.").slice(0, longest - stop.length - 1)} ${stop}`));
  const back = button("Undo", "Removes your last line and everything after it", () => put(lines().slice(0, -1)));
  const anew = button("Restart", "Removes all lines", () => put([]));
  const desk = h("div", { class: "an-desk" }, input, send, scripted, leave, back, anew);
  const card = h("p", { class: "an-card", dir: "auto" }, model.get("role"));
  root.append(
    h("header", { class: "an-head" }, h("strong", {}, "You are the customer"), outcome),
    h("details", { class: "an-role", open: true }, h("summary", {}, "What you know and want"), card),
    h("div", { class: "an-columns" }, talk,
      h("section", { class: "an-beside", "aria-label": "The database" }, h("b", {}, "Changed in the database"), changes, h("b", {}, "Policy violations"), broken)),
    desk);

  function put(said) {
    if (!hasKernel || waits()) return;
    model.set("lines", said);
    model.save_changes();
    draw();
  }

  function say(text) {
    if (!text.trim() || shown().over || waits()) return;
    input.value = "";
    put([...lines(), text.trim().slice(0, longest)]);
  }

  function message(who, text, pending) {
    const left = text.includes(stop);
    const said = text.replaceAll(stop, "").trim();
    return h("li", { class: `an-said an-${who}${pending ? " an-pending" : ""}` },
      h("span", { class: "an-who" }, who === "customer" ? "You" : "Agent"), h("p", { class: "an-words", dir: "auto" }, said),
      left ? h("span", { class: "an-muted" }, "leaves") : null);
  }

  function call(entry, i) {
    return h("li", { class: entry.refused ? "an-call an-refused" : "an-call" },
      h("details", {
        open: open.has(i), ontoggle: (event) => { if (event.target.open) open.add(i); else open.delete(i); },
      },
      h("summary", {}, entry.refused ? "✗ " : "", h("code", {}, entry.name), " ", h("span", { class: "an-muted" }, entry.given)),
      h("pre", {}, entry.answer)));
  }

  const list = (box, texts, none) => box.replaceChildren(...(texts.length ? texts.map((text) => h("li", {}, text)) : [h("li", { class: "an-muted" }, none)]));

  function status({ over, error, solved }, waiting) {
    if (!hasKernel) return "To write here, run the notebook.";
    if (waiting) return "Waiting for the kernel. It cannot reply while a cell is running.";
    if (error) return error;
    if (over) return solved
      ? "The conversation is over. The database is correct, and the agent told you everything that you need. The task is solved."
      : "The conversation is over. The task is not solved.";
    return lines().length ? "Your turn." : "You begin.";
  }

  function draw() {
    const [now, waiting] = [shown(), waits()];
    const pending = waiting && lines().length > now.lines ? [message("customer", lines().at(-1), true)] : [];
    talk.replaceChildren(...now.entries.map((entry, i) => (entry.who === "call" ? call(entry, i) : message(entry.who, entry.text))), ...pending);
    talk.scrollTop = talk.scrollHeight;
    list(changes, now.changes, "nothing");
    list(broken, Object.entries(now.broken).map(([rule, times]) => `${rule.replaceAll("_", " ")}, ${times}×`), "none");
    outcome.textContent = status(now, waiting);
    root.classList.toggle("an-waiting", waiting);
    root.dataset.lines = now.lines;
    desk.hidden = !hasKernel;
    const closed = waiting || now.over;
    for (const node of [send, leave]) node.disabled = closed;
    input.readOnly = closed;
    scripted.disabled = closed || !now.suggestion;
    scripted.title = now.suggestion ? `The scripted customer's next line: ${now.suggestion.replaceAll(stop, "").trim()}` : "This task has no script, or the conversation is over";
    for (const node of [back, anew]) node.disabled = waiting || !lines().length;
  }

  const follow = () => { if (!shown().lines) open.clear(); draw(); };
  model.on("change:shown", follow);
  model.on("change:lines", draw);
  draw();
  return () => { model.off("change:shown", follow); model.off("change:lines", draw); view.stop(); };
}

export default { render };
