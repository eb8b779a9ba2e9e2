"""A view alone on a page, without a kernel."""

from __future__ import annotations

import base64
import json

PAGE = """<body style="margin: 0; background: {background}; --jp-ui-font-color0: {ink}; --jp-layout-color1: {background}">
<style>{css}</style><div id="view"></div><script type="module">
const state = {state};
for (const [name, packed] of Object.entries({packed})) {{
  state[name] = new DataView(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)).buffer);
}}
const model = {{ get: (name) => state[name], set() {{}}, save_changes() {{}}, on() {{}}, off() {{}} }};
const {{ default: widget }} = await import(URL.createObjectURL(new Blob([{module}], {{ type: "text/javascript" }})));
widget.render({{ model, el: document.getElementById("view") }});
</script>"""


def show_alone(page, view, background="#ffffff", ink="#111111"):
    state = {name: value for name, value in view.get_state().items() if not name.startswith("_")}
    packed = {name: base64.b64encode(value).decode() for name, value in state.items() if isinstance(value, bytes | memoryview)}
    texts = {"state": {name: value for name, value in state.items() if name not in packed}, "packed": packed, "module": view._esm}
    page.set_content(PAGE.format(background=background, ink=ink, css=view._css, **{name: json.dumps(text) for name, text in texts.items()}))
