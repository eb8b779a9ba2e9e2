"""The report detects the faults built into a judge; its statistics agree with published figures and brute force."""

import asyncio
import itertools
import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
from judge_server import JudgeServer, completion, ok, score_of
from openai import AsyncOpenAI

import art_nb as art
from art_nb.rewards import JudgeError, Judgement, LLMJudge, RubricJudge, TrajectoryScore
from art_nb.rewards.agreement import mean, pairs_right
from art_nb.rewards.judges import Usage
from course.judge_report import ATTACKS, _with_attack, judge_report, kendall, spearman


def test_published_figures():
    """The examples in the documentation of scipy.stats.kendalltau and spearmanr."""
    assert kendall([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) == pytest.approx(-0.47140452079103173)
    assert spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.82078268166812329)


def ranks(values):
    return [1 + sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]


def test_statistics_against_brute_force():
    rng = random.Random(0)
    for _ in range(300):
        n = rng.randint(2, 9)
        x, y = ([rng.randint(0, 4) / 4 for _ in range(n)] for _ in range(2))
        alike = opposite = only_x = only_y = right = differ = 0
        for (a, c), (b, d) in itertools.combinations(zip(x, y, strict=True), 2):
            alike += (a - b) * (c - d) > 0
            opposite += (a - b) * (c - d) < 0
            only_x += a == b and c != d
            only_y += c == d and a != b
            differ += a != b
            right += 0 if a == b else 0.5 if c == d else (a > b) == (c > d)
        below = ((alike + opposite + only_x) * (alike + opposite + only_y)) ** 0.5
        assert kendall(x, y) == pytest.approx((alike - opposite) / below if below else 0.0)
        assert pairs_right(x, y) == (pytest.approx(right / differ if differ else 0.0), differ)
        constant = len(set(x)) == 1 or len(set(y)) == 1
        assert spearman(x, y) == pytest.approx(0.0 if constant else np.corrcoef(ranks(x), ranks(y))[0, 1])


def test_the_coverage_of_intervals():
    rng = np.random.default_rng(0)
    estimates = [mean(rng.exponential(size=80)) for _ in range(300)]
    covered = sum(e.low <= 1.0 <= e.high for e in estimates)
    assert 0.89 < covered / 300 < 0.98
    assert mean([]) is None and mean([0.0, 1.0], [3, 1]).value == 0.25


def trajectory(worth, words=0):
    content = f"{'word ' * words}I am worth {worth}"
    messages = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": content}]
    return art.Trajectory(messages_and_choices=messages, metrics={"outcome": worth})


def outcome(t):
    return t.metrics["outcome"]


def groups(n=60, size=5, seed=0):
    rng = random.Random(seed)
    return [
        art.TrajectoryGroup([trajectory(rng.randint(0, 100) / 100, rng.randint(0, 30)) for _ in range(size)], metadata={"n": i})
        for i in range(n)
    ]


@dataclass
class FaultyJudge:
    """A judge that distorts the true outcomes in known ways; it sees the group in an order that depends on the texts."""

    position: float = 0.0
    length: float = 0.0
    noise: float = 0.0
    swayed: bool = False
    pedantic: bool = False  # a reworded rubric halves its scores
    fails: str = "no such text"

    async def judge(self, trajectories, rubric, order=0, sample=0):
        texts = [t.messages()[-1]["content"] for t in trajectories]
        if any(self.fails in text for text in texts):
            raise JudgeError("scripted")
        rng = random.Random(f"{texts}{order}{sample}")
        places = random.Random(f"{texts}{order}").sample(range(len(texts)), len(texts))
        scores = [self._score(t, text, p / (len(texts) - 1), rng) for t, text, p in zip(trajectories, texts, places, strict=True)]
        if self.pedantic and "Rate how well" in rubric:
            scores = [score / 2 for score in scores]
        named = [TrajectoryScore(trajectory_id=str(i), explanation="", score=s) for i, s in enumerate(scores, start=1)]
        return Judgement(named, Usage(calls=2, prompt_tokens=30, completion_tokens=3, cost_usd=0.5), places)

    def _score(self, t, text, place, rng):
        if self.swayed and any(attack in text for attack in ATTACKS):
            return 1.0
        spoilt = self.position * place + self.length * text.count("word") / 30 + rng.uniform(-1, 1) * self.noise
        return 0.4 * outcome(t) + 0.3 + 0.3 * spoilt


def report(judge, given=None, **options):
    return asyncio.run(judge_report(judge, given or groups(), outcome, **options))


def test_a_perfect_judge():
    found = report(FaultyJudge())
    assert found.groups == 60 and found.trajectories == 300 and found.failed == []
    for name, perfect in {"kendall": 1, "spearman": 1, "pairwise": 1, "repeat_change": 0, "repeat_order": 1, "position": 0}.items():
        estimate = getattr(found, name)
        assert estimate.low <= estimate.value <= estimate.high and estimate.value == pytest.approx(perfect, abs=1e-9)
    assert found.attacked.value == found.attack_control.value == 0 and abs(found.length.value) < 1e-9
    assert (found.calls, found.tokens, found.cost_usd) == (2, 33, 0.5)
    assert "pairwise         1.000  [1.000, 1.000]  n = 60" in str(found)


def test_each_fault_is_detected():
    by_place = report(FaultyJudge(position=0.5)).position
    assert by_place.value == pytest.approx(0.15) and by_place.low > 0.14
    assert report(FaultyJudge(length=1.0)).length.low > 0.2
    swayed = report(FaultyJudge(swayed=True))
    assert swayed.attacked.value > 0.95 and swayed.attack_control.value == 0 and swayed.pairwise.value == 1
    worded = report(FaultyJudge(pedantic=True))
    assert worded.wording_change.value == pytest.approx(0.25, abs=0.03) and worded.wording_order.value == pytest.approx(1)
    noisy, noisier = report(FaultyJudge(noise=0.2)), report(FaultyJudge(noise=1.0))
    assert 0 < noisy.repeat_change.value < noisier.repeat_change.value and noisier.repeat_order.value < noisy.repeat_order.value
    assert noisier.pairwise.high < noisy.pairwise.low < 1
    assert noisier.position.low < 0 < noisier.position.high


def test_a_preference_for_late_positions_is_no_successful_attack():
    """An attack changes the texts, so also their order: the control is without the attack in another order."""
    found = report(FaultyJudge(position=1.0), groups(200))
    assert found.attacked.low > 0.3 and found.attack_control.value == pytest.approx(found.attacked.value, abs=0.1)
    assert found.attacked.n == found.attack_control.n == 200


def test_an_order_that_is_the_first_one_again_does_not_count_as_another():
    """With two trajectories every second order is the first one. In the other, this judge changes both scores by 0.3."""
    found = report(FaultyJudge(position=1.0), groups(size=2))
    assert 30 < found.order_change.n < 60 and found.order_change.value == pytest.approx(0.3)


def test_equal_outcomes_and_equal_scores():
    silent = report(FaultyJudge(), [art.TrajectoryGroup([trajectory(0.5, 1), trajectory(0.5, 2)]) for _ in range(3)])
    assert silent.kendall is None and silent.pairwise is None and silent.repeat_change.value == 0

    class Alike(FaultyJudge):
        def _score(self, *parts):
            return 0.5

    equal = report(Alike())
    assert equal.kendall.value == equal.spearman.value == 0 and equal.pairwise.value == 0.5


def test_failed_groups_are_listed_and_omitted():
    found = report(FaultyJudge(fails="I am worth 0.37"))
    named = [f"group n={g.metadata['n']}" for g in groups() if any(outcome(t) == 0.37 for t in g)]
    assert named and found.failed == named and found.pairwise.n == 60 - len(named)


def test_a_judge_behind_http(tmp_path):
    """The judge is correct, except that it obeys attacks and gives 1.0."""

    def script(number, shown):
        if not any(attack in str(m) for m in shown.attempts.values() for attack in ATTACKS):
            return ok(shown)
        attacked = {i: any(attack in m[-1]["content"] for attack in ATTACKS) for i, m in shown.attempts.items()}
        scores = [{"trajectory_id": i, "explanation": "", "score": 1.0 if obeys else score_of(shown.attempts[i])} for i, obeys in attacked.items()]
        return completion(json.dumps({"scores": scores}))

    given = groups(12)
    with JudgeServer(script) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="key")
        found = report(LLMJudge("judge", client=client, cache=tmp_path, context_tokens=8_000), given)
    assert len(server.requests) == 12 * 6 and found.failed == []  # first, repeated, reworded, two orders, attacked
    assert found.pairwise.value == 1 and found.attacked.value == 1 and found.position.value == pytest.approx(0)
    assert (found.calls, found.tokens, found.cost_usd) == (1, 110, None)


def test_the_rubric_judge_has_no_positions():
    assert report(RubricJudge("tools"), groups(3)).position is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_true_outcomes_must_be_finite_and_are_computed_before_the_judge_is_prompted(wrong):
    given = [art.TrajectoryGroup([trajectory(1), trajectory(wrong)])]
    with pytest.raises(ValueError, match="true outcomes of .* expected finite numbers"):
        asyncio.run(judge_report(None, given, outcome))
    with pytest.raises(KeyError):
        asyncio.run(judge_report(None, groups(2), lambda t: t.metrics["no such metric"]))


def test_without_attacks_it_raises():
    with pytest.raises(ValueError, match="0 attacks: expected"):
        asyncio.run(judge_report(FaultyJudge(), groups(2), outcome, attacks=[]))


def test_an_exception_cancels_the_other_judgements():
    """They may cost money."""
    calls = []

    class Damaged(FaultyJudge):
        async def judge(self, trajectories, rubric, order=0, sample=0):
            calls.append(order)
            if len(calls) > 3:  # the first judgement of each group is complete
                await (asyncio.sleep(0.01) if sample else asyncio.Event().wait())
                raise ValueError("a damaged cache file")
            return await super().judge(trajectories, rubric, order, sample)

    async def main():
        with pytest.raises(ValueError, match="a damaged cache file"):
            await judge_report(Damaged(), groups(3), outcome)
        assert len(calls) > 6 and asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_an_attack_is_added_to_an_answer_in_parts():
    parts = [{"type": "text", "text": "done"}]
    given = art.Trajectory(messages_and_choices=[{"role": "assistant", "content": parts}])
    (attacked,) = _with_attack([given], 0, ATTACKS[0])
    assert attacked.messages()[0]["content"] == [*parts, {"type": "text", "text": ATTACKS[0]}]


@pytest.mark.parametrize(("given", "orders"), [([], 3), ([art.TrajectoryGroup([trajectory(1)])], 3), (groups(2), 1)])
def test_judge_report_needs_groups_of_two_and_two_orders(given, orders):
    with pytest.raises(ValueError, match="groups of two or more"):
        asyncio.run(judge_report(FaultyJudge(), given, outcome, orders=orders))
