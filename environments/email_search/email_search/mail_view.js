// A trajectory of the email task as a mail client would show it: the question, searches with their hits, the mail that
// was read, the answer beside the truth. The data come from mail_view.py; all text is inserted as text nodes.

const OUTCOMES = {
  correct: ["✓", "Correct"], wrong: ["✗", "Wrong"], gave_up: ["✗", "Gave up"], out_of_turns: ["✗", "Out of turns"],
  malformed: ["✗", "Malformed call"], answered: ["", "Answered"],
};
const ACTIONS = new Map([["search_emails", "Search"], ["read_email", "Read"], ["return_final_answer", "Answer"]]);

/** Text of unknown direction, isolated so that it cannot reorder the text around it. */
const written = (text) => h("bdi", {}, text);

/** Render the pieces from mail_view.py: strings, and [string, kind] for the words to highlight. */
const marked = (pieces) => pieces.map((piece) => (typeof piece === "string" ? piece
  : h("mark", { class: `an-${piece[1] === "query" ? "query" : "question"}` }, piece[0])));
const withMarks = (pieces) => h("bdi", {}, ...marked(pieces));

/** The pane of one trajectory: show(mail) fills it, at(i) goes to a step; `goTo` is called with the step that is clicked. */
function taskPane(goTo) {
  const asked = h("div", { class: "an-asked" });
  const actions = h("ol", { class: "an-actions", tabindex: 0, "aria-label": "What the agent did" });
  const reader = h("div", { class: "an-reader", tabindex: 0, role: "document", "aria-label": "The mail that was read" });
  const verdict = h("div", { class: "an-verdict", "aria-label": "The answer and the truth" });
  const box = h("div", { class: "an-mailbox" }, asked, h("div", { class: "an-panes" }, actions, reader), verdict);
  let [mail, items] = [null, []];

  /** The step that reads this mail, at or after step i if there is one. */
  function reading(id, i = 0) {
    const reads = mail.steps.flatMap((step, k) => (step.mail?.id === id ? [k] : []));
    return reads.find((k) => k >= i) ?? reads.at(-1);
  }

  const isRight = (id) => mail.truth_sources.includes(id);
  const wasListed = (id) => mail.steps.some((step) => step.mail?.id === id || step.hits?.some((hit) => hit.id === id));

  function hitRow(hit, i) {
    const read = reading(hit.id, i);
    const notes = [isRight(hit.id) && "contains the answer", read == null && "not read"].filter(Boolean).join(", ");
    return h("button", {
      type: "button", class: ["an-hit", read == null ? "" : "an-was-read", isRight(hit.id) ? "an-right" : ""].join(" "), "data-id": hit.id,
      onclick: () => (read == null ? peek(hit, i) : goTo(read)),
    },
    h("span", { class: "an-sender" }, written(hit.sender)), h("span", { class: "an-muted an-day" }, hit.date),
    h("span", { class: "an-subject" }, withMarks(hit.subject), h("span", { class: "an-muted" }, " — ", withMarks(hit.snippet))),
    h("span", { class: "an-muted an-id" }, isRight(hit.id) ? h("b", { class: "an-good", title: notes }, "✓ ") : null, written(hit.id)));
  }

  function action(step, i) {
    const given = step.given.map(([name, value]) => h("span", { class: "an-given" },
      h("span", { class: "an-muted" }, written(name)), " ",
      ...[value].flat().flatMap((one, k) => [k ? ", " : "", written(one)])));
    const found = step.hits && (step.hits.length ? counted(step.hits.length, "hit") : "no hits");
    const note = step.note && step.name !== "return_final_answer" || step.fault ? step.note : "";
    return h("li", { class: step.fault ? "an-action an-fault" : "an-action", "data-action": i },
      h("div", { class: "an-call", onclick: () => goTo(i) },
        h("b", {}, ACTIONS.get(step.name) ?? (step.name ? written(step.name) : "No call")), ...given,
        h("span", { class: step.fault ? "an-outcome an-bad" : "an-outcome an-muted" }, step.fault ? `✗ ${step.fault}` : found || "")),
      ...(step.hits ?? []).map((hit) => hitRow(hit, i)), note ? h("p", { class: "an-note", dir: "auto" }, note) : null);
  }

  /** Show a mail that the agent did not read: only its search result is known. */
  function peek(hit, i) {
    goTo(i);
    open(null, hit.id);
    reader.replaceChildren(h("p", { class: "an-muted" }, "The agent did not read this mail. It saw only this:"),
      headers([["id", [hit.id]], ["from", [hit.sender]], ["date", [hit.date]], ["subject", hit.subject]]), letter(hit.snippet));
  }

  const headers = (list) => h("dl", {}, ...list.flatMap(([name, pieces]) => [h("dt", {}, name), h("dd", { dir: "auto" }, ...marked(pieces))]));
  const letter = (pieces) => h("div", { class: "an-letter", dir: "auto" }, ...marked(pieces));

  /** Show the mail that a step read, and highlight the hits with this id; without a step, only highlight. */
  function open(step, id = step?.mail.id) {
    if (!step) reader.replaceChildren(h("p", { class: "an-muted" }, "No mail has been read yet."));
    else reader.replaceChildren(headers([["id", [step.mail.id]], ...step.mail.headers]), letter(step.mail.body));
    reader.dataset.mail = step?.mail.id ?? "";
    reader.scrollTop = 0;
    for (const hit of actions.querySelectorAll(".an-hit")) hit.classList.toggle("an-open", hit.dataset.id === id);
  }

  function source(id) {
    const [right, read, listed] = [isRight(id), reading(id), wasListed(id)];
    const name = [right ? "✓ " : "✗ ", written(id), listed ? "" : " (never listed)"];
    const look = { class: right ? "an-source an-good" : "an-source an-bad" };
    return read == null ? h("span", look, ...name) : h("button", { type: "button", ...look, onclick: () => goTo(read) }, ...name);
  }

  function judge() {
    const [sign, word] = OUTCOMES[mail.outcome];
    const tone = mail.outcome === "correct" ? "an-good" : mail.outcome === "answered" ? "" : "an-bad";
    const pair = (label, ...values) => h("div", { class: "an-pair" }, h("span", { class: "an-muted" }, label), ...values);
    const sources = mail.sources.length ? mail.sources.map(source) : [h("span", { class: "an-muted" }, "none")];
    verdict.dataset.outcome = mail.outcome;
    verdict.replaceChildren(h("b", { class: `an-word ${tone}` }, `${sign} ${word}`),
      pair("answer", h("b", { class: tone }, mail.answer == null ? "–" : written(mail.answer))), pair("sources", ...sources),
      pair("truth", h("b", {}, written(mail.truth || "unknown"))),
      pair("found in", h("span", {}, ...mail.truth_sources.flatMap((id) => [written(id), " "]))));
  }

  function show(next) {
    mail = next;
    asked.replaceChildren(h("strong", { class: "an-question-text", dir: "auto" }, mail.question),
      h("span", { class: "an-muted" }, ...(mail.inbox ? ["inbox ", written(mail.inbox), "  ·  today ", written(mail.today)] : [])));
    items = mail.steps.map(action);
    actions.replaceChildren(...items);
    open(null);
    judge();
  }

  /** Go to step i and show the last mail read so far; at the answer, a cited source if one was read. */
  function at(i) {
    items.forEach((item, k) => item.classList.toggle("an-now", k === i));
    const reads = mail.steps.slice(0, i + 1).filter((step) => step.mail);
    const named = mail.steps[i].name === "return_final_answer" && reads.findLast((step) => mail.sources.includes(step.mail.id));
    open(named || reads.at(-1));
    const [top, end] = [items[i].offsetTop, items[i].offsetTop + items[i].offsetHeight];
    if (end > actions.scrollTop + actions.clientHeight) actions.scrollTop = end - actions.clientHeight;
    if (top < actions.scrollTop) actions.scrollTop = top;
  }

  return { box, show, at };
}

