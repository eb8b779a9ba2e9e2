"""Customer service tasks: solvability, simulated customers, tau-bench's reward, policy violations and task files."""

import json
import random
from dataclasses import replace
from itertools import combinations
from statistics import fmean

import pytest

from customer_service import (
    Conversation,
    RuleCustomer,
    World,
    course_tasks,
    course_world,
    load_tasks,
    pass_hat_k,
)
from customer_service.customer import STOP
from customer_service.players import expert, hasty
from customer_service.policy import POLICIES, READ_ONLY_TOOLS, may_cancel
from customer_service.policy_monitor import PolicyMonitor
from customer_service.tasks import Action, Task, communicated, goal_state, reward
from environments.customer_service.maker.check import problems
from environments.customer_service.maker.maker import make

DOMAINS = ("retail", "airline")


def played(player, domain, task, seed=0):
    conversation = Conversation(course_world(domain), task, RuleCustomer(task, seed))
    player(conversation)
    return conversation


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_committed_data_equal_the_makers_output(domain):
    data, tasks = make(domain, 0)
    assert course_world(domain).data() == data
    for split in ("train", "val", "test"):
        assert course_tasks(domain, split) == [task for task in tasks if task.split == split]
    assert make(domain, 1)[0] != data


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_test_task_is_solved_by_an_agent_that_reads_only_the_conversation(domain):
    for task in course_tasks(domain, "test"):
        conversation = played(expert, domain, task, seed=random.Random(task.id).randrange(100))
        assert conversation.reward() == 1 and conversation.ended_by == "customer", task
        assert not any(conversation.monitor.violations.values())
        assert conversation.world.digest() == task.digest
        writes = [turn for turn in conversation.log if "tool_calls" in turn and turn["tool_calls"][0]["function"]["name"] not in READ_ONLY_TOOLS]
        assert len(writes) == len(task.actions)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_hasty_agent_solves_less_and_violates_the_policy(domain):
    conversations = [played(hasty, domain, task) for task in course_tasks(domain, "test", 60)]
    metrics = [conversation.metrics() for conversation in conversations]
    assert fmean(m["solved"] for m in metrics) < 0.75 and fmean(m["broke_unconfirmed"] for m in metrics) > 0.3
    assert sum(m["broke_other_customer" if domain == "retail" else "broke_against_policy"] for m in metrics) > 2


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_checker_accepts_the_tasks_and_rejects_corrupted_ones(domain):
    world, tasks = course_world(domain), course_tasks(domain, "val")
    assert problems(world, tasks) == []
    task = next(task for task in tasks if task.actions)
    name, arguments = task.actions[0]
    for corrupted in (
        replace(task, actions=()), replace(task, actions=(*task.actions, Action("think", {}))), replace(task, digest=""),
        replace(task, outputs=("a million",)), replace(task, actions=(Action(name, arguments | {"x": 1}),)),
        replace(task, wants=task.wants | {"facts": {key: "I forgot." for key in task.wants["facts"]}}),
    ):  # fmt: skip
        assert problems(world, [corrupted]), corrupted
    assert any("splits" in found for found in problems(world, [task, replace(task, id="x", split="test")]))


@pytest.mark.parametrize(("domain", "calls"), [("retail", 5), ("airline", 6)])
def test_the_checker_rejects_an_ambiguous_wish(domain, calls):
    tasks = [task for task in course_tasks(domain, "train") if task.actions and not {"second", "change"} & task.wants.keys()]
    world, by_call = course_world(domain), {task.actions[-1].name: task for task in tasks}
    assert len(by_call) == calls
    for task in by_call.values():
        arguments = task.actions[-1].arguments
        record = arguments.get("reservation_id") or arguments.get("order_id")
        vague = replace(task, wants=task.wants | {"wish": f"Do something with {record}."})
        assert any("does not determine" in found for found in problems(world, [vague])), task


@pytest.mark.parametrize(("domain", "record"), [("retail", "order #W1"), ("airline", "reservation A00000")])
def test_a_wish_about_an_unknown_record_is_a_fault(domain, record):
    task = next(task for task in course_tasks(domain, "val") if not task.actions and not task.outputs)
    unknown = replace(task, wants=task.wants | {"wish": f"cancel {record}"})
    assert any("no rule forbids" in found for found in problems(course_world(domain), [unknown]))


def test_every_trait_of_a_customer_occurs_in_the_tasks():
    tasks = [task for domain in DOMAINS for task in course_tasks(domain, "train")]
    for trait in ("change", "second", "correction", "pushes", "rude"):
        assert sum(bool(task.wants.get(trait)) for task in tasks) >= 20, trait
    assert all(task.user_id for task in tasks) and 0.1 < fmean(not task.actions and not task.outputs for task in tasks) < 0.3


def script(**more):
    wants = {"opening": "I want a lamp.", "wish": "I want a lamp.", "facts": {"email": "It is a@b.c.", "payment": "By card."}, "names": ["#W1"]}
    return Task("t", "u", "", (), (), wants=wants | more)


def test_a_customer_answers_questions_and_confirms_proposals_that_name_their_order():
    customer = RuleCustomer(script())
    assert customer.open() == "I want a lamp."
    assert customer.reply("How do you want to pay, and what is your e-mail?") == "It is a@b.c. By card."
    assert customer.reply("Hm.") == "I do not understand. I want a lamp."
    assert customer.reply("I cancel #W2. Do you confirm?") == "No. I want a lamp."
    assert customer.reply("I cancel #W1. Do you confirm?").startswith("Yes")
    assert customer.reply("It is done.") == f"Thank you. {STOP}"


def test_a_customer_changes_their_mind_once_insists_and_gives_up():
    change = {"says": "No, a mug.", "wish": "I want a mug.", "names": ["mug"]}
    customer = RuleCustomer(script(change=change, second={"says": "Then a cup.", "wish": "I want a cup.", "names": ["cup"]}, pushes=["Please!"]))
    assert customer.reply("Lamp of #W1. Do you confirm?") == "No, a mug."
    assert customer.reply("Lamp of #W1. Do you confirm?") == "No. I want a mug."
    assert customer.reply("I can't do that.") == "Then a cup."
    assert customer.reply("A cup. Do you confirm?").startswith("Yes")
    assert customer.reply("That is not possible.") == "Please!"
    assert STOP in customer.reply("That is not possible.")
    assert STOP in [RuleCustomer(script(), patience=1).reply("Hm.")][0]


def test_a_rule_customer_is_deterministic_and_needs_a_script():
    rude = script(rude=True)

    def messages(seed):
        customer = RuleCustomer(rude, seed)
        return [customer.open(), *(customer.reply("Hm.") for _ in range(5))]

    assert messages(1) == messages(1) and len({tuple(messages(seed)) for seed in range(8)}) > 2
    with pytest.raises(ValueError, match="LLMCustomer"):
        RuleCustomer(Task("t", "u", "", ()))


def test_a_language_model_can_play_the_customer(monkeypatch):
    from customer_service.customer import LLMCustomer, load_litellm

    litellm = load_litellm()
    task, seen = course_tasks("retail", "train", 1)[0], []

    def completion(model, messages, **params):
        seen.append((model, [dict(message) for message in messages], params))
        return litellm.ModelResponse(choices=[{"message": {"role": "assistant", "content": f"word {len(seen)}"}}])

    monkeypatch.setattr(litellm, "completion", completion)
    conversation = Conversation(course_world("retail"), task, LLMCustomer(task, "openai/some", temperature=0))
    assert conversation.opening == "word 1" and conversation.say("Your email?") == "word 2"
    model, messages, params = seen[1]
    assert (model, params) == ("openai/some", {"temperature": 0}) and task.instruction in messages[0]["content"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


def test_the_reward_requires_the_database_and_every_output():
    world, task = course_world("retail"), next(task for task in course_tasks("retail", "val") if task.actions)
    task = replace(task, outputs=("1234.5", "Blue"))
    assert reward(goal_state(world, task), task, ["It is 1,234.5 for the blue one."]) == 1
    assert reward(goal_state(world, task), task, ["It is 1,234.5."]) == 0 == reward(world, task, ["1234.5 blue"])
    assert communicated(("a", "b"), ["A!"]) == {"a": True, "b": False}


@pytest.mark.parametrize("domain", DOMAINS)
def test_turn_rewards_sum_to_one_for_a_task_solved_without_violations(domain):
    for task in course_tasks(domain, "val", 30):
        careful, quick = played(expert, domain, task), played(hasty, domain, task)
        assert sum(careful.turn_rewards) == pytest.approx(1) and len(careful.turn_rewards) == careful.turns
        assert sum(quick.turn_rewards) <= 1 and (sum(quick.turn_rewards) < 1 or quick.reward() == 1)


def test_a_trajectory_has_the_messages_and_the_database_changes():
    task = next(task for task in course_tasks("retail", "val") if task.wants["kind"] == "cancel")
    conversation = played(expert, "retail", task)
    trajectory = conversation.trajectory()
    messages = trajectory.messages()
    assert [message["role"] for message in messages] == [message["role"] for message in conversation.log]
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls") or ()}
    answers = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    world = course_world("retail")
    assert calls and {key: world.call(call["name"], call["arguments"]) for key, call in calls.items()} == answers
    order_id, reason = task.actions[0].arguments.values()
    assert trajectory.reward == 1 and trajectory.metrics["violations"] == 0
    assert f'orders {order_id} status: "pending" -> "cancelled"' in trajectory.logs
    assert f'orders {order_id} cancel_reason: nothing -> "{reason}"' in trajectory.logs
    assert any(line.startswith(f"orders {order_id} payment_history 2: nothing -> ") for line in trajectory.logs)
    assert len(trajectory.logs) <= 4 and not course_world("retail").differences()


def test_a_conversation_that_has_ended_does_not_change():
    task = course_tasks("retail", "val", 1)[0]
    for end in ("transfer", "turns"):
        conversation = Conversation(course_world("retail"), task, RuleCustomer(task), max_turns=2)
        first = conversation.call("transfer_to_human_agents", {"summary": ""} if end == "transfer" else "{")
        conversation.call("think", '{"thought": ""}')
        assert conversation.ended_by == end and conversation.over and first
        digest = conversation.world.digest()
        assert conversation.call("think", {"thought": ""}) == conversation.say("Hm.") == "The conversation is over."
        assert conversation.world.digest() == digest and conversation.turns == (1 if end == "transfer" else 2)


def test_violations_that_the_tools_allow_are_counted():
    world = course_world("retail")
    orders = world.records("orders")
    mine, *others = [order for order in orders.values() if order["status"] == "pending"]
    theirs = next(order for order in others if order["user_id"] != mine["user_id"])
    monitor, user = PolicyMonitor("retail"), world.records("users")[mine["user_id"]]

    def call(name, **arguments):
        before = world.fork()
        monitor.observe_call(name, arguments, before, world, world.call(name, arguments))

    call("get_order_details", order_id=mine["order_id"])
    assert monitor.violations["unidentified"] == 1
    call("find_user_id_by_email", email=user["email"])
    call("get_order_details", order_id=theirs["order_id"])
    assert sum(monitor.violations.values()) == 1
    monitor.observe_message(f"I will cancel {mine['order_id']}. I think it is for the best. Do you confirm?", "Yes.", world)
    call("cancel_pending_order", order_id=mine["order_id"], reason="no longer needed")
    assert monitor.violations["advice"] == 1 and monitor.violations["unconfirmed"] == 0
    call("cancel_pending_order", order_id=theirs["order_id"], reason="no longer needed")
    assert monitor.violations == {"unconfirmed": 1, "unidentified": 1, "other_customer": 1, "advice": 1, "against_policy": 0}


def test_when_the_airline_allows_a_cancellation():
    flights = {"F": {"dates": {"2024-05-20": {"status": "available"}, "2024-05-14": {"status": "landed"}, "2024-05-21": {"status": "cancelled"}}}}

    def allowed(day="2024-05-20", created="2024-05-10T00:00:00", cabin="economy", insurance="no", reason="My plans have changed."):
        leg = {"flight_number": "F", "date": day}
        return may_cancel({"flights": [leg], "created_at": created, "cabin": cabin, "insurance": insurance}, flights, reason)

    assert not allowed() and not allowed(insurance="yes") and not allowed(reason="I am ill.") and not allowed(cabin="basic_economy")
    assert allowed(created="2024-05-14T15:00:01") and not allowed(created="2024-05-14T15:00:00")
    assert allowed(cabin="business") and allowed(insurance="yes", reason="I am ill.") and allowed(day="2024-05-21")
    assert not allowed(day="2024-05-14", cabin="business")


def test_ill_typed_calls_that_succeed_count_as_violations_and_raise_nothing():
    task = course_tasks("airline", "val", 1)[0]
    conversation = Conversation(course_world("airline"), task, RuleCustomer(task))
    booked = course_world("airline").records("reservations")
    key, reservation = next((k, r) for k, r in booked.items() if r["nonfree_baggages"] == 0)
    method = reservation["payment_history"][0]["payment_id"]
    for total in ("many", None, 2):
        conversation.call("update_reservation_baggages", {"reservation_id": key, "total_baggages": total, "nonfree_baggages": 0, "payment_id": method})
    conversation.call("update_reservation_passengers", {"reservation_id": key, "passengers": "x" * len(reservation["passengers"])})
    conversation.call("cancel_reservation", {"reservation_id": key})
    assert conversation.monitor.violations["against_policy"] == 5 and conversation.failed_calls == 0
    assert set(conversation.metrics()) >= {"solved", "violations", "writes", "broke_advice"}


def test_pass_hat_k_is_the_probability_that_k_attempts_all_succeed():
    attempts = [[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    for k in (1, 2, 3, 4):
        counted = fmean(fmean(all(chosen) for chosen in combinations(task, k)) for task in attempts)
        estimate = pass_hat_k(attempts, k)
        assert estimate.value == pytest.approx(counted) and estimate.low <= counted <= estimate.high and estimate.n == 4
    for bad in ([], [[1]]):
        with pytest.raises(ValueError, match=r"pass\^2 needs"):
            pass_hat_k(bad, 2)
    with pytest.raises(ValueError, match="k of at least 1"):
        pass_hat_k(attempts, 0)
    for reward_ in (0.5, -0.5):
        with pytest.raises(ValueError, match="1 for a solved attempt"):
            pass_hat_k([[reward_, 1]], 1)


def test_task_files_of_tau_bench_and_tau2_are_parsed_and_never_executed(tmp_path):
    source = 'from x import y\nTASKS = [Task(annotator="0", user_id="u", instruction="i" "j", actions=[Action(name="think", kwargs={"thought": "t"})], outputs=["5"])]\n'
    (tmp_path / "tasks_test.py").write_text(source)
    (task,) = load_tasks(tmp_path / "tasks_test.py")
    assert task == Task("0", "u", "ij", (Action("think", {"thought": "t"}),), ("5",))
    row = {"id": "7", "user_scenario": {"instructions": {"reason_for_call": "r", "known_info": "k", "unknown_info": None, "task_instructions": "t"}}}
    row["evaluation_criteria"] = {"actions": [{"name": "get_user_details", "arguments": {"user_id": "u"}}], "communicate_info": ["9"]}
    (tmp_path / "tasks.json").write_text(json.dumps([row]))
    assert load_tasks(tmp_path / "tasks.json") == [Task("7", "u", "r k t", (Action("get_user_details", {"user_id": "u"}),), ("9",))]
    for bad in ("TASKS = [Task(user_id=open('x'))]", "import os", "TASKS = [", "[1]"):
        (tmp_path / "bad.py").write_text(bad)
        with pytest.raises(ValueError, match="is not a task file"):
            load_tasks(tmp_path / "bad.py")
    criteria = json.dumps([row | {"evaluation_criteria": ["x"]}]).encode()
    for bad_bytes in (b"\xff\xfe", b"[" * 100_000, criteria):
        (tmp_path / "bad.json").write_bytes(bad_bytes)
        with pytest.raises(ValueError, match=r"bad\.json is not a task file"):
            load_tasks(tmp_path / "bad.json")


def test_policies_contain_the_words_that_the_tools_require():
    assert "no longer needed" in POLICIES["retail"] and "ordered by mistake" in POLICIES["retail"] and "2024-05-15" in POLICIES["airline"]
    for domain in DOMAINS:
        names = {tool["function"]["name"] for tool in World(domain, course_world(domain).data()).tools}
        assert READ_ONLY_TOOLS & names and names - READ_ONLY_TOOLS
    with pytest.raises(ValueError, match="640"):
        course_tasks("retail", "train", 10_000)
    with pytest.raises(ValueError, match="choose a domain from retail, airline"):
        course_tasks("bank", "train")
