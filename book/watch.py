"""Write the page "Watch it learn": the trained policies of data/policy_*, run by the reader's browser.

Each policy is one base model in float16 and one adapter a step in 8 bits, as files beside the page. Where a browser may not
read files, as on a page that was opened from the disk, the page loads the same bytes as a script.

Depends on the standard library and course.policy_files.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "notebooks"))  # make book installs no package of the project

from course.policy_files import POSITIONS, half_precision, policy_parts, script, style  # noqa: E402

POLICIES = {"2048": "policy_2048", "tic_tac_toe": "policy_tic_tac_toe"}  # placeholder of the page -> item of data/
TITLES = {"2048": "2048, to the tile {winning_tile}", "tic_tac_toe": "Tic-tac-toe"}
FOLDER = "policies"
CORNER_RULE_WON = 52  # of the 100 games of 2048 in training.json
# Position -> what the committed weights show there. A test checks each claim.
SEEN = {
    "Up or right": "The last step answers up all the same: it has learned to avoid right.",
    "One move from the win": "The last step answers up with 98% and misses the win: it does not look ahead.",
    "Opposite corners": "The last step's most likely answer is square 5, which is taken: an illegal answer loses the game.",
}


def with_policies(text: str, folder: Path) -> str:
    """Return the text with each placeholder {{game}} replaced by the game's view. Writes the weights to folder/policies."""
    for game, item in POLICIES.items():
        text = text.replace(f"{{{{{game}}}}}", view_of(game, ROOT / "data" / item, folder))
    return text


def view_of(game: str, item: Path, folder: Path) -> str:
    """Return one line of HTML that static/live.js turns into the view of a policy. Writes its weights to folder/policies."""
    facts = json.loads((item / "training.json").read_text("utf-8"))
    base = ROOT / "data" / facts["base"]
    sources = {0: base / "model.safetensors", **{int(path.stem): path for path in sorted(item.glob("[0-9]*.safetensors"))}}
    steps = []
    for step, path in sources.items():
        file = write(half_precision(path.read_bytes()), f"{game}_{step:04d}", folder)
        steps.append({"step": step, "facts": sentence(facts, step), "file": file})
    state = {
        "_esm": script(), "_css": style(), **policy_parts(base, game), "title": TITLES[game].format(**facts), "steps": steps,
        "positions": [[name, f"{text} {SEEN.get(name, '')}".strip(), cells] for name, text, cells in POSITIONS[game]],
        "scale": facts["scale"], "winning_tile": facts.get("winning_tile", 0),
    }  # fmt: skip
    text = json.dumps({"state": state}).replace("<", "\\u003c")
    without = "<noscript>This view needs JavaScript.</noscript>"
    return f'<div class="art-nb-policy"><script class="art-nb-state" type="application/json">{text}</script>{without}</div>'


def write(data: bytes, name: str, folder: Path) -> dict:
    """Write the bytes as a file, and as a script that adds them to `artNbFiles`. Returns the file's address and size."""
    place = folder / FOLDER / f"{name}.safetensors"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    url = f"{FOLDER}/{place.name}"
    text = f'(globalThis.artNbFiles ??= {{}})["{url}"] = "{base64.b64encode(data).decode()}";'
    place.with_suffix(".safetensors.js").write_text(text, "utf-8")
    return {"url": url, "bytes": len(data)}


def sentence(facts: dict, step: int) -> str:
    """Return what was measured of the policy after a step."""
    when = f"After step {step} of {facts['steps']}" if step else "Before training"
    won = facts["won"][str(step)]
    if facts["game"] == "2048":
        shares = " and ".join(f"{share:g}% {name}" for name, share in won.items())
        rule = f"The corner rule won {CORNER_RULE_WON}% of the same games."
        return f"{when} it won {shares}, of {facts['games']} held-out games. {rule}"
    by_chance, drawn = won["won against random"], won["drawn against perfect"]
    return (
        f"{when}, in {facts['games']} held-out games each: it won {by_chance:g}% against a random player. Against a perfect "
        f"player, where a draw is the best possible result, it drew {drawn:g}% and lost {100 - drawn:g}%."
    )
