// A thing to drag in a drawing, by pointer and by keys: a focusable SVG group that says its value (role slider).
// It stands before common.js in the modules of the explorers. Its values have two decimals, so that 0.1 stays 0.1.

const KEY_STEPS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 };

/**
 * label; vertical; step and leap (with Shift) of the arrow keys; range() -> [lowest, highest]; get() -> value;
 * set(value) while it moves; done() when it rests; valueAt(event) -> the value under the pointer; shapes: what is seen.
 * Returns the node and say(text), which tells assistive technology the value.
 */
function handle({ label, vertical = false, step, leap, range, get, set, done, valueAt, shapes }) {
  let grip = null; // value under the pointer less the handle's own, so that it does not jump when it is taken
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
    ontouchstart: (event) => event.preventDefault(), // a finger drags and does not scroll; CSS cannot say so inside an SVG
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
