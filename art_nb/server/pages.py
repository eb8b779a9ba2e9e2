"""The page that asks for the token."""

LOGIN = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>art_nb</title><style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
form { max-width: 24rem; margin: 20vh auto; padding: 0 1rem; display: grid; gap: .75rem }
input, button { font: inherit; padding: .5rem }
</style></head><body>
<form method="post" action="login">
<label for="token">The token that the server printed when it was first started</label>
<input id="token" name="token" type="password" required autofocus autocomplete="current-password">
<button>Open</button>
</form></body></html>
"""
