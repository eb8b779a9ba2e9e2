// The live page: what the server says over its WebSocket, in the widgets that notebooks have.
// Text reaches the page as text nodes only.

import training from "./training_view.js";
import viewer from "./trajectory_viewer.js";

const byId = (id) => document.getElementById(id);
const element = (tag, text, attrs = {}) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
  node.append(text);
  return node;
};

/** What a widget's render is given in a notebook, its values from the server. */
class Model {
  constructor(values) { this.values = values; this.listeners = new Set(); }
  get(name) { return this.values[name]; }
  set(name, value) { this.values[name] = value; }
  save_changes() {}
  on(_, listener) { this.listeners.add(listener); }
  off(_, listener) { this.listeners.delete(listener); }
  update(values) { this.values = values; for (const listener of this.listeners) listener(); }
}

class Shown {
  constructor(place, widget) { this.place = place; this.widget = widget; this.model = null; this.stop = () => {}; }
  clear() { this.stop(); this.stop = () => {}; this.model = null; this.place.replaceChildren(); }
  show(values) {
    if (this.model) { this.model.update(values); return; }
    this.model = new Model(values);
    this.stop = this.widget.render({ model: this.model, el: this.place }) ?? (() => {});
  }
}

const curve = new Shown(byId("curve"), training);
const trajectories = new Shown(byId("trajectories"), viewer);
let [socket, watched, wait, waiting, numbers] = [null, null, 1, null, ""];

function say(text, lost = false) {
  const link = byId("link");
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("lost", lost);
}

function watch(id) {
  if (id === watched) return;
  watched = id;
  curve.clear();
  trajectories.clear();
  byId("newer").hidden = true;
  socket.send(JSON.stringify({ watch: id }));
}

function showState({ models, facts, last }) {
  const shown = [...facts, ["last news", last || "none"]];
  if (numbers !== JSON.stringify(shown)) {
    numbers = JSON.stringify(shown);
    byId("numbers").replaceChildren(...shown.map(([name, value]) => {
      const box = element("div", element("dt", name));
      box.append(element("dd", String(value), typeof value === "string" ? { class: "long" } : {}));
      return box;
    }));
  }
  const runs = byId("runs");
  for (const { id, base_model: base, step } of models) {
    let button = [...runs.children].find((one) => one.dataset.id === id);
    if (!button) {
      button = element("button", "", { type: "button", "data-id": id });
      button.addEventListener("click", () => { watch(id); showState({ models, facts, last }); });
      runs.append(button);
    }
    const text = `step ${step}, on ${base}`;
    if (button.textContent !== id + text) button.replaceChildren(id, element("small", text));
    button.setAttribute("aria-pressed", String(id === watched));
  }
  if (!models.length && !runs.children.length) runs.textContent = "No model is registered yet.";
  else [...runs.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).forEach((node) => node.remove());
  if (watched == null && models.length) { watch(models[0].id); showState({ models, facts, last }); }
}

function showTrajectories(values) {
  const bytes = Uint8Array.from(atob(values.bodies), (letter) => letter.charCodeAt(0));
  values.bodies = new DataView(bytes.buffer);
  const button = byId("newer");
  const open = () => { button.hidden = true; trajectories.clear(); trajectories.show(values); };
  if (!trajectories.model) { open(); return; }
  button.textContent = `Show those of step ${values.index[0].step}`;  // who reads one is not interrupted
  button.onclick = open;
  button.hidden = false;
}

function connect() {
  const address = new URL("live", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  socket = new WebSocket(address);
  socket.addEventListener("open", () => {
    wait = 1;
    say("live");
    if (watched != null) socket.send(JSON.stringify({ watch: watched }));
  });
  socket.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    if (message.state) showState(message.state);
    if (message.model !== watched) return;
    if (message.training) curve.show(message.training);
    if (message.trajectories) showTrajectories(message.trajectories);
  });
  socket.addEventListener("close", async () => {
    say("The server does not answer. Trying again.", true);
    const answer = await fetch("status").catch(() => null);
    if (answer?.status === 401) { location.reload(); return; }  // it asks for the token
    clearTimeout(waiting);
    waiting = setTimeout(connect, 1000 * wait);
    wait = Math.min(2 * wait, 10);
  });
}

if (location.hash) history.replaceState(null, "", location.pathname);  // a code that was not needed
connect();
