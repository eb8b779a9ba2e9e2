// A draggable handle in an SVG, for pointer and keyboard: a focusable group that announces its value (role slider).
// It precedes common.js in the explorers' modules. Values are rounded to two decimals, so that 0.1 stays 0.1.

const KEY_STEPS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 };

/**
 * label; vertical; step and leap (with Shift) of the arrow keys; range() -> [lowest, highest]; get() -> value;
 * set(value) during a move; done() at its end; valueAt(event) -> the value under the pointer; shapes: the visible elements.
 * Returns the node and say(text), which tells assistive technology the value.
 */
function handle({ label, vertical = false, step, leap, range, get, set, done, valueAt, shapes }) {
  let grip = null; // the pointer's offset from the handle's value, so that the handle does not jump when it is grabbed
  const put = (value) => {
    const [lo, hi] = range();
    set(Math.min(hi, Math.max(lo, Math.round(value * 100) / 100)));
  };
  const release = () => {
    if (grip == null) return;
    grip = null;
    node.classList.remove("an-held");
    done();
  };
  const node = s("g", {
    class: "an-handle", tabindex: 0, role: "slider", "aria-label": label,
    "aria-orientation": vertical ? "vertical" : "horizontal",
    ontouchstart: (event) => event.preventDefault(), // drag, do not scroll; touch-action has no effect in an SVG
    onpointerdown: (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      node.focus({ preventScroll: true });
      node.setPointerCapture(event.pointerId);
      node.classList.add("an-held");
      grip = valueAt(event) - get();
    },
    onpointermove: (event) => { if (grip != null) put(valueAt(event) - grip); },
    onpointerup: release, onpointercancel: release, onlostpointercapture: release,
    onkeydown: (event) => {
      if (noKeys(event)) return;
      const [lo, hi] = range();
      const moves = KEY_STEPS[event.key] * (event.shiftKey ? leap : step);
      const value = { Home: lo, End: hi }[event.key] ?? get() + moves;
      if (Number.isNaN(value)) return;
      event.preventDefault();
      put(value);
      done();
    },
  }, ...shapes);
  const say = (text) => {
    const [lo, hi] = range();
    build(node, { "aria-valuemin": lo, "aria-valuemax": hi, "aria-valuenow": get(), "aria-valuetext": text }, []);
  };
  return { node, say };
}
