"""PolicyExplorer: a policy of 2048 or tic-tac-toe at several of its training steps, on a board that the reader edits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import traitlets as t

from art_nb.storage import checkpoints
from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, png, style_axes, table
from course.policy_files import half_precision, kept_steps, policy_parts, script, style

if TYPE_CHECKING:
    from art_nb import TrainableModel

TITLES = {"2048": "2048", "tic_tac_toe": "Tic-tac-toe"}
ANSWER_FORMAT = {"2048": "{}", "tic_tac_toe": "square {}:"}  # how `summary` names an answer


class PolicyExplorer(View):
    """The policy itself, run by the browser: choose a step, edit the board, let it play.

    game: "2048" or "tic_tac_toe". base: the folder of the base model, a Qwen3 with tied embeddings. adapters: step -> the
    folder of its checkpoint; step 0 is the base model. winning_tile: of 2048. facts: step -> a sentence about it.

    Weights reach the browser in float16 and on request, once the cell has run, so a saved notebook does not contain them.
    The static picture shows the first position of `course.policy_files.POSITIONS`.

    Raises: ValueError for another game or architecture, or without an adapter.
    """

    _esm = script()
    _css = style()
    game = t.Unicode().tag(sync=True)
    title = t.Unicode().tag(sync=True)
    config = t.Dict().tag(sync=True)
    tokenizer = t.Dict().tag(sync=True)
    positions = t.List().tag(sync=True)
    steps = t.List().tag(sync=True)
    scale = t.Float().tag(sync=True)
    winning_tile = t.Int().tag(sync=True)
    wanted = t.Int(None, allow_none=True).tag(sync=True)  # the step whose weights the browser requests
    sent = t.Int(None, allow_none=True).tag(sync=True)  # the step of `weights`
    weights = t.Bytes(b"").tag(sync=True)

    def __init__(
        self, game: str, base: str | Path, adapters: Mapping[int, Path], winning_tile: int = 2048,
        facts: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        if not adapters:
            raise ValueError("`adapters` is empty: train for at least one step, so that there is a checkpoint to show")
        self._base, self._adapters = Path(base), dict(sorted(adapters.items()))
        settings = json.loads((self._adapters[max(self._adapters)] / "adapter_config.json").read_text("utf-8"))
        descriptions = facts or {}
        steps = [
            {"step": step, "facts": descriptions.get(step, f"After step {step}." if step else "Before training.")}
            for step in (0, *self._adapters)
        ]
        super().__init__(
            **policy_parts(self._base, game), title=TITLES[game], steps=steps, winning_tile=winning_tile,
            scale=settings["lora_alpha"] / settings["r"],
        )  # fmt: skip
        self.observe(self._send_weights, "wanted")

    @classmethod
    def of(cls, model: TrainableModel, game: str, winning_tile: int = 2048) -> PolicyExplorer:
        """Return the view of a trained model, at the steps of `kept_steps` whose checkpoints exist.

        The model must be registered with a backend that keeps checkpoints on this machine.
        """
        folder = model.backend().output_dir(model) / "checkpoints"
        found = checkpoints.list_checkpoints(folder)
        wanted = [step for step in kept_steps(max(found, default=0)) if step and step in found]
        return cls(game, model.base_model, {step: checkpoints.step_folder(folder, step) for step in wanted}, winning_tile)

    def _send_weights(self, change) -> None:
        step = change["new"]
        path = self._adapters[step] / "adapter_model.safetensors" if step else self._base / "model.safetensors"
        with self.hold_sync():
            self.weights, self.sent = half_precision(path.read_bytes()), step

    @cached_property
    def _answers(self) -> list[str]:
        from game_2048.rules import MOVES
        from tic_tac_toe.rules import SQUARES

        return list(MOVES if self.game == "2048" else SQUARES)

    def _board(self) -> tuple[str, list[str]]:
        """Return the first position as the model reads it, and its legal answers."""
        import game_2048
        import tic_tac_toe

        cells = self.positions[0][2]
        if self.game == "tic_tac_toe":
            return tic_tac_toe.render("".join(cells)), tic_tac_toe.legal_moves("".join(cells))
        board = tuple(tuple(cells[i : i + 4]) for i in range(0, 16, 4))
        return game_2048.render(board), game_2048.legal_moves(board)

    @cached_property
    def probabilities(self) -> dict[int, list[float]]:
        """Step -> the probability of each answer at the first position, at temperature 1, from transformers."""
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from art_nb.training.policy import progress_bars

        tokenizer = AutoTokenizer.from_pretrained(self._base)
        with progress_bars(shown=False):
            model = AutoModelForCausalLM.from_pretrained(self._base).eval()
        message = [{"role": "user", "content": self._board()[0]}]
        prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        answers = tokenizer.convert_tokens_to_ids(self._answers)
        weights, found = dict(model.named_parameters()), {}
        with torch.inference_mode():
            for step in (0, *self._adapters):
                merged = {}
                if step:
                    adapter = load_file(self._adapters[step] / "adapter_model.safetensors")
                    for name in (name for name in adapter if name.endswith(".lora_A.weight")):
                        target = name.removeprefix("base_model.model.").replace("lora_A.", "")
                        a, b = adapter[name].float(), adapter[name.replace("lora_A", "lora_B")].float()
                        merged[target] = weights[target] + self.scale * b @ a
                logits = torch.func.functional_call(model, merged, (prompt["input_ids"],)).logits[0, -1]
                found[step] = logits.softmax(-1)[answers].tolist()
        return found

    def summary(self) -> str:
        shares = self.probabilities
        first, last = min(shares), max(shares)
        best = max(range(len(self._answers)), key=lambda i: shares[last][i])
        answer = ANSWER_FORMAT[self.game].format(self._answers[best])
        return (f"{self.title}, “{self.positions[0][0]}”: {answer} {shares[first][best]:.0%} at step {first}, "
                f"{shares[last][best]:.0%} at step {last}")  # fmt: skip

    def static_png(self) -> bytes:
        shares, (text, legal) = self.probabilities, self._board()
        fig = figure(8, 2.9)
        left, right = fig.subplots(1, 2, width_ratios=[2, 5])
        rows = [line.split() for line in text.splitlines()][-(4 if self.game == "2048" else 3) :]
        left.axis("off")
        cells = [[cell.replace(".", "") for cell in row] for row in rows]
        drawn = left.table(cells, cellLoc="center", bbox=[0, 0.05, 1, 0.9])
        drawn.set_fontsize(11)
        style_axes(right, "Probability of each answer over the steps (dashed: illegal)")
        places = range(len(shares))
        shades = [BLUE, ORANGE, GREY, "#2a9d6f", "#8a5cc2", "#b0892f", "#4aa3c7", "#c2547d", "#1f2328"]
        for i, answer in enumerate(self._answers):
            right.plot(places, [100 * row[i] for row in shares.values()], color=shades[i], marker="o", markersize=3,
                       linestyle="-" if answer in legal else "--", label=answer)  # fmt: skip
        right.set_xticks(places, [str(step) for step in shares])
        right.set(xlabel="training step", ylabel="%", ylim=(-3, 103))
        right.legend(fontsize=7, frameon=False, ncols=1, bbox_to_anchor=(1, 1), loc="upper left")
        fig.suptitle(self.summary(), fontsize=10, x=0.01, ha="left", parse_math=False)
        return png(fig)

    def static_html(self) -> str:
        shares, (_, legal) = self.probabilities, self._board()
        rows = [
            [answer, "" if answer in legal else "illegal", *(f"{row[i]:.1%}" for row in shares.values())]
            for i, answer in enumerate(self._answers)
        ]
        return table(["answer", "", *(f"step {step}" for step in shares)], rows)
