"""Generated tasks of reasoning-gym: a question, one answer, a score. Source: https://pypi.org/project/reasoning-gym."""

import re
from collections.abc import Callable
from typing import Any

from art_nb.environments.adapters.base import import_extra

FIRST_SEED = {"train": 0, "val": 1_000_000, "test": 2_000_000}
MAX_SIZE = 1_000_000


def last_number(text: str) -> str | None:
    """Return the text's last number, without thousands separators."""
    found = re.findall(r"(?:(?<![\w)])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?", text)
    return found[-1].replace(",", "") if found else None


def last_line(text: str) -> str | None:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


def tag(text: str) -> str | None:
    """Return the text in the last <answer>...</answer>."""
    found = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", text, re.DOTALL)
    return found[-1].strip() if found else None


PARSERS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "last_number": (last_number, "End with the answer as a number."),
    "last_line": (last_line, "Give the answer, and nothing else, on the last line."),
    "tag": (tag, "Enclose the final answer in <answer> and </answer>."),
    "whole": (str.strip, "Give the answer and nothing else."),
}


class ReasoningGymEnvironment:
    """One item of a reasoning-gym dataset. The model answers once, in text or by calling `answer`.

    dataset: its name, such as "chain_sum". parser: how the answer is found in the text: "last_number", "last_line", "tag",
        "whole", or a function of the text. If it finds none (None), the whole text is scored.
    instruction: text after the question; default: the parser's format, or "" if it is a function.
    size: items per split, indexed from 0. config: options of the dataset.

    The splits start at different seeds. The items of a few datasets, such as word_ladder, also depend on PYTHONHASHSEED.
    Raises: ImportError without the extra; ValueError for an unknown dataset, parser, split or index, or a size out of range.
    """

    plain_tool = "answer"

    def __init__(
        self,
        dataset: str,
        *,
        parser: str | Callable[[str], str | None] = "tag",
        instruction: str | None = None,
        size: int = 1000,
        **config: Any,
    ):
        if isinstance(parser, str) and parser not in PARSERS:
            raise ValueError(f"parser is {parser!r}: expected {', '.join(PARSERS)}, or a function of the text")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"size is {size:,}: expected 1 to {MAX_SIZE:,}, so that splits share no seed")
        self._parse, asks = PARSERS[parser] if isinstance(parser, str) else (parser, "")
        self._instruction = asks if instruction is None else instruction
        create = import_extra("reasoning_gym", "reasoning-gym").create_dataset
        self._splits = {split: create(dataset, seed=seed, size=size, **config) for split, seed in FIRST_SEED.items()}
        self.size, self._parsed = size, False
        self.item: dict[str, Any] = {}
        self._score: float | None = None

    def reset(self, index: int = 0, split: str = "train", **row: Any) -> str:
        """Return the question of an item and the instruction. Other columns are ignored."""
        if split not in self._splits or not 0 <= index < self.size:
            raise ValueError(f"no item {index} of {split!r}: expected 0 to {self.size - 1:,} of {', '.join(FIRST_SEED)}")
        self.item, self._score, self._parsed = self._splits[split][index], None, False
        return f"{self.item['question']}\n{self._instruction}".strip()

    def answer(self, text: str) -> str:
        """
        Give the final answer. This ends the task.

        Args:
            text: the answer.
        """
        if self._score is None:
            found = self._parse(text)
            self._parsed = found is not None
            try:
                self._score = float(self._splits["train"].score_answer(text.strip() if found is None else found, self.item))
            except Exception:  # some datasets' scorers raise for an answer that they cannot parse
                self._score = 0.0
        return "Thank you."

    def get_reward(self) -> float:
        """Return reasoning-gym's score of the answer, 0 to 1; 0 without an answer."""
        return self._score or 0.0

    @property
    def over(self) -> bool:
        return self._score is not None

    @property
    def metrics(self) -> dict[str, float]:
        return {"correct": float(self._score == 1.0), "parsed": float(self._parsed)}
