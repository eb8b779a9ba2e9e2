"""The page that asks for the token; not where a code stands in its address, behind the #, which browsers do not send."""

import base64
import hashlib

SCRIPT = """
const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) {
  history.replaceState(null, "", location.pathname);
  fetch("login", { method: "POST", body: new URLSearchParams({ code }) }).then((answer) => answer.ok && location.reload());
}
"""
SCRIPT_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"  # for the policy of guard.py

LOGIN = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>art_nb</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
form {{ max-width: 24rem; margin: 20vh auto; padding: 0 1rem; display: grid; gap: .75rem }}
input, button {{ font: inherit; padding: .5rem }}
</style></head><body>
<form method="post" action="login">
<label for="token">The token that the server printed when it was first started</label>
<input id="token" name="token" type="password" required autofocus autocomplete="current-password">
<button>Open</button>
</form><script>{SCRIPT}</script></body></html>
""".encode()
