"""Sampling of chat completions for agents: from a request in OpenAI's format to its completion.

Requests to policies that share a model are decoded in the same forward passes, and the KV cache is kept across turns. A
request's draws are seeded by the seeds of policy and request, the prompt, and how many times this prompt was sampled
before, so the same run gives the same rollouts.
"""

import asyncio
import hashlib
import random
from typing import Any

from openai.types.chat import ChatCompletion

from art_nb.inference.bounded import MAX_PROMPTS, BoundedDict
from art_nb.inference.chat import RequestError, parse_options
from art_nb.inference.constraints import Constraints
from art_nb.inference.decoder import BatchDecoder, Decoder
from art_nb.inference.generation import Generation
from art_nb.inference.messages import normalize
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.prompts import PromptEncoder
from art_nb.inference.streaming import Chunks, build_completion
from art_nb.inference.vocabulary import Vocabulary


class RequestKeys:
    """Issues the keys that seed the draws of requests to one policy. A repeated prompt without a seed gets a new key."""

    def __init__(self) -> None:
        self._counts = BoundedDict[str, int](MAX_PROMPTS)

    def issue(self, policy_seed: object, seed: int | None, prompt: str, occurrence: int | None, min_occurrence: int) -> str:
        """Return the key of a request, and count its prompt.

        seed: the request's own; with one, a prompt always gets the same key.
        occurrence: how many times the prompt was sampled before; None: counted here, but at least `min_occurrence`.
        """
        words = f"{policy_seed!r} {seed} {prompt}".encode(errors="surrogatepass")
        digest = hashlib.blake2b(words, digest_size=12).hexdigest()
        if occurrence is None:
            occurrence = max(self._counts.get(digest, 0), min_occurrence)
        if seed is not None:
            occurrence = 0
        self._counts[digest] = occurrence + 1
        return f"{digest}{occurrence}"


class Sampler:
    """Answers chat completion requests of any number of coroutines, decoding them together.

    Args:
        model: a transformers causal LM whose attention implementation is `cache.ATTENTION`. It answers requests without a
            policy; the policies of other requests have its architecture.
        tokenizer: its tokenizer, with a chat template.
        slots: number of completions decoded at a time, each in a KV cache slot that keeps its conversation; others wait.
        seed: seeds the draws of requests without a policy; any value with a repr.
        decoder: completes the generations and counts their tokens; None: a `BatchDecoder`, in this process.
    """

    def __init__(self, model: Any, tokenizer: Any, *, slots: int = 128, seed: object = 0, decoder: Decoder | None = None):
        self.model, self.tokenizer, self.seed = model.eval(), tokenizer, seed
        self.context, rope = model.config.max_position_embeddings, getattr(model.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":  # one longer conversation changes the rotary frequencies of the batch
            self.context = min(self.context, rope["original_max_position_embeddings"])
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.vocabulary = Vocabulary(tokenizer, [e for e in [*ends, tokenizer.eos_token_id] if e is not None])
        self.constraints = Constraints(self.vocabulary)
        self.decoder = decoder or BatchDecoder(self.model, slots)
        self._prompts: dict[str, tuple[PromptEncoder, RequestKeys]] = {}  # by the policy's name
        self.decoder.on_reset = self._prompts.clear

    def forget(self, policy: str | None = None) -> None:
        """Drop everything cached and counted for one policy, or for all, as if it had never been sampled."""
        self.decoder.forget(policy)
        if policy is None:
            self._prompts.clear()
        self._prompts.pop(policy or "", None)

    async def create(
        self, *, messages: Any, policy: NamedPolicy | None = None, occurrence: int | None = None, min_occurrence: int = 0,
        client: str | None = None, **parameters: Any,
    ) -> ChatCompletion | Chunks:  # fmt: skip
        """Answer one chat completion request, as `openai.AsyncOpenAI().chat.completions.create` does.

        Each choice also has `prompt_token_ids`, `token_ids`, `token_logprobs` (natural log, temperature 1, full
        vocabulary), `token_texts` and the name of the `policy`, so that training uses exactly the sampled tokens. With
        `stream=True` the answer is an iterator of chunks; the last chunk of each choice has these fields.

        `response_format`, `tool_choice` and `parallel_tool_calls` constrain decoding, while `token_logprobs` remain those
        of the unconstrained policy: in training, a token that is unlikely without the constraint gets a large gradient.

        occurrence: how many times this prompt was sampled before, for callers that count over several samplers.
        min_occurrence: a lower bound for the count, for clients that outlive a restart of this sampler.
        client: see `Generation`.

        Raises: RequestError when a parameter or message is invalid or the conversation exceeds the context; RuntimeError
            while another event loop uses the sampler; any exception of the forward pass.
        """
        options, messages = parse_options(parameters), normalize(messages)
        policy = policy or NamedPolicy("", self.seed, self.model)
        self.decoder.start()
        encoder, keys = self._prompts_of(policy.name)
        template = encoder.template(options.tools, options.chat_template_kwargs)
        text = template.prompt(messages)
        prompt, previous = encoder.encode(text)
        space = self.context - len(prompt)
        if space < (options.max_tokens or 1):
            raise RequestError(
                f"the conversation has {len(prompt)} tokens and the answer needs {options.max_tokens or 1}, together more "
                f"than the model's context of {self.context}: shorten the conversation or lower max_tokens"
            )
        constraints = [self.constraints.for_options(options) for _ in range(options.n)]
        key = keys.issue(policy.seed, options.seed, template.control.readable(text), occurrence, min_occurrence)
        if previous:
            previous.continued += 1
        loop, slot = asyncio.get_running_loop(), previous.slot if previous else None
        generations = [
            Generation(
                policy, prompt, options, options.max_tokens or space, random.Random(f"{key} {i}"), loop.create_future(),
                self.vocabulary, constraint, slot, client,
            )
            for i, constraint in enumerate(constraints)
        ]  # fmt: skip
        self.decoder.submit(generations)

        def complete() -> ChatCompletion:
            """Build the completion, and remember the tokens of the conversation for its next turn."""
            completion = build_completion(key, options, generations)
            for generation, choice in zip(generations, completion.choices, strict=True):
                answer = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
                if not generation.stopped:
                    ids = prompt + generation.tokens[: generation.content_length()]
                    encoder.remember(text, template.answered(text, messages, answer), ids, generation.slot)
            return completion

        if options.stream:
            return Chunks(generations, key, options, complete)
        try:
            await asyncio.gather(*(generation.done for generation in generations))
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        return complete()

    def _prompts_of(self, name: str) -> tuple[PromptEncoder, RequestKeys]:
        if name not in self._prompts:
            ends = map(self.vocabulary.token_text, sorted(self.vocabulary.end_tokens))
            self._prompts[name] = PromptEncoder(self.tokenizer, ends), RequestKeys()
        return self._prompts[name]
