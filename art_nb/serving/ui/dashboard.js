// The live page: shows the messages of the server's WebSocket in the widgets of the notebooks.
// Text is inserted as text nodes only, never as HTML.

import training from "./training_view.js";
import viewer from "./trajectory_viewer.js";

const byId = (id) => document.getElementById(id);
const element = (tag, text, attrs = {}) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
  node.append(text);
  return node;
};

/** Stands in for the anywidget model that a widget's `render` expects; its values come from the server. */
class WidgetModel {
  constructor(values) { this.values = values; this.listeners = new Set(); }
  get(name) { return this.values[name]; }
  on(_, listener) { this.listeners.add(listener); }
  off(_, listener) { this.listeners.delete(listener); }
  update(values) { this.values = values; for (const listener of this.listeners) listener(); }
}

class MountedWidget {
  constructor(element, widget) { this.element = element; this.widget = widget; this.model = null; this.stop = () => {}; }
  clear() { this.stop(); this.stop = () => {}; this.model = null; this.element.replaceChildren(); }
  show(values) {
    if (this.model) { this.model.update(values); return; }
    this.model = new WidgetModel(values);
    this.stop = this.widget.render({ model: this.model, el: this.element }) ?? (() => {});
  }
}

const curve = new MountedWidget(byId("curve"), training);
const trajectories = new MountedWidget(byId("trajectories"), viewer);
let [socket, selected, delay, reconnecting, shownFacts] = [null, null, 1, null, ""];
let counted = { tokens: 0, seconds: 0 };  // sampled before the last message

function showLink(text, lost = false) {
  const link = byId("link");
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("lost", lost);
}

function select(id) {
  if (id === selected) return;
  selected = id;
  curve.clear();
  trajectories.clear();
  byId("newer").hidden = true;
  byId("shown").textContent = "";
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ watch: id }));  // else it is sent on opening
}

/** Tokens sampled per second since the last message; 0 when nothing is being sampled. */
function throughput({ tokens, seconds, active }) {
  const [newTokens, newSeconds] = [tokens - counted.tokens, seconds - counted.seconds];
  counted = { tokens, seconds };
  return active && newSeconds > 0 ? Math.round(newTokens / newSeconds) : 0;
}

function showState(state) {
  const { sampling, work, workers, last } = state;
  showFacts([
    ["active requests", sampling.active], ["waiting requests", sampling.waiting], ["tokens per second", throughput(sampling)],
    ["workers", Object.keys(workers).length], ["open episodes", work.open], ["leased episodes", work.leased],
    ["finished episodes", work.done], ...Object.entries(workers).map(([name, held]) => [`worker ${name}`, `${held} ${held === 1 ? "episode" : "episodes"}`]),
    ["last message", last || "none"],
  ]);
  showModels(state.models.map((model) => ({ ...model, id: `${model.project}/${model.name}` })));
}

function showFacts(shown) {
  if (shownFacts !== JSON.stringify(shown)) {
    shownFacts = JSON.stringify(shown);
    byId("facts").replaceChildren(...shown.map(([name, value]) => {
      const box = element("div", element("dt", name));
      box.append(element("dd", String(value), typeof value === "string" ? { class: "long" } : {}));
      return box;
    }));
  }
}

let latestModels = [];

function showModels(models) {
  latestModels = models;
  const buttons = byId("model-buttons");
  for (const { id, base_model: base, step } of models) {
    let button = [...buttons.children].find((one) => one.dataset.id === id);
    if (!button) {
      button = element("button", "", { type: "button", "data-id": id });
      button.addEventListener("click", () => { select(id); showModels(latestModels); });
      buttons.append(button);
    }
    const text = `step ${step}, base model ${base}`;
    if (button.textContent !== id + text) button.replaceChildren(id, element("small", text));
    button.setAttribute("aria-pressed", String(id === selected));
  }
  if (!models.length && !buttons.children.length) buttons.textContent = "No model is registered yet.";
  else [...buttons.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).forEach((node) => node.remove());
  if (selected == null && models.length) { select(models[0].id); showModels(models); }
}

function showTrajectories(values) {
  if (trajectories.model?.get("packed") === values.bodies) return;  // sent again after a reconnection
  values.packed = values.bodies;
  const bytes = Uint8Array.from(atob(values.packed), (letter) => letter.charCodeAt(0));
  values.bodies = new DataView(bytes.buffer);
  const button = byId("newer");
  const [shown, total] = [values.index.length, values.total];
  const open = () => {
    button.hidden = true;
    trajectories.clear();
    trajectories.show(values);
    byId("shown").textContent = shown < total ? `The first ${shown} of the step's ${total} trajectories.` : "";
  };
  if (!trajectories.model) { open(); return; }
  button.textContent = `Show step ${values.index[0].step}`;  // a trajectory that is being read stays open
  button.onclick = open;
  button.hidden = false;
}

function connect() {
  const address = new URL("live", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  socket = new WebSocket(address);
  socket.addEventListener("open", () => {
    delay = 1;
    showLink("connected");
    if (selected != null) socket.send(JSON.stringify({ watch: selected }));
  });
  socket.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    if (message.state) showState(message.state);
    if (message.model !== selected) return;
    if (message.training) curve.show(message.training);
    if (message.trajectories) showTrajectories(message.trajectories);
  });
  socket.addEventListener("close", async () => {
    showLink("Connection lost. Reconnecting.", true);
    const answer = await fetch("status").catch(() => null);
    if (answer?.status === 401) { location.reload(); return; }  // shows the login page
    clearTimeout(reconnecting);
    reconnecting = setTimeout(connect, 1000 * delay);
    delay = Math.min(2 * delay, 10);
  });
}

if (location.hash) history.replaceState(null, "", location.pathname);  // an unused login code
connect();
