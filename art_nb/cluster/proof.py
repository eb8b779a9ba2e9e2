"""Whether an export answers as the checkpoint did: the same greedy answers, and how far their log-probabilities lie apart.

Knows nothing of formats: an engine is a function that says what it makes of a conversation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from art_nb.training.policy import Policy

CONVERSATIONS = 50
NEW_TOKENS = 24
# Two tokens whose log-probabilities lie no farther apart are alike to a model of that precision: which of them is the
# likelier, rounding decides. In nats; bfloat16 has 8 significant bits, so logits between 16 and 32 are multiples of 1/8.
ROUNDING = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.25}


class Differs(ValueError):
    """An export does not answer as its checkpoint does."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer. text: of the prompt, as the template renders it; prompt, tokens: ids; logprobs: (T,) of `tokens`."""

    text: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Judged:
    """What another engine makes of an answer's prompt.

    same: tokens of the answer that it gives too, before the first that it doesn't.
    logprobs: (same,) its own, NaN where unknown.
    behind: how much less likely than its own choice it finds the answer's token where they part, in nats, else 0.
    """

    same: int
    logprobs: list[float]
    behind: float = 0.0


@dataclass(frozen=True)
class Proof:
    """How an export compares with its checkpoint in process, over `answers` greedy answers of `tokens` tokens.

    same: answers alike token for token; ties: those that part where two tokens are alike within `rounding`, in nats.
    mean, most: the difference of the log-probabilities of the tokens that both gave, absolute, in nats.
    """

    answers: int
    same: int
    ties: int
    tokens: int
    mean: float
    most: float
    rounding: float

    def __str__(self) -> str:
        parted = f", {self.ties} part at a tie of two tokens (within {self.rounding:g} nats)" if self.ties else ""
        return (
            f"{self.same} of {self.answers} greedy answers the same{parted}; log-probabilities of {self.tokens} tokens "
            f"differ by {self.mean:.2g} on average, {self.most:.2g} at most"
        )


async def greedy_answers(policy: Policy, conversations: Iterable[Sequence[dict[str, Any]]]) -> list[Answer]:
    """What the policy answers in process, as a backend's client gives it at temperature 0, up to its first control token.

    Some engines end there whichever it is.
    """
    import asyncio

    from art_nb.inference.sampler import Sampler

    named = policy.named("checkpoint", 0, _adapter(policy))
    sampler = Sampler(policy.base, policy.tokenizer)
    control = {i for i, token in policy.tokenizer.added_tokens_decoder.items() if token.special}

    async def one(messages: Sequence[dict[str, Any]]) -> Answer:
        answer: Any = await sampler.create(messages=list(messages), policy=named, temperature=0, max_tokens=NEW_TOKENS)
        choice = answer.choices[0]
        text = policy.tokenizer.decode(choice.prompt_token_ids, skip_special_tokens=False)
        ends = (i for i, token in enumerate(choice.token_ids, start=1) if token in control)
        length = next(ends, len(choice.token_ids))
        return Answer(text, list(choice.prompt_token_ids), choice.token_ids[:length], choice.token_logprobs[:length])

    return list(await asyncio.gather(*map(one, conversations)))


def compare(answers: Sequence[Answer], engine: Callable[[Answer], Judged], dtype: torch.dtype) -> Proof:
    """Ask `engine` what was answered in process, in weights of `dtype`.

    Raises: Differs, which says where, when an answer is another one and no tie, or the log-probabilities differ by more
    than rounding.
    """
    rounding = ROUNDING[dtype]
    judged = [engine(answer) for answer in answers]
    apart = [
        abs(mine - theirs)
        for answer, found in zip(answers, judged, strict=True)
        for mine, theirs in zip(answer.logprobs, found.logprobs, strict=False)
        if not math.isnan(theirs)
    ]
    parted = [(a, found) for a, found in zip(answers, judged, strict=True) if found.same < len(a.tokens)]
    proof = Proof(
        len(answers), len(answers) - len(parted), sum(found.behind <= rounding for _, found in parted), len(apart),
        sum(apart) / max(len(apart), 1), max(apart, default=0.0), rounding,
    )  # fmt: skip
    if proof.same + proof.ties < proof.answers or proof.mean > rounding:
        raise Differs(f"the export does not answer as the checkpoint: {proof}{_first_difference(parted, rounding)}")
    return proof


def torch_engine(model: torch.nn.Module) -> Callable[[Answer], Judged]:
    """A transformers or PEFT model as an engine: one forward over prompt and answer.

    Its greedy answer is the same one exactly if at each place its likeliest token is the one that was answered.
    """

    @torch.inference_mode()
    def judge(answer: Answer) -> Judged:
        ids = torch.tensor([answer.prompt + answer.tokens], device=model.device)
        logits = model(input_ids=ids).logits[0, len(answer.prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1)
        given = logprobs.gather(-1, ids[0, len(answer.prompt) :, None])[:, 0]
        agree = logprobs.argmax(-1) == ids[0, len(answer.prompt) :]
        same = len(answer.tokens) if agree.all() else int(agree.int().argmin())
        behind = float(logprobs[same].max() - given[same]) if same < len(answer.tokens) else 0.0
        return Judged(same, given[:same].tolist(), behind)

    return judge


def _adapter(policy: Policy) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(policy.model, save_embedding_layers=False)


def _first_difference(parted: list[tuple[Answer, Judged]], rounding: float) -> str:
    worst = max(parted, key=lambda pair: pair[1].behind, default=None)
    if worst is None or worst[1].behind <= rounding:
        return ""
    answer, found = worst
    where = f"After {found.same} tokens of an answer it prefers another one by {found.behind:.2g} nats"
    return f". {where}: {answer.text[-200:]!r}"
