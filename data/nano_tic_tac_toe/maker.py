"""Train data/nano_tic_tac_toe, the tiny base model for self-play: `python -m data nano_tic_tac_toe` (8 minutes on one core).

A Qwen3 causal LM that has seen every board of tic-tac-toe with all free squares as equally good answers. It knows which
squares are free and, from the auxiliary loss of a linear probe, which squares complete a line. It plays at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from data import nano_model
from data.chat_format import CHAT_TEMPLATE, encode, render_text, token_id, train_tokenizer
from data.demonstration import Demonstration
from tic_tac_toe.rules import SQUARES, Board, legal_moves, positions, render, winner

PIECES = r"(?:user|assistant|system|tool)\n| ?[A-Za-z]+| ?\d|\n| ?[^\sA-Za-z0-9]|\s+"  # nothing is merged with its neighbour
BOARDS = tuple(board for plies in range(9) for board in positions(plies) if legal_moves(board))


def demonstration(board: Board, rng: random.Random) -> Demonstration:
    """Return a board and a random free square; the target is uniform over the free squares."""
    free = legal_moves(board)
    messages = [{"role": "user", "content": render(board)}, {"role": "assistant", "content": rng.choice(free)}]
    return Demonstration(messages, choices=[dict.fromkeys(free, 1 / len(free))])


def completed_lines(board: Board) -> list[float]:
    """Return (18,): for each square 1.0 if it completes a line for x, else 0.0; then the same for o."""
    after = (board[:cell] + side + board[cell + 1 :] for side in "xo" for cell in range(len(SQUARES)))
    return [float(now == "." and winner(then) is not None) for now, then in zip(board * 2, after, strict=True)]


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Return the base model's tokenizer."""
    rng = random.Random(seed)
    texts = [render_text(demonstration(board, rng)) for board in BOARDS]
    return train_tokenizer(texts, PIECES, CHAT_TEMPLATE, vocab_size=512)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return the untrained model."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(nano_model.nano_config(tokenizer, rope_theta=1_000.0))


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Train with supervision. Yields each step's answer loss in nats per token, minus the entropy of the targets.

    A probe after the third layer, at the position before the answer, predicts `completed_lines`; it is discarded.
    """
    rng = random.Random(seed)
    probe = torch.nn.Linear(model.config.hidden_size, 2 * len(SQUARES)).to(model.device)

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        while True:
            boards = rng.sample(BOARDS, 128)
            rows = encode(tokenizer, [demonstration(board, rng) for board in boards])
            ids, answers = nano_model.stack(tokenizer, rows)
            lines = torch.tensor([completed_lines(board) for board in boards])
            yield ids, answers, nano_model.targets(tokenizer, rows), lines

    with nano_model.recorded_output(model.model.layers[2]) as probed:

        def backward(ids: torch.Tensor, answers: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
            loss = nano_model.excess_loss(model, model.model(input_ids=ids).last_hidden_state, answers, target)
            squares = answers[::2]  # each answer is a square and the end of the turn
            probe_loss = F.binary_cross_entropy_with_logits(probe(probed["hidden"][squares[:, 0], squares[:, 1]]), lines)
            (loss + 4 * probe_loss).backward()
            return loss

        yield from nano_model.descend(model, probe, batches(), backward, steps)


@torch.inference_mode()
def evaluate(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, prompts: int = 400) -> dict[str, float]:
    """Return means over random boards.

    legal: the probability of a free square. favoured: the excess of the most likely square over the uniform probability.
    """
    rng = random.Random(seed)
    boards = rng.sample(BOARDS, prompts)
    rows = encode(tokenizer, [demonstration(board, rng) for board in boards])
    ids, answers = nano_model.stack(tokenizer, rows)
    first = answers[::2]  # each answer is a square and the end of the turn
    shares = model.lm_head(model.model(input_ids=ids).last_hidden_state[first[:, 0], first[:, 1]]).softmax(-1)
    free = [[token_id(tokenizer, square) for square in legal_moves(board)] for board in boards]
    legal = [shares[i, squares].sum().item() for i, squares in enumerate(free)]
    favoured = [shares[i, squares].max().item() - 1 / len(squares) for i, squares in enumerate(free)]
    return {"legal": nano_model.mean(legal), "favoured": nano_model.mean(favoured)}


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for tic-tac-toe

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It knows which squares are free and which complete a line, and plays at random. It knows nothing else.

Made by `python -m data nano_tic_tac_toe` (data/nano_tic_tac_toe/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | all boards of unfinished games, sampled during training, not stored |
| content | rules and format: the target is the uniform distribution over the free squares. No skilled play |
| training | {steps} steps of 128 boards, with an auxiliary loss: a linear probe predicts which squares complete a line |
| final answer loss minus the entropy of the targets | {answer_loss} nats per token |
| probability of a free square, mean of 400 boards | {legal:.2%} |
| excess of the most likely square over the uniform probability, same boards | {favoured:.2%} |

SHA256SUMS lists the files' hashes.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("tic_tac_toe", 300, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
