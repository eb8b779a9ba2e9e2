// Renders the widgets of a page without a kernel. Each is embedded as JSON: an anywidget module, its style and its state.
// Until it is rendered, and without JavaScript, the page shows the widget's static picture and the numbers after it.

/** Stands in for the anywidget model that a widget's `render` expects; its state exists only in this page. */
function modelOf(state) {
  const heard = {};
  const tell = (event) => { for (const listener of [...(heard[event] ?? [])]) listener(); };
  return {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      tell(`change:${name}`);
      tell("change");
    },
    save_changes() {},
    on(event, listener) { (heard[event] ??= new Set()).add(listener); },
    off(event, listener) { heard[event]?.delete(listener); },
  };
}

/** Return a widget's state as saved in the notebook, with its buffers decoded to the DataViews that a kernel sends. */
function stateOf({ state, buffers = [] }) {
  for (const { path: [name], data } of buffers) {
    state[name] = new DataView(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
  }
  return state;
}

async function draw(script) {
  const { _esm, _css, ...state } = stateOf(JSON.parse(script.textContent));
  const address = URL.createObjectURL(new Blob([_esm], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  URL.revokeObjectURL(address);
  const [style, el] = [document.createElement("style"), document.createElement("div")];
  style.textContent = _css;
  el.className = "art-nb-live";
  script.after(style, el);
  await widget.render({ model: modelOf(state), el });
  if (el.querySelector("[data-needs-kernel]")) { el.remove(); script.remove(); return; }  // its picture remains
  const still = script.parentElement.nextElementSibling;  // the picture, then the numbers (see art_nb/widgets/view.py)
  if (!still?.nextElementSibling?.querySelector(".art-nb-still")) return;
  still.hidden = still.nextElementSibling.hidden = true;
}

for (const script of document.querySelectorAll("script.art-nb-state")) draw(script);
