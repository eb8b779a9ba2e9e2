"""Customer service for a shop and an airline: a database, tools that write to it, a policy, and simulated customers.

`front_desk` and `airline_desk` have simpler tools for small models; `clerks` and `airline_clerk` have rule-based agents.
"""

from importlib.util import find_spec
from typing import Any

from customer_service.conversation import Conversation
from customer_service.course import course_tasks, course_world
from customer_service.customer import STOP, LLMCustomer, RuleCustomer
from customer_service.measure import pass_hat_k
from customer_service.policy import POLICIES
from customer_service.tasks import Action, Task, load_tasks
from customer_service.world import World

__all__ = [
    "POLICIES", "STOP", "Action", "Conversation", "LLMCustomer", "RuleCustomer", "Task", "World", "course_tasks",
    "course_world", "load_tasks", "pass_hat_k",
]  # fmt: skip

if find_spec("verifiers"):  # its loader finds the taskset in `__all__`
    __all__ += ["RetailTaskset"]


def __getattr__(name: str) -> Any:
    if name == "RetailTaskset":
        from customer_service import taskset

        return taskset.RetailTaskset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
