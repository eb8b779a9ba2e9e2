"""The environments for TRL's `environment_factory`: derived schemas, and episodes through the methods alone."""

import inspect

import pytest
from transformers.utils import get_json_schema

from customer_service import RuleCustomer, course_tasks, course_world
from customer_service.conversation import Conversation
from customer_service.environment import RESPOND, AirlineEnvironment, RetailEnvironment, first_messages
from customer_service.players import expert
from customer_service.policy import POLICIES

ENVIRONMENTS = [RetailEnvironment, AirlineEnvironment]


def tools(environment):
    """Return the tool methods as TRL collects them."""
    found = inspect.getmembers(environment, predicate=inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_") and name not in ("reset", "get_reward")}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_trl_derives_the_tools_schemas_from_the_methods(kind):
    expected = {tool["function"]["name"]: tool["function"] for tool in [*course_world(kind.domain).tools, RESPOND]}
    environment = kind()
    assert set(tools(kind)) == set(expected)
    for name in expected:
        derived = get_json_schema(getattr(environment, name))["function"]
        wanted = expected[name]["parameters"]["properties"]
        properties = derived["parameters"]["properties"]
        assert derived["description"] == expected[name]["description"]
        assert {key: (schema["type"], schema["description"]) for key, schema in properties.items()} == {
            key: (schema["type"], schema["description"]) for key, schema in wanted.items()
        }
        assert derived["parameters"].get("required", []) == list(wanted)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_an_episode_through_the_methods_gets_the_conversations_reward(kind):
    for task in course_tasks(kind.domain, "test", 10):
        conversation = Conversation(course_world(kind.domain), task, RuleCustomer(task))
        expert(conversation)
        environment = kind()
        assert environment.reset(task=task.id, prompt="ignored") == conversation.opening
        assert environment.get_reward() == float(not task.actions and not task.outputs)
        for message in conversation.log:
            if message["role"] == "assistant":
                call = message.get("tool_calls")
                name, given = ("respond", {"content": message["content"]}) if not call else call[0]["function"].values()
                getattr(environment, name)(**given)
        assert environment.get_reward() == 1 and environment.conversation.log == conversation.log


def test_an_empty_list_of_tasks_is_rejected():
    with pytest.raises(ValueError, match="tasks is empty"):
        RetailEnvironment(tasks=[])


def test_a_model_starts_from_the_policy_and_the_customers_first_message():
    task = course_tasks("airline", "test", 1)[0]
    conversation = Conversation(course_world("airline"), task, RuleCustomer(task))
    system, user = first_messages(conversation)
    assert system["content"] == POLICIES["airline"] and user == conversation.log[0]
