"""Parse a judge's answer: return all scores, or raise `UnusableAnswer` with the reason. No score is guessed or repaired.

An answer is used only if:

- It is one JSON object, alone or in one Markdown code block, optionally after a model's reasoning that ends in `</think>`.
  Prose is not searched for scores, because it may quote a trajectory.
- No object contains a key twice, and no number is NaN or Infinity.
- `scores` is a list with exactly one entry for each expected id.
- `trajectory_id` is a string, or an integer (3 counts as "3").
- `score` is a number from 0 to 1, or a string that contains only such a decimal number ("0.8", not "0.8x", "80%" or
  "8/10"). A score of 7 is ambiguous: it could be out of 10 or out of 7.
- `explanation` is a string without unpaired surrogates; its control sequences are removed. Further keys are ignored.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from pydantic import BaseModel, Field

FENCED = re.compile(r"```[A-Za-z]*\s*\n(?P<inside>.*)```", re.DOTALL)
# Terminal escape sequences, and all control characters except newlines and tabs.
CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|(\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DECIMAL = re.compile(r"0?\.[0-9]+|[01](\.[0-9]*)?")


class TrajectoryScore(BaseModel):
    """One trajectory's score, from 0 to 1, and the judge's explanation."""

    trajectory_id: str = Field(description="The id of the trajectory.")
    explanation: str = Field(description="Why it gets this score, in a sentence or two.")
    score: float = Field(description="From 0, the worst, to 1, the best.")


class UnusableAnswer(ValueError):
    """A judge's answer violates the format. The message gives the reason; it is also sent to the judge."""


def response_format(ids: Sequence[str]) -> dict[str, Any]:
    """Return the `response_format` of a request. Its schema has no bounds on scores: several providers reject them."""
    name = {"type": "string", "enum": list(ids)}
    entry = _object_schema(trajectory_id=name, explanation={"type": "string"}, score={"type": "number"})
    schema = _object_schema(scores={"type": "array", "items": entry})
    return {"type": "json_schema", "json_schema": {"name": "scores", "schema": schema, "strict": True}}


def _object_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def parse(text: str, ids: Sequence[str]) -> list[TrajectoryScore]:
    """Return the scores of a judge's answer, in the order of `ids`.

    Raises: UnusableAnswer when it violates the format in this module's docstring.
    """
    answer = _json(_unwrapped(text))
    entries = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise UnusableAnswer(f'expected {{"scores": [...]}}, got {_short(answer)}')
    found: dict[str, TrajectoryScore] = {}
    for entry in entries:
        score = _score(entry)
        if score.trajectory_id in found:
            raise UnusableAnswer(f"id {score.trajectory_id} is scored twice")
        found[score.trajectory_id] = score
    missing, unknown = [i for i in ids if i not in found], sorted(set(found) - set(ids))
    if missing or unknown:
        wrong = [f"no score for id {', '.join(missing)}"] * bool(missing)
        wrong += [f"a score for id {_short(', '.join(unknown))}, which is unknown"] * bool(unknown)
        raise UnusableAnswer(" and ".join(wrong))
    return [found[i] for i in ids]


def _unwrapped(text: str) -> str:
    text = text.strip()
    if not text.startswith(("{", "```")):
        text = text.rpartition("</think>")[2].strip()  # some servers omit the opening <think>
    fenced = FENCED.fullmatch(text)
    return fenced["inside"] if fenced else text


def _json(text: str) -> Any:
    if not text.strip():
        raise UnusableAnswer("the answer is empty")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_not_json)
    except UnusableAnswer:
        raise
    except (ValueError, RecursionError) as error:
        raise UnusableAnswer(f"not one JSON object ({error}): {_short(text)}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise UnusableAnswer(f"an object contains a key twice: {_short(keys)}")
    return dict(pairs)


def _not_json(constant: str) -> NoReturn:
    raise UnusableAnswer(f"{constant} is not a number in JSON")


def _score(entry: Any) -> TrajectoryScore:
    if not isinstance(entry, dict):
        raise UnusableAnswer(f"expected an object for each score, got {_short(entry)}")
    name, reason = entry.get("trajectory_id"), entry.get("explanation")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise UnusableAnswer(f"trajectory_id must be a string: {_short(entry)}")
    if not isinstance(reason, str) or re.search("[\ud800-\udfff]", reason):  # valid in JSON, but cannot be encoded
        wanted = "a string without unpaired surrogates"
        raise UnusableAnswer(f"the explanation of id {_short(name)} must be {wanted}: {_short(reason)}")
    score = _number(entry.get("score"), name)
    return TrajectoryScore(trajectory_id=str(name), explanation=CONTROL.sub("", reason), score=score)


def _number(value: Any, name: str | int) -> float:
    if isinstance(value, str) and DECIMAL.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UnusableAnswer(f"the score of id {_short(name)} is {_short(value)}: expected a number from 0 to 1")
    return float(value)


def _short(value: Any) -> str:
    """Return the first 200 characters of `ascii(value)`, for messages to the user and the judge."""
    text = ascii(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
