"""Compare an export with its checkpoint: whether their greedy answers are equal, and by how much log-probabilities differ.

Does not depend on formats: an engine is a function from a `GreedyAnswer` of the checkpoint to its own `EngineAnswer`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from art_nb.training.policy import Policy

CONVERSATIONS = 50
NEW_TOKENS = 24
# Tolerance in nats. Two tokens whose log-probabilities differ by no more are tied: rounding decides between them.
# bfloat16 has 8 significant bits, so logits between 16 and 32 are multiples of 1/8.
ROUNDING = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.25}


class ParityError(ValueError):
    """The answers or log-probabilities of an export differ from its checkpoint's."""


@dataclass(frozen=True)
class GreedyAnswer:
    """The checkpoint's answer. text: the rendered prompt; prompt, tokens: ids; logprobs: (T,), of `tokens`, in nats."""

    text: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class EngineAnswer:
    """Another engine's answer to the same prompt.

    same: number of leading tokens equal to the checkpoint's. logprobs: (same,), NaN where unknown.
    behind: nats by which the engine prefers its own token at the first mismatch; 0 if there is none, infinite if unknown.
    """

    same: int
    logprobs: list[float]
    behind: float = 0.0


Engine = Callable[[GreedyAnswer], EngineAnswer]


@dataclass(frozen=True)
class ParityReport:
    """Comparison over `answers` greedy answers, of which `same` are identical.

    ties: answers whose first different tokens are within `rounding` nats of each other. mean, largest_difference: mean and
    maximum absolute difference of log-probabilities, in nats, over the `tokens` equal tokens that have one in the engine.
    """

    answers: int
    same: int
    ties: int
    tokens: int
    mean: float
    largest_difference: float
    rounding: float

    def __str__(self) -> str:
        ties = f", {self.ties} differ first at a tie of two tokens (within {self.rounding:g} nats)" if self.ties else ""
        return (
            f"{self.same} of {self.answers} greedy answers the same{ties}; log-probabilities of {self.tokens} tokens "
            f"differ by {self.mean:.2g} on average, {self.largest_difference:.2g} at most"
        )


async def greedy_answers(
    policy: Policy, conversations: Iterable[Sequence[dict[str, Any]]], *, skip: bool = False
) -> list[GreedyAnswer]:
    """Sample the policy at temperature 0, as a backend's client does; cut each answer after its first control token.

    Some engines stop at any control token. skip: leave out conversations that the sampler rejects, for example because
    NEW_TOKENS more tokens do not fit.

    Raises: RequestError when the sampler rejects a conversation, unless `skip`.
    """
    from peft import get_peft_model_state_dict

    from art_nb.inference.chat import RequestError
    from art_nb.inference.sampler import Sampler

    adapter = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    named = policy.named("checkpoint", 0, adapter)
    sampler = Sampler(policy.base, policy.tokenizer)
    control = {i for i, token in policy.tokenizer.added_tokens_decoder.items() if token.special}

    async def answer(messages: Sequence[dict[str, Any]]) -> GreedyAnswer | None:
        completion: Any
        try:
            completion = await sampler.create(messages=list(messages), policy=named, temperature=0, max_tokens=NEW_TOKENS)
        except RequestError:
            if skip:
                return None
            raise
        choice = completion.choices[0]
        text = policy.tokenizer.decode(choice.prompt_token_ids, skip_special_tokens=False)
        ends = (i for i, token in enumerate(choice.token_ids, start=1) if token in control)
        length = next(ends, len(choice.token_ids))
        return GreedyAnswer(text, list(choice.prompt_token_ids), choice.token_ids[:length], choice.token_logprobs[:length])

    return [each for each in await asyncio.gather(*map(answer, conversations)) if each is not None]


def compare(answers: Sequence[GreedyAnswer], engine: Engine, dtype: torch.dtype) -> ParityReport:
    """Compare with `engine`'s answers to the same prompts. dtype: of the weights; it determines the tolerance (ROUNDING).

    Raises: ParityError when an answer differs and is not a tie, or the log-probabilities' mean difference is too large.
    """
    rounding = ROUNDING[dtype]
    pairs = [(answer, engine(answer)) for answer in answers]
    errors = [
        abs(mine - theirs)
        for answer, other in pairs
        for mine, theirs in zip(answer.logprobs, other.logprobs, strict=False)
        if not math.isnan(theirs)
    ]
    different = [(answer, other) for answer, other in pairs if other.same < len(answer.tokens)]
    report = ParityReport(
        len(answers), len(answers) - len(different), sum(other.behind <= rounding for _, other in different), len(errors),
        sum(errors) / max(len(errors), 1), max(errors, default=0.0), rounding,
    )  # fmt: skip
    if report.same + report.ties == report.answers and report.mean <= rounding:
        return report
    message = f"the export's answers differ from the checkpoint's: {report}"
    if report.same + report.ties < report.answers:
        answer, other = max(different, key=lambda pair: pair[1].behind)
        where = f"After {other.same} tokens of an answer it prefers another token by {other.behind:.2g} nats"
        message += f". {where}: {answer.text[-200:]!r}"
    raise ParityError(message)


def torch_engine(model: torch.nn.Module) -> Engine:
    """Make an engine from a transformers or PEFT model: one forward pass over prompt and answer.

    Its greedy answer equals the checkpoint's if and only if each token of the answer is its most likely one there.
    """

    @torch.inference_mode()
    def engine(answer: GreedyAnswer) -> EngineAnswer:
        ids = torch.tensor([answer.prompt + answer.tokens], device=model.device)
        logits = model(input_ids=ids).logits[0, len(answer.prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1)
        given = logprobs.gather(-1, ids[0, len(answer.prompt) :, None])[:, 0]
        agree = logprobs.argmax(-1) == ids[0, len(answer.prompt) :]
        same = len(answer.tokens) if agree.all() else int(agree.int().argmin())
        behind = float(logprobs[same].max() - given[same]) if same < len(answer.tokens) else 0.0
        return EngineAnswer(same, given[:same].tolist(), behind)

    return engine
