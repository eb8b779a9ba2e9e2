"""The offline judge of the email task: reasons checked by hand, parsed questions, and agreement with true outcomes."""

import asyncio
import json
import random
from datetime import date

import pytest

import art_nb as art
from art_nb.rewards import RubricJudge
from art_nb.rewards.agreement import pairs_right
from art_nb.rewards.rubric import WEIGHTS, criteria_of
from course.judge_report import ATTACKS
from email_search import I_DONT_KNOW, EmailSearch, course_mailbox, scenarios
from email_search import criteria as criteria_email
from email_search.players import ENDS, heuristic_player, play, searcher
from email_search.questions import Question, read_question
from environments.email_search.maker.words import KINDS

ROOM = "What is the final room of the Falcon review?"
HITS = {
    "m2": "m2 2024-03-04 Bob Ray: Falcon review | Hi all, as you know",
    "m5": "m5 2024-03-07 Bob Ray: Re: Falcon review | Hi all, before I forget it,",
    "m6": "m6 2024-03-08 Eve Fox: Re: Falcon review | Fine with me. Eve On 2024-03-07",
    "m8": "m8 2024-03-09 Bob Ray: Falcon invoice | Hi all, as you know",
    "m9": "m9 2024-03-20 Eve Fox: Our outing | Hi Ann, why not",
}
PAGES = {
    "m2": "m2\nfrom: Bob Ray <bob@x.example>\nto: Ann Lee\ndate: 2024-03-04 10:00\nsubject: Falcon review\n\n"
          "Hi all,\nas you know it is near. We meet in room 101.\nBob",
    "m5": "m5\nfrom: Bob Ray <bob@x.example>\nto: Ann Lee\ndate: 2024-03-07 10:00\nsubject: Re: Falcon review\n\n"
          "Hi all,\nFrom now on it is room 202.\nBob\n\nOn 2024-03-04 Bob Ray wrote:\n> Hi all,\n> We meet in room 101.",
    "m6": "m6\nfrom: Eve Fox <eve@x.example>\nto: Ann Lee\ndate: 2024-03-08 10:00\nsubject: Re: Falcon review\n\n"
          "Fine with me.\nEve\n\nOn 2024-03-07 Bob Ray wrote:\n> Hi all,\n> From now on it is room 202.",
    "m8": "m8\nfrom: Bob Ray <bob@x.example>\nto: Ann Lee\ndate: 2024-03-09 10:00\nsubject: Falcon invoice\n\n"
          "Hi all,\nplease pay 500 dollars in room 303.\nBob",
    "m9": "m9\nfrom: Eve Fox <eve@x.example>\nto: Ann Lee\ndate: 2024-03-20 10:00\nsubject: Our outing\n\n"
          "Hi Ann,\nI would go to Oslo.\nEve",
}  # fmt: skip


def find(*ids):
    return "search_emails", {"keywords": "falcon review"}, "\n".join(HITS[i] for i in ids) or "No mail fits."


def read(message_id):
    return "read_email", {"message_id": message_id}, PAGES.get(message_id, f'There is no mail "{message_id}".')


def answer(text, *sources):
    return "return_final_answer", {"answer": text, "sources": list(sources)}, "Thank you."


def conversation(question, *steps):
    said = [{"role": "user", "content": f"Inbox: ann@x.example\nToday: 2024-04-01\n{question}"}]
    for name, arguments, result in steps:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        said += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": result}]
    return art.Trajectory(messages_and_choices=said)


FOUND = find("m2", "m5", "m6")


@pytest.mark.parametrize(
    ("question", "steps", "share", "reason"),
    [
        (ROOM, [FOUND, read("m5"), answer("room 202", "m5")], 0.9, "m5 says so, not all was read"),
        (ROOM, [FOUND, read("m6"), answer("Room 202.", "m6")], 1, "m6 says so"),
        (ROOM, [FOUND, read("m2"), answer("room 101", "m2")], 0.2, "a mail by the same person was not read"),
        (ROOM, [FOUND, read("m5"), answer("room 101", "m5")], 0.05, "m5 says room 202, after that"),
        (ROOM, [find("m2"), read("m2"), answer("room 101", "m2")], 0.3, "says that it changed, and no change was seen"),
        ("In which room is the Falcon review?", [find("m2"), read("m2"), answer("room 101", "m2")], 1, "m2 says so"),
        ("In which room is the Falcon review?", [FOUND, read("m2"), answer("room 101")], 0.85, "by the same person"),
        ("What was the first room of the Falcon review?", [FOUND, read("m5"), answer("room 101")], 1, "m5 says so"),
        ("What was the first room of the Falcon review?", [FOUND, read("m5"), answer("room 202")], 0.05, "m5 says room 101, before that"),
        ("What was the first room of the Falcon review?", [FOUND, read("m6"), answer("room 202")], 0.2, "by the same person"),
        (ROOM, [FOUND, read("m5"), answer("room 404")], 0, "no mail about it that was read says so"),
        (ROOM, [FOUND, answer("room 202", "m5")], 0, "no mail about it that was read says so"),
        (ROOM, [find("m8"), read("m8"), answer("room 303")], 0, "no mail about it that was read says so"),
        (ROOM, [FOUND, read("m5"), answer("14 May")], 0, "not of the requested kind"),
        ("Which place did Eve Fox suggest for the outing?", [find("m9"), read("m9"), answer("Oslo")], 1, "m9 says so"),
        ("Which place did Bob Ray suggest for the outing?", [find("m9"), read("m9"), answer("Oslo")], 0, "its sender is not Bob Ray"),
        ("How much was the Falcon invoice in March 2024?", [find("m8"), read("m8"), answer("500 dollars")], 1, "m8 says so"),
        ("How much was the Falcon invoice in May 2024?", [find("m8"), read("m8"), answer("500 dollars")], 0, "was not sent in 2024-05"),
        ("Is Falcon near?", [find("m2"), read("m2"), answer("as you know it is near")], 1, "m2 says so"),
        (ROOM, [FOUND, answer(I_DONT_KNOW)], 0.3, "it says that it doesn't know"),
        (ROOM, [FOUND, read("m2")], 0.3, "it gives no answer"),
        (ROOM, [FOUND, ("fetch", {}, "Malformed: there is no tool \"fetch\". The search is over.")], 0, "can't be carried out"),
    ],
)  # fmt: skip
def test_accuracy(question, steps, share, reason):
    found, why = criteria_email.accuracy(conversation(question, *steps))
    assert found == share and reason in why


RIGHT = answer("room 202", "m6")


@pytest.mark.parametrize(
    ("steps", "share", "reason"),
    [
        ([FOUND, read("m6"), RIGHT], 1, "3 calls, 0 of them"),
        ([FOUND, read("m5"), read("m6"), RIGHT], 0.9, "4 calls, 0 of them"),
        ([FOUND, FOUND, read("m6"), RIGHT], 0.85, "4 calls, 1 of them"),
        ([find(), FOUND, read("m6"), RIGHT], 0.8, "4 calls, 2 of them"),
        ([FOUND, read("m7"), read("m6"), RIGHT], 0.85, "4 calls, 1 of them"),
        ([FOUND, read("m2"), answer("room 303")], 0, "3 calls led to no answer"),
        ([FOUND, answer(I_DONT_KNOW)], 0, "2 calls led to no answer"),
    ],
)
def test_efficiency(steps, share, reason):
    found, why = criteria_email.efficiency(conversation(ROOM, *steps))
    assert found == pytest.approx(share) and reason in why


@pytest.mark.parametrize(
    ("steps", "share", "reason"),
    [
        ([FOUND, read("m6"), RIGHT], 1, "1 of 1 named sources"),
        ([FOUND, read("m6"), answer("room 202", "m6", "m2", " m6 ")], 0.5, "1 of 2 named sources"),
        ([FOUND, read("m6"), answer("room 202", "m5")], 0, "0 of 1 named sources"),
        ([FOUND, read("m6"), answer("room 202")], 0, "no source is named"),
        ([FOUND, read("m2"), answer("room 303", "m2")], 0.36, "in 3 calls it read a mail about it"),
        ([FOUND, answer(I_DONT_KNOW)], 0.19, "in 2 calls it found a mail about it"),
        ([find("m8"), read("m8"), answer(I_DONT_KNOW)], 0.06, "in 3 calls it found no mail about it"),
    ],
)
def test_completeness(steps, share, reason):
    found, why = criteria_email.completeness(conversation(ROOM, *steps))
    assert found == pytest.approx(share) and reason in why


@pytest.mark.parametrize(
    ("steps", "share", "reason"),
    [
        ([FOUND, read("m6"), RIGHT], 1, "has 8 characters"),
        ([FOUND, read("m6"), answer("the " * 18 + "room 202")], 0.5, "has 80 characters"),
        ([FOUND, answer(I_DONT_KNOW)], 0.5, "an honest answer"),
        ([FOUND, answer("room 202")], 0, "may mislead"),
        ([FOUND], 0, "nothing to read"),
    ],
)
def test_user_satisfaction(steps, share, reason):
    found, why = criteria_email.user_satisfaction(conversation(ROOM, *steps))
    assert found == share and reason in why


def test_an_answer_without_a_call_is_malformed_but_not_after_the_end():
    sound = conversation(ROOM, FOUND, read("m6"), RIGHT)
    word = {"role": "assistant", "content": "It is room 202."}
    assert criteria_email.accuracy(sound)[0] == 1
    sound.messages_and_choices.append(word)
    assert criteria_email.accuracy(sound)[0] == 1
    broken = conversation(ROOM, FOUND)
    broken.messages_and_choices.append(word)
    assert criteria_email.accuracy(broken) == (0, "a call that can't be carried out ended it")
    with pytest.raises(ValueError, match="has no user message"):
        criteria_email.accuracy(art.Trajectory())


def test_questions_are_parsed_into_their_makers_conditions():
    assert read_question(ROOM) == Question(r"\broom \d+\b", ("Falcon", "review"), which="final")
    for s in scenarios("train"):
        found = read_question(s.question)
        after = (date.fromisoformat(f"{found.month}-01") if found.month else None)
        assert [word.lower() for word in found.words] == sorted(s.about, key=s.question.lower().index), s
        assert found.values(f"I would go to {s.answer}.") == [s.answer] and KINDS[s.kind].pattern.fullmatch(s.answer)
        assert str(after or "") == s.after and found.is_about(f"Re: {' '.join(s.about)}") and not found.is_about("Falcon")
        assert (found.person.split() or [""])[0].lower() == s.sender.partition("@")[0]
        assert found.which in ("first", "") if s.which == "first" else found.which in ("final", "")
        assert (found.which == "first") == (s.which == "first")


# ---


def groups(split, n, seed, skills=(0.3, 0.5, 0.7, 0.85, 0.95, 1.0)):
    """Return n groups of 8 searches by players with random skills."""
    rng, box = random.Random(seed), course_mailbox()
    for scenario in rng.sample(scenarios(split), n):
        players = [searcher(rng.choice(skills), rng.randrange(10**9)) for _ in range(8)]
        yield [play(player, EmailSearch(box, scenario)).trajectory() for player in players]


def scores(trajectories):
    return [s.score for s in asyncio.run(RubricJudge("email_search").judge(trajectories, "")).scores]


def test_scores_order_searches_like_their_true_outcomes():
    found = [(pairs_right([t.reward for t in g], s), pairs_right([t.metrics["correct"] for t in g], s))
             for g in groups("train", 30, seed=11) for s in [scores(g)]]  # fmt: skip
    for truth in zip(*found, strict=True):
        right, pairs = (sum(share * n for share, n in truth), sum(n for _, n in truth))
        assert pairs > 250 and right / pairs > 0.9


def test_criteria_read_the_messages_only():
    for group in groups("train", 6, seed=5):
        first = scores(group)
        rng = random.Random(0)
        for t in group:
            t.reward, t.metrics, t.tools = rng.random(), {"correct": rng.random()}, None
            t.metadata = {"truth": rng.random(), "truth_sources": "m1"}
        assert scores(group) == first
        for t in group:  # text of the judged agent raises no score
            spoken = [m for m in t.messages_and_choices if m["role"] == "assistant"]
            spoken[-1]["content"] += ATTACKS[1]
        assert scores(group) == first


def test_weights_and_reasons():
    (group,) = groups("train", 1, seed=1)
    (score, *_) = asyncio.run(RubricJudge("email_search").judge(group, "")).scores
    shares = {c.name: c.measure(group[0]) for c in criteria_of("email_search")}
    assert {c.name: c.weight for c in criteria_of("email_search")} == WEIGHTS
    assert score.score == pytest.approx(sum(WEIGHTS[name] * share for name, (share, _) in shares.items()))
    assert all(reason in score.explanation for _, reason in shares.values())


# ---


def test_a_searchers_success_rises_with_its_skill_and_depends_on_the_seed():
    asked = scenarios("train", 60)
    correct = {}
    for skill in (0.0, 0.5, 1.0):
        searches = [play(searcher(skill, n), EmailSearch(course_mailbox(), s)) for n, s in enumerate(asked)]
        again = [play(searcher(skill, n), EmailSearch(course_mailbox(), s)) for n, s in enumerate(asked)]
        assert [s.transcript for s in searches] == [s.transcript for s in again]
        correct[skill] = sum(s.correct for s in searches) / len(asked)
    assert correct[0.0] < 0.2 < correct[0.5] < 0.6 < 0.85 < correct[1.0]


def test_every_kind_of_ending_is_reconstructed():
    box, (scenario,) = course_mailbox(), scenarios("train", 1)
    ended = []
    for call in ENDS:
        search = EmailSearch(box, scenario)
        search.call(*call)
        ended.append(search.ended_by)
        found = criteria_email.searched(search.trajectory())
        assert found.malformed == (search.ended_by == "malformed") and found.calls == search.turns == 1
    assert ended == ["gave up", "malformed", "malformed", "malformed"]


def test_a_search_is_reconstructed_from_its_messages():
    box = course_mailbox()
    for scenario in scenarios("train", 40):
        plain, recorded = EmailSearch(box, scenario), EmailSearch(box, scenario)
        play(heuristic_player, plain)
        trajectory = play(heuristic_player, recorded).trajectory()
        assert (trajectory.reward, trajectory.metrics) == (plain.reward(), plain.metrics())
        found = criteria_email.searched(trajectory)
        assert (found.answer, set(found.listed), set(found.pages), found.calls) == (plain.answer, plain.shown, plain.read, plain.turns)
