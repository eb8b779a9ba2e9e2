"""Makes data/nano_tic_tac_toe, the tiny base model for self-play: `python -m data nano_tic_tac_toe` (minutes on two cores).

It is a Qwen3 causal LM that has seen every board of tic-tac-toe with all free squares as equally good answers. It knows the
rules: which squares are free, and (because a linear probe had to tell) which of them would complete three in a line. What to
do with that it has not been told; it plays at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art_nb.tasks.tic_tac_toe.rules import SQUARES, Board, legal_moves, positions, render, winner
from data import nano_model
from data.chat_format import CHAT_TEMPLATE, encode, render_text, token_id, train_tokenizer
from data.demonstration import Demonstration

PIECES = r"(?:user|assistant|system|tool)\n| ?[A-Za-z]+| ?\d|\n| ?[^\sA-Za-z0-9]|\s+"  # nothing is glued to its neighbour
BOARDS = tuple(board for plies in range(9) for board in positions(plies) if legal_moves(board))


def demonstration(board: Board, rng: random.Random) -> Demonstration:
    """A board, and one of its free squares, all of them equally likely."""
    free = legal_moves(board)
    said = [{"role": "user", "content": render(board)}, {"role": "assistant", "content": rng.choice(free)}]
    return Demonstration(said, choices=[dict.fromkeys(free, 1 / len(free))])


def completed_lines(board: Board) -> list[float]:
    """For each square, 1 where x would have three in a line with it, then the same for o; 0 elsewhere. (18,)"""
    after = (board[:cell] + side + board[cell + 1 :] for side in "xo" for cell in range(len(SQUARES)))
    return [float(now == "." and winner(then) is not None) for now, then in zip(board * 2, after, strict=True)]


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The base model's tokenizer."""
    rng = random.Random(seed)
    texts = [render_text(demonstration(board, rng)) for board in BOARDS]
    return train_tokenizer(texts, PIECES, CHAT_TEMPLATE, vocab_size=512)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """The model before training."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(nano_model.nano_config(tokenizer, rope_theta=1_000.0))


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Supervised training, step by step, with the loss of the answers less what the targets themselves leave open.

    The probe reads behind the third layer, where the answer is about to be said, and is thrown away.
    """
    rng, seen = random.Random(seed), {}
    layer = model.model.layers[2]
    hook = layer.register_forward_hook(lambda _, __, out: seen.update(hidden=out[0] if isinstance(out, tuple) else out))
    probe = torch.nn.Linear(model.config.hidden_size, 2 * len(SQUARES)).to(model.device)

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        while True:
            boards = rng.sample(BOARDS, 128)
            rows = encode(tokenizer, [demonstration(board, rng) for board in boards])
            ids, answers = nano_model.stack(tokenizer, rows)
            target = torch.zeros(len(answers), nano_model.vocabulary(tokenizer))
            for i, soft in enumerate(soft for row in rows for _, soft in row.answers):
                target[i, list(soft)] = torch.tensor(list(soft.values()))
            yield ids, answers, target, torch.tensor([completed_lines(board) for board in boards])

    def backward(ids: torch.Tensor, answers: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        loss = F.cross_entropy(logits, target) - torch.special.entr(target).sum(-1).mean()
        squares = answers[::2]  # each answer is a square and the end of the turn
        told = F.binary_cross_entropy_with_logits(probe(seen["hidden"][squares[:, 0], squares[:, 1]]), lines)
        (loss + 4 * told).backward()
        return loss

    try:
        yield from nano_model.descend(model, probe, batches(), backward, steps)
    finally:
        hook.remove()


@torch.inference_mode()
def evaluate(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, prompts: int = 400) -> dict[str, float]:
    """Over boards drawn at random: the probability of a free square, and of the one that it likes best there.

    The second, less 1 / free squares, says how far it is from having no favourites.
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
made for this course. It knows which squares are free and which would complete a line, and plays at random. It knows nothing else.

Made by `python -m data nano_tic_tac_toe` (data/nano_tic_tac_toe/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | all boards on which a game still runs, drawn while training; none is stored |
| what they teach | rules and format: the target is the uniform distribution over the free squares. No skilled play is in them |
| training | {steps} steps of 128 boards; a linear probe had to tell which squares complete a line and was then thrown away |
| final loss of the answers, less the targets' own entropy | {answer_loss} nats a token |
| probability of a free square, 400 boards | {legal:.2%} |
| how much likelier the likeliest square is than an equal share, same boards | {favoured:.2%} |

SHA256SUMS lists the files' hashes.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("tic_tac_toe", 300, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
