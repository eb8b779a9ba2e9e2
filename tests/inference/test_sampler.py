"""The sampler against `generate`, plain forwards and analytic distributions; and its error cases."""

import asyncio
import itertools
import random
from math import fsum
from types import SimpleNamespace

import openai
import pytest
import torch
import transformers
from openai.types.chat import ChatCompletion
from tiny_models import FAMILIES, make_model

from art_nb.inference import decoder
from art_nb.inference.cache import ATTENTION
from art_nb.inference.chat import RequestError
from art_nb.inference.decoder import sample_tokens
from art_nb.inference.sampler import Sampler
from art_nb.training.policy import load_policy
from data.nano.demonstrations import Demonstrations2048
from data.nano.maker import build_tokenizer
from game_2048 import MOVE_TOOL, random_board, render


@pytest.fixture(scope="module")
def tokenizer():
    play = Demonstrations2048(random.Random(0))
    return build_tokenizer([play(2) for _ in range(100)])


@pytest.fixture(scope="module")
def checkpoints(tokenizer, tmp_path_factory):
    """Folders with a tiny random model of each family and the tokenizer."""
    folders = {}
    for family in FAMILIES:
        torch.manual_seed(0)
        folders[family] = tmp_path_factory.mktemp(family)
        make_model(family, len(tokenizer)).save_pretrained(folders[family])
        tokenizer.save_pretrained(folders[family])
    return folders


def loaded(folder, seed=1):
    """A policy whose adapter changes the model, as after training."""
    policy = load_policy(folder, engine="transformers")
    shake(policy, seed)
    return policy


def shake(policy, seed):
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=draws)


@pytest.fixture(scope="module")
def policy(checkpoints):
    return loaded(checkpoints["qwen3"])


@pytest.fixture
def sampler(policy):
    return Sampler(policy.sampling_model(), policy.tokenizer, slots=8)


def user(content):
    return {"role": "user", "content": content}


def boards(seed, count):
    draws = random.Random(seed)
    return [render(random_board(draws)) for _ in range(count)]


def ask(sampler, *requests, **shared):
    """Send several requests (messages, or dicts of parameters) at once. Returns completions and raised errors."""
    requests = [r if isinstance(r, dict) else {"messages": r} for r in requests]

    async def all_of_them():
        jobs = [sampler.create(**{**shared, **request}) for request in requests]
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(all_of_them())


def one(sampler, messages, **parameters):
    (answer,) = ask(sampler, messages, **parameters)
    if isinstance(answer, BaseException):
        raise answer
    return answer.choices[0]


async def talk(sampler, seed, turns=4, **parameters):
    """Hold a conversation of several turns of lengths that depend on the seed. Returns its choices."""
    draws, messages, choices = random.Random(seed), [], []
    for board in boards(seed, turns):
        messages.append(user(board[: draws.randint(5, len(board))]))
        parameters = {"max_tokens": draws.randint(1, 7)} | parameters
        completion = await sampler.create(messages=messages, **parameters)
        choices.append(completion.choices[0])
        messages = [*messages, {"role": "assistant", "content": choices[-1].message.content}]
    return choices


def talks(sampler, seeds, **parameters):
    async def all_of_them():
        return await asyncio.gather(*(talk(sampler, seed, **parameters) for seed in seeds))

    return asyncio.run(all_of_them())


def check_logprobs(policy, choice, tolerance=1e-4):
    """Assert that the choice's log-probabilities equal those of a plain forward of the policy."""
    ids = torch.tensor([choice.prompt_token_ids + choice.token_ids], device=policy.device)
    with torch.no_grad():
        logits = policy.model.eval()(input_ids=ids, use_cache=False).logits[0].float()
    asked = len(choice.prompt_token_ids)
    expected = logits.log_softmax(-1)[asked - 1 : -1].gather(1, ids[0, asked:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(choice.token_logprobs), expected.cpu(), atol=tolerance, rtol=0)


def check_greedy(policy, choice):
    """Assert that the choice's tokens equal those of `generate`."""
    prompt = torch.tensor([choice.prompt_token_ids])
    with torch.no_grad():
        ids = policy.model.eval().generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=len(choice.token_ids)
        )
    assert choice.token_ids == ids[0, prompt.shape[1] :].tolist()


# Sampled tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_and_logprobs_equal_a_forward(checkpoints, family):
    policy = loaded(checkpoints[family])
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=8)
    for choices in talks(sampler, range(6), temperature=0):
        for choice in choices:
            check_greedy(policy, choice)
            check_logprobs(policy, choice)
    for choices in talks(sampler, range(6, 12)):
        for choice in choices:
            check_logprobs(policy, choice)


def test_sliding_window_attention(tokenizer, tmp_path):
    torch.manual_seed(0)
    model = make_model("qwen3", len(tokenizer))
    model.config.use_sliding_window, model.config.sliding_window = True, 11
    model.config.layer_types = ["sliding_attention", "full_attention"]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = loaded(tmp_path)
    assert policy.model.get_base_model().model.layers[0].self_attn.sliding_window == 11
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=8)
    for choice in sum(talks(sampler, range(6), temperature=0), []):
        check_greedy(policy, choice)
        check_logprobs(policy, choice)


def tiny_policy(family, tokenizer, folder, **config):
    """Save a random model of a family of transformers, and load it."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=None, pad_token_id=0, eos_token_id=2, initializer_range=0.2, **config,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_policy(folder, engine="transformers")


@pytest.mark.parametrize("family", ["StableLm", "Nemotron", "DiffLlama"])
def test_a_family_that_bypasses_the_attention_interface_is_refused(family, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="not supported.*attention interface"):
        policy = tiny_policy(family, tokenizer, tmp_path, max_position_embeddings=512, num_key_value_heads=2)
        one(Sampler(policy.base, policy.tokenizer), [user("2 4")], max_tokens=1)


def test_conversations_are_shorter_than_the_length_at_which_longrope_changes_the_positions_of_all(tokenizer, tmp_path):
    scaling = {"long_factor": [4.0] * 4, "short_factor": [1.0] * 4, "original_max_position_embeddings": 100}
    policy = tiny_policy(
        "Phi3", tokenizer, tmp_path, max_position_embeddings=600, original_max_position_embeddings=100,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": 1.0, **scaling},
    )  # fmt: skip
    sampler = Sampler(policy.base, policy.tokenizer)
    short, refused = ask(sampler, [user("2 4")], [user("2 4 8 " * 40)], max_tokens=12)
    assert isinstance(refused, RequestError) and "context of 100" in str(refused)
    check_logprobs(policy, short.choices[0])


def test_memory_for_a_long_conversation_is_freed_before_many_short_ones(policy):
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=32)
    sampler.decoder.cache_tokens = 1280
    long, *_ = ask(sampler, [user("2 4 8 16 " * 50)], max_tokens=4)
    assert len(long.choices[0].prompt_token_ids) > 150
    for answer in ask(sampler, *([user(f"2 {i}")] for i in range(32)), max_tokens=20):
        check_logprobs(policy, answer.choices[0])
    buffer = sampler.decoder.slots.cache.buffers[0][0]
    assert buffer.shape[0] * buffer.shape[2] <= 1280


def test_forget_drops_everything_computed_with_old_weights(checkpoints):
    policy = loaded(checkpoints["qwen3"])
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=8)
    before = talks(sampler, range(4), temperature=0)
    shake(policy, seed=2)
    sampler.model = policy.sampling_model()
    sampler.forget()
    after = talks(sampler, range(4), temperature=0)
    assert [c.token_ids for c in before[0]] != [c.token_ids for c in after[0]]
    for choice in sum(after, []):
        check_greedy(policy, choice)
        check_logprobs(policy, choice)


@pytest.mark.parametrize("slots", [8, 1])
def test_a_request_keeps_its_weights_during_an_update(checkpoints, slots):
    """Also one that waits for a slot. Later requests with the same beginning share no keys and values with it."""
    old, new = loaded(checkpoints["qwen3"]), loaded(checkpoints["qwen3"], seed=2)
    sampler = Sampler(old.sampling_model(), old.tokenizer, slots=slots)
    system = {"role": "system", "content": boards(9, 1)[0]}

    async def main():
        request, waiting = (
            asyncio.create_task(sampler.create(messages=[system, user(text)], max_tokens=length, logit_bias=None, seed=3))
            for text, length in (("2 4", 400), ("2 8", 40))
        )
        while sampler.decoder.tokens_sampled < 5:
            await asyncio.sleep(0)
        sampled = sampler.decoder.tokens_sampled
        sampler.model = new.sampling_model()
        sampler.forget()
        await some_forwards(sampler)
        for _ in range(2):  # the second time, what was computed again before is dropped, too
            sampler.forget("")
            assert not any(sampler.decoder.slots.held[each.slot] for each in sampler.decoder.active)
        others = [await sampler.create(messages=[system, user(text)], max_tokens=3) for text in ("4 2", "8 2")]
        return sampled, [(await each).choices[0] for each in (request, waiting)], [other.choices[0] for other in others]

    sampled, choices, others = asyncio.run(main())
    assert len(choices[0].token_ids) > sampled
    for policy, own in ((old, choices), (new, others)):
        for choice in own:
            check_logprobs(policy, choice)


def test_an_edited_conversation_is_computed_again_from_the_edit(policy, sampler):
    messages = []
    for board in boards(0, 4):
        messages.append(user(board))
        messages.append({"role": "assistant", "content": one(sampler, messages, max_tokens=4).message.content})
    edited = [*messages, user("more")]
    edited[3] = {"role": "assistant", "content": "down"}
    for conversation in (edited, edited[:1], [*messages, user("more")], edited[2:]):
        choice = one(sampler, conversation, temperature=0, max_tokens=6)
        whole = policy.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        assert policy.tokenizer.decode(choice.prompt_token_ids) == whole
        check_greedy(policy, choice)
        check_logprobs(policy, choice)


def test_messages_changed_in_place_are_seen(policy, sampler):
    messages = [user("2 4")]
    one(sampler, messages, max_tokens=2)
    messages[0]["content"] = "4 2"
    choice = one(sampler, messages, max_tokens=2)
    assert "4 2" in policy.tokenizer.decode(choice.prompt_token_ids)
    check_logprobs(policy, choice)


def test_more_requests_than_slots(policy):
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=3)
    for choice in sum(talks(sampler, range(11), turns=3, temperature=0), []):
        check_greedy(policy, choice)
        check_logprobs(policy, choice)
    assert len(sampler.decoder.slots.free) == 3


def test_several_choices_differ_and_have_exact_logprobs(policy, sampler):
    (answer,) = ask(sampler, [user(boards(0, 1)[0])], n=20, max_tokens=5)
    assert [choice.index for choice in answer.choices] == list(range(20))
    assert len({tuple(choice.token_ids) for choice in answer.choices}) > 10
    for choice in answer.choices:
        check_logprobs(policy, choice)
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)


def test_a_shared_prefix_is_computed_once(policy, sampler):
    system, sizes = {"role": "system", "content": "\n".join(boards(9, 8))}, count_computed(sampler)
    answers = ask(sampler, *([system, user(board)] for board in boards(0, 6)), temperature=0, max_tokens=1)
    for answer in answers:
        check_greedy(policy, answer.choices[0])
        check_logprobs(policy, answer.choices[0])
    prompts = [answer.choices[0].prompt_token_ids for answer in answers]
    assert sum(sizes) < len(prompts[0]) + sum(len(prompt) for prompt in prompts) / 4


def count_computed(sampler):
    """Return a list to which every further forward appends its number of tokens."""
    sampler.model = CountedForwards(sampler.model, [])
    return sampler.model.sizes


class CountedForwards:
    def __init__(self, model, sizes):
        self.model, self.sizes, self.config, self.device = model, sizes, model.config, model.device
        self.base_model = model.base_model

    def __call__(self, input_ids, **options):
        self.sizes.append(input_ids.numel())
        return self.model(input_ids=input_ids, **options)


def test_a_turn_computes_only_its_new_tokens(policy, sampler):
    sizes, known, messages = count_computed(sampler), 0, []
    for board in boards(0, 6):
        messages.append(user(board))
        choice = one(sampler, messages, max_tokens=1)
        messages.append({"role": "assistant", "content": choice.message.content})
        # Known: the earlier prompt, and the answer without its last token.
        assert sizes.pop() == len(choice.prompt_token_ids) - known and not sizes
        known = len(choice.prompt_token_ids)


# Random draws


def test_the_last_layer_is_computed_only_where_a_token_is_sampled(policy, sampler):
    rows, layers = {0: 0, -1: 0}, sampler.model.base_model.layers

    def count(layer):
        return lambda module, inputs: rows.update({layer: rows[layer] + inputs[0].shape[:-1].numel()})

    hooks = [layers[layer].mlp.gate_proj.register_forward_pre_hook(count(layer)) for layer in rows]
    answers = ask(sampler, *([user(board)] for board in boards(0, 3)), temperature=0, max_tokens=3)
    for hook in hooks:
        hook.remove()
    for answer in answers:
        check_greedy(policy, answer.choices[0])
        check_logprobs(policy, answer.choices[0])
    prompts = sum(len(answer.choices[0].prompt_token_ids) for answer in answers)
    assert rows[-1] == sum(len(answer.choices[0].token_ids) for answer in answers) < prompts / 4 < rows[0]


def test_the_same_run_gives_the_same_rollouts(policy):
    def run(seed):
        return [
            [c.token_ids for c in choices]
            for choices in talks(Sampler(policy.sampling_model(), policy.tokenizer, seed=seed), [0, 1, 2, 0, 1])
        ]

    first = run(0)
    assert run(0) == first != run(1)
    assert first[0] != first[3]  # the same prompt for the second time


def test_tokens_do_not_depend_on_the_rest_of_the_batch(policy):
    together = talks(Sampler(policy.sampling_model(), policy.tokenizer), range(10))
    for seed, choices in enumerate(together):
        (alone,) = talks(Sampler(policy.sampling_model(), policy.tokenizer), [seed])
        assert [c.token_ids for c in alone] == [c.token_ids for c in choices]
        for mine, theirs in zip(alone, choices, strict=True):
            torch.testing.assert_close(mine.token_logprobs, theirs.token_logprobs, atol=1e-4, rtol=0)


def test_speculation_changes_no_token(policy, monkeypatch):
    calm = {"temperature": 0.2, "max_tokens": 50}  # low, so that the model often repeats itself

    def run():
        sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=4)
        sizes = count_computed(sampler)
        return [[c.token_ids for c in choices] for choices in talks(sampler, range(20, 28), turns=2, **calm)], len(sizes)

    guessed, forwards = run()
    monkeypatch.setattr(decoder, "MIN_REPEATS", 1)
    wildly_guessed, fewer = run()
    monkeypatch.setattr(decoder, "MAX_SPECULATED", 0)
    plain, most = run()
    assert guessed == wildly_guessed == plain
    assert max(fewer, forwards) < most


def test_a_short_pause_between_turns_counts_as_sampling(sampler, monkeypatch):
    """With one token an answer, decoding ends with each turn, while all callers handle their answers."""
    now = [100.0]
    monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    async def a_second():
        now[0] += 1

    sampler.decoder.before_forward = a_second

    def ask(pause):
        now[0] += pause
        asyncio.run(sampler.create(messages=[{"role": "user", "content": "2 4"}], max_tokens=1))
        return sampler.decoder.seconds

    assert [ask(0), ask(0.05), ask(3)] == pytest.approx([1, 2.05, 3.05])


def test_the_same_seed_gives_the_same_answer(sampler):
    messages = [user(boards(0, 1)[0])]

    def sampled(**parameters):
        return [c.token_ids for c in ask(sampler, messages, max_tokens=6, **parameters)[0].choices]

    first = sampled(seed=5, n=3)
    assert sampled(seed=5, n=3) == first and sampled(seed=5) == first[:1]
    assert len(set(map(tuple, first))) == 3
    assert sampled(seed=6) != first[:1]
    assert sampled() != sampled()


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
@pytest.mark.parametrize("top_p", [1, 0.7])
def test_sampled_tokens_follow_the_distribution(policy, sampler, temperature, top_p):
    choices = [c for answer in ask(sampler, *[[user("2 4")]] * 2, n=1000, max_tokens=1, temperature=temperature,
                                   top_p=top_p) for c in answer.choices]  # fmt: skip
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([choices[0].prompt_token_ids])).logits[0, -1].double()
    expected = nucleus((logits / temperature).softmax(-1), top_p)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in choices]), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    assert chi_square_p(counts, expected) > 1e-4
    # The log-probabilities are still those of the whole distribution at temperature 1.
    for choice in choices[:20]:
        assert choice.token_logprobs[0] == pytest.approx(logits.log_softmax(-1)[choice.token_ids[0]].item(), abs=1e-4)


def nucleus(probabilities, top_p):
    """The smallest set of most likely tokens with mass top_p, found one by one."""
    kept, mass = torch.zeros_like(probabilities), 0.0
    for token in probabilities.argsort(descending=True).tolist():
        if mass >= top_p:
            break
        kept[token] = probabilities[token]
        mass += probabilities[token].item()
    return kept / kept.sum()


def chi_square_p(counts, expected):
    """p-value of the chi-square test of `counts` against `expected`, with rare tokens pooled."""
    total = counts.sum()
    rare = expected * total < 8
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    mean = torch.cat([expected[~rare], expected[rare].sum()[None]]) * total
    counts, mean = counts[mean > 0], mean[mean > 0]
    statistic = ((counts - mean) ** 2 / mean).sum()
    return torch.special.gammaincc(torch.tensor((len(mean) - 1) / 2).double(), statistic / 2).item()


def test_sample_tokens_never_returns_a_token_of_probability_0():
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]]).repeat(4, 1)
    one_below_one = 1 - 2**-53
    uniform = torch.tensor([0.0, one_below_one, one_below_one, 0.5], dtype=torch.float64)
    temperature, top_p = torch.tensor([1.0, 1.0, 1e-9, 0.0]), torch.tensor([1.0, 1.0, 1.0, 1.0])
    assert sample_tokens(logits, temperature, top_p, uniform).tolist() == [0, 2, 2, 2]
    assert sample_tokens(logits, temperature, torch.tensor([1.0, 0.5, 0.9, 1e-6]), uniform).tolist() == [2, 2, 2, 2] or (
        sample_tokens(logits, temperature, torch.tensor([1.0, 0.5, 0.9, 1e-6]), uniform).tolist() == [0, 2, 2, 2]
    )


@pytest.mark.parametrize("size", [2, 256, 257, 3000])
def test_sample_tokens_inverts_the_cumulative_distribution(size):
    draws = torch.Generator().manual_seed(size)
    logits = 3 * torch.randn(500, size, generator=draws)
    logits[:, 1:][torch.rand(500, size - 1, generator=draws) < 0.5] = -torch.inf
    uniform = torch.rand(500, generator=draws, dtype=torch.float64)
    uniform[:2] = torch.tensor([0.0, 1 - 2**-53])
    found = sample_tokens(logits, torch.ones(500), torch.ones(500), uniform)
    probabilities = torch.softmax(logits, -1).double().numpy()
    for row, token in enumerate(found.tolist()):
        before, upto = fsum(probabilities[row, :token]), fsum(probabilities[row, : token + 1])
        assert before - 1e-9 <= uniform[row] * fsum(probabilities[row]) <= upto + 1e-9 and before < upto


def test_sampled_tokens_do_not_depend_on_the_top_p_of_others():
    draws = torch.Generator().manual_seed(0)
    logits, uniform = torch.randn(9, 50, generator=draws), torch.rand(9, generator=draws, dtype=torch.float64)
    hot, all_of = torch.ones(9), torch.ones(9)
    mixed = torch.tensor([1.0, 0.5, 1.0, 0.9, 1.0, 1.0, 0.1, 1.0, 1.0])
    whole, found = sample_tokens(logits, hot, all_of, uniform), sample_tokens(logits, hot, mixed, uniform)
    assert found[mixed == 1].tolist() == whole[mixed == 1].tolist()
    for row in range(9):
        alone = sample_tokens(logits[[row]], hot[[row]], mixed[[row]], uniform[[row]])
        assert alone.item() == found[row].item()


# Text: a model with scripted answers


class ScriptedLogits:
    """A model that gives the n-th script, a list of token ids, as its n-th answer."""

    def __init__(self, vocabulary, scripts):
        self.vocabulary, self.scripts = vocabulary, scripts
        self.device, self.dtype, self.base_model = torch.device("cpu"), torch.float32, self
        self.config = SimpleNamespace(max_position_embeddings=2000, num_hidden_layers=1)
        self.generation_config = SimpleNamespace(eos_token_id=2)
        self.answers = {}  # by slot: start position and tokens

    def eval(self):
        return self

    def __call__(self, input_ids, position_ids, logits_to_keep, slot_cache, **_):
        logits, slot_cache.attended = torch.full((1, len(logits_to_keep), self.vocabulary), -9.0), [0]
        for row, index in enumerate(logits_to_keep.tolist()):
            slot, position = slot_cache.rows[index].item(), position_ids[0, index].item()
            start, answer = self.answers.get(slot, (0, []))
            if not start <= position < start + len(answer):
                start, answer = self.answers[slot] = position, self.scripts.pop(0)
            logits[0, row, answer[position - start]] = 9.0
        return SimpleNamespace(logits=logits)


def scripted(tokenizer, *scripts):
    """A sampler whose model gives these answers in order: texts, or lists of token ids."""
    scripts = [tokenizer.encode(s, add_special_tokens=False) if isinstance(s, str) else s for s in scripts]
    return Sampler(ScriptedLogits(len(tokenizer), scripts), tokenizer, slots=4)


def converse(sampler, questions, **parameters):
    """Return the choices of one conversation with these questions."""
    messages, choices = [], []
    for question in questions:
        messages.append(user(question) if isinstance(question, str) else question)
        choices.append(one(sampler, messages, temperature=0, **parameters))
        said = choices[-1].message
        messages.append(said.model_dump(exclude_none=True))
    return choices


def characters(tokenizer, text):
    """Token ids of a text, encoded one character at a time, unlike the tokenizer's."""
    return [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]


def check_continues(choices):
    for before, after in zip(choices, choices[1:], strict=False):
        known = before.prompt_token_ids + before.token_ids
        assert after.prompt_token_ids[: len(known)] == known


def test_a_conversation_continues_from_its_sampled_ids(tokenizer):
    odd = [*characters(tokenizer, "left"), 2]
    assert odd != tokenizer.encode("left<|im_end|>")
    choices = converse(scripted(tokenizer, odd, odd, "up<|im_end|>"), ["a", "b", "c"])
    assert [c.message.content for c in choices] == ["left", "left", "up"]
    assert choices[0].token_texts == ["l", "e", "f", "t", "<|im_end|>"]
    check_continues(choices)
    # Truncated by max_tokens: the next prompt adds the missing end token.
    choices = converse(scripted(tokenizer, odd, odd, odd), ["a", "b", "c"], max_tokens=3)
    assert [c.message.content for c in choices] == ["lef"] * 3 and choices[0].finish_reason == "length"
    check_continues(choices)
    assert choices[1].prompt_token_ids[len(choices[0].prompt_token_ids) + 3] == 2


@pytest.mark.parametrize("first", [0, 1])
def test_conversations_with_the_same_text_keep_their_own_ids(tokenizer, first):
    """Two rollouts have the same text in different tokens, and each continues from its own."""
    long, short = [*characters(tokenizer, "left"), 2], tokenizer.encode("left<|im_end|>")
    scripts = [long, short] if first == 0 else [short, long]
    # The conversation with the short answer continues first.
    sampler = scripted(tokenizer, *scripts, short, long)

    async def main():
        return await asyncio.gather(chat(), chat())

    async def chat():
        messages, choices = [], []
        for question in ("a", "b"):
            messages.append(user(question))
            choices.append((await sampler.create(messages=messages, temperature=0)).choices[0])
            messages.append({"role": "assistant", "content": choices[-1].message.content})
        return choices

    both = asyncio.run(main())
    assert {tuple(choices[0].token_ids) for choices in both} == {tuple(long), tuple(short)}
    for choices in both:
        check_continues(choices)


def test_characters_split_over_several_tokens(tokenizer):
    text = "héé 漢字 🙂"
    ids = tokenizer.encode(text, add_special_tokens=False)
    choices = converse(scripted(tokenizer, [*ids, 2], "up<|im_end|>"), ["ü", "b"], logprobs=True)
    assert choices[0].message.content == text
    assert "\ufffd" in "".join(choices[0].token_texts)
    assert choices[0].token_ids == [*ids, 2] and len(choices[0].token_texts) == len(ids) + 1
    check_continues(choices)
    # Half a character.
    choices = converse(scripted(tokenizer, [*ids[:-1], 2], "up<|im_end|>"), ["a", "b"])
    assert "\ufffd" in choices[0].message.content
    check_continues(choices)


def test_stop_strings_cut_the_answer(tokenizer):
    script = [*characters(tokenizer, "left right"), 2]
    choice = one(scripted(tokenizer, script), [user("a")], stop=["zz", "t r"])
    assert (choice.message.content, choice.finish_reason) == ("lef", "stop")
    assert "".join(choice.token_texts) == "left r"
    assert one(scripted(tokenizer, script), [user("a")], stop="x").message.content == "left right"
    # The continued conversation contains the text of the message.
    choices = converse(scripted(tokenizer, script, "up<|im_end|>"), ["a", "b"], stop="r")
    assert tokenizer.decode(choices[1].prompt_token_ids).count("left <|im_end|>") == 1


def test_max_tokens_and_the_context_end_an_answer(tokenizer):
    script = [5] * 5000
    choice = one(scripted(tokenizer, script), [user("a")], max_tokens=7)
    assert (choice.finish_reason, len(choice.token_ids)) == ("length", 7)
    assert len(one(scripted(tokenizer, script), [user("a")], max_completion_tokens=9).token_ids) == 9
    choice = one(scripted(tokenizer, script), [user("a")])
    assert len(choice.prompt_token_ids) + len(choice.token_ids) == 2000


def test_a_tool_call_has_openai_types_and_continues_from_its_ids(tokenizer):
    spaced = '<tool_call> {"arguments": {"direction":"left"},  "name": "move"}</tool_call>'
    said = [*tokenizer.encode(spaced, add_special_tokens=False), 2]
    sampler = scripted(tokenizer, said, said, "up<|im_end|>")
    result = {"role": "tool", "tool_call_id": "x", "content": "2 4"}
    choices = converse(sampler, ["a", result, result], tools=[MOVE_TOOL])
    (call,) = choices[0].message.tool_calls
    assert (choices[0].finish_reason, call.type, call.function.name) == ("tool_calls", "function", "move")
    assert call.function.arguments == '{"direction": "left"}' and choices[0].message.content == ""
    assert call.id != choices[1].message.tool_calls[0].id
    assert choices[2].message.tool_calls is None
    check_continues(choices)
    assert one(scripted(tokenizer, said), [user("a")]).message.content == spaced  # text, because there are no tools


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "move", "arguments": {"direction": "left"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>["move"]</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {}}',
        '<tool_call>{"name": "move", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"a":' + "[" * 1200 + "}</tool_call>",
    ],
)
def test_a_malformed_tool_call_stays_text(tokenizer, text):
    choice = one(scripted(tokenizer, text + "<|im_end|>"), [user("a")], tools=[MOVE_TOOL], temperature=0)
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert choice.message.tool_calls is None
    cut = one(scripted(tokenizer, text), [user("a")], tools=[MOVE_TOOL], temperature=0, max_tokens=len(tokenizer.encode(text)))
    assert (cut.message.content, cut.finish_reason, cut.message.tool_calls) == (text, "length", None)


def test_the_answer_is_an_openai_completion(policy, sampler):
    (answer,) = ask(sampler, [user("2 4")], model="agent", max_tokens=4, logprobs=True, top_logprobs=3)
    assert type(answer) is ChatCompletion and answer.model == "agent" and answer.object == "chat.completion"
    assert ChatCompletion.model_validate(answer.model_dump()) == answer
    choice = answer.choices[0]
    assert answer.usage.prompt_tokens == len(choice.prompt_token_ids)
    assert answer.usage.total_tokens == len(choice.prompt_token_ids) + len(choice.token_ids)
    assert [t.token for t in choice.logprobs.content] == choice.token_texts
    assert [t.logprob for t in choice.logprobs.content] == choice.token_logprobs
    for token in choice.logprobs.content:
        best = [t.logprob for t in token.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True) and best[0] >= token.logprob
        assert bytes(token.bytes).decode(errors="replace") == token.token
    assert one(sampler, [user("2 4")], max_tokens=1).logprobs is None
    (other,) = ask(sampler, [user("2 4")], max_tokens=1)
    assert other.id != answer.id


async def some_forwards(sampler, count=5):
    """Wait until so many further forwards have begun."""
    begun, drain, numbers = asyncio.Event(), sampler.decoder.before_forward, itertools.count(1)

    async def before_forward():
        await drain()
        if next(numbers) == count:
            begun.set()

    sampler.decoder.before_forward = before_forward
    await asyncio.wait_for(begun.wait(), 60)
    sampler.decoder.before_forward = drain


# Errors


BAD = {  # requests by a part of the error
    "expected a number from 0 to 100": [{"temperature": value} for value in (-1, float("nan"), "hot", True)],
    "expected a number from 1e-06 to 1": [{"top_p": 0}, {"top_p": 1.5}],
    "expected an integer from 1 to 1024": [{"n": 0}, {"n": 1.5}],
    "expected an integer from -9223372036854775808 to 9223372036854775808": [{"seed": "x"}],
    "expected an integer from 1 to 2147483648": [{"max_tokens": 0}, {"max_completion_tokens": -3}],
    "expected a non-empty string or a list of them": [{"stop": ""}, {"stop": [3]}, {"stop": 3}],
    "expected True or False": [{"logprobs": 5}, {"stream": 1}, {"parallel_tool_calls": 0}],
    "it requires logprobs=True": [{"top_logprobs": 3}],
    "expected an integer from 0 to 20": [{"top_logprobs": 99, "logprobs": True}],
    "expected a list of tool schemas": [{"tools": "move"}],
    'expected {"type": "function", "function": {"name": ...}}': [{"tools": [{"type": "function"}]}],
    "one of the functions in tools: there are none": [{"tool_choice": "required"}],
    "one of the functions in tools: move": [
        {"tool_choice": {"type": "function", "function": {"name": "jump"}}, "tools": [MOVE_TOOL]},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}, "tools": [MOVE_TOOL]},
    ],
    "expected 0; other values are not supported": [{"frequency_penalty": 0.5}, {"presence_penalty": 1}],
    "unknown here; this sampler supports": [{"temprature": 1}, {"logit_bias": {"5": 1}}, {"extra_body": {"top_k": 5}}],
    'expected {"type": "json_schema"': [
        {"response_format": {"type": "json"}}, {"response_format": "json_object"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ],
    "is 3: expected a dict": [{"extra_body": 3}, {"chat_template_kwargs": 3}],
    "more than the model's context of 512": [{"max_tokens": 10**6}, {"messages": [user("2 4 " * 3000)]}],
    "expected a list with at least one message": [{"messages": []}, {"messages": "hi"}],
    "expected a dict with a role": [{"messages": ["hi"]}, {"messages": [{"content": "hi"}]}],
    "content is 3: expected a string or a list of text parts": [{"messages": [{"role": "user", "content": 3}]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("says", "bad"), [(says, bad) for says, requests in BAD.items() for bad in requests], ids=lambda each: str(each)[:40]
)
def test_an_invalid_request_is_refused_by_name_and_leaves_others_unchanged(policy, sampler, says, bad):
    name = "top_k" if bad == {"extra_body": {"top_k": 5}} else next(iter(bad))
    good = {"messages": [user("2 4")], "max_tokens": 3, "temperature": 0}
    first, refused, last = ask(sampler, good, {"messages": [user("4")], **bad}, {**good, "messages": [user("8")]})
    assert isinstance(refused, RequestError) and says in str(refused)
    assert str(refused).startswith("the conversation has" if "context" in says else name)
    for answer in (first, last):
        check_greedy(policy, answer.choices[0])


def test_a_refused_request_is_what_the_openai_client_raises(sampler):
    with pytest.raises(openai.BadRequestError, match="temperature is 1000: expected a number from 0 to 100") as caught:
        one(sampler, [user("a")], temperature=1000)
    assert caught.value.status_code == 400 and isinstance(caught.value, ValueError)


def test_everything_that_the_openai_client_accepts_is_accepted(sampler):
    parts = [{"type": "text", "text": "2 "}, {"type": "text", "text": "4"}]
    message = openai.types.chat.ChatCompletionMessage(role="assistant", content="up")
    conversation = [{"role": "user", "content": parts}, message, {"role": "user", "content": None}]
    choice = one(
        sampler, conversation, max_tokens=1, top_p=None, tools=openai.NOT_GIVEN, stream=False, user="me",
        frequency_penalty=0, extra_body={"chat_template_kwargs": {"enable_thinking": False}}, tool_choice="none",
    )  # fmt: skip
    assert "2 4<|im_end|>" in sampler.tokenizer.decode(choice.prompt_token_ids)


def test_a_cancelled_request_leaves_others_unchanged(policy, sampler):
    async def main():
        slow = [sampler.create(messages=[user(f"2 {i}")], max_tokens=480, n=2, temperature=50) for i in range(6)]
        given_up = [asyncio.ensure_future(request) for request in slow]
        kept = asyncio.gather(*(talk(sampler, seed, temperature=0) for seed in range(4)))
        await some_forwards(sampler)
        assert not kept.done() and all([request.cancel() for request in given_up])
        kept = await kept
        assert not sampler.decoder.active and not sampler.decoder.waiting
        return kept, await asyncio.gather(*given_up, return_exceptions=True)

    kept, given_up = asyncio.run(main())
    assert all(isinstance(error, asyncio.CancelledError) for error in given_up)
    for choice in sum(kept, []):
        check_greedy(policy, choice)
    assert not sampler.decoder.active and not sampler.decoder.waiting
    check_logprobs(policy, one(sampler, [user("2 0")], max_tokens=9))
    assert len(sampler.decoder.slots.free) == len(sampler.decoder.slots.held)


def breaking(sampler, error, after):
    """Make the model raise `error` once, after `after` forwards."""
    model, calls = sampler.model, []

    class Breaking(CountedForwards):
        def __call__(self, **options):
            calls.append(1)
            if len(calls) == after + 1:
                raise error
            return model(**options)

    sampler.model = Breaking(model, [])


def test_after_a_failed_forward_draws_are_not_repeated(sampler):
    def sampled():
        return [answer.choices[0].token_ids for answer in ask(sampler, *[[user("2 4")]] * 3, max_tokens=8)]

    first = sampled()
    breaking(sampler, RuntimeError("out of memory"), after=0)
    assert isinstance(ask(sampler, [user("2 4")])[0], RuntimeError)
    assert sampled() != first


def test_a_failed_forward_fails_current_requests_only(policy, sampler):
    breaking(sampler, RuntimeError("out of memory"), after=2)
    answers = ask(sampler, *([user(board)] for board in boards(0, 12)), max_tokens=5)
    assert all(isinstance(a, RuntimeError) and "out of memory" in str(a) for a in answers)
    for choice in sum(talks(sampler, range(5), temperature=0), []):
        check_greedy(policy, choice)
        check_logprobs(policy, choice)


def test_an_interrupt_ends_all_requests_and_leaves_the_sampler_usable(policy, sampler):
    breaking(sampler, KeyboardInterrupt(), after=2)
    ended = []

    async def main():
        async def watched(seed):
            try:
                await talk(sampler, seed)
            finally:
                ended.append(seed)

        await asyncio.gather(*map(watched, range(12)))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert sorted(ended) == list(range(12))
    for choice in sum(talks(sampler, range(5), temperature=0), []):
        check_greedy(policy, choice)
        check_logprobs(policy, choice)


def test_an_abandoned_event_loop_does_not_block_the_next(policy, sampler):
    loop = asyncio.new_event_loop()
    task = loop.create_task(talk(sampler, 0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert not task.done() and not sampler.decoder.task.done()
    task._log_destroy_pending = sampler.decoder.task._log_destroy_pending = False
    loop.stop()
    check_greedy(policy, one(sampler, [user("2 4")], temperature=0, max_tokens=5))


def test_non_finite_weights_raise_and_leave_no_state(checkpoints):
    policy = loaded(checkpoints["qwen3"])
    model = policy.sampling_model()
    sampler = Sampler(model, policy.tokenizer, slots=8)
    weight = model.model.layers[0].self_attn.k_proj.weight
    good = weight.clone()
    weight.fill_(float("nan"))
    (error,) = ask(sampler, [user("2 4")])
    assert isinstance(error, FloatingPointError) and "not finite" in str(error)
    weight.copy_(good)
    for choice in sum(talks(sampler, range(4), temperature=0), []):
        check_greedy(policy, choice)


def test_bfloat16_weights(checkpoints):
    policy = loaded(checkpoints["qwen3"])
    policy.model.to(torch.bfloat16)
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=4)
    assert sampler.model.dtype == torch.bfloat16
    for choice in sum(talks(sampler, range(4)), []):
        check_logprobs(policy, choice, tolerance=0.15)
    assert next(iter(sampler.decoder.slots.cache.buffers.values()))[0].dtype == torch.bfloat16


def test_the_sampling_model_uses_slot_attention(policy):
    assert policy.sampling_model().config._attn_implementation == ATTENTION
