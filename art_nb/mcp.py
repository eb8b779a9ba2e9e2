"""ART's names for MCP: tools and resources of a server, and scenarios for them that a language model writes.

    scenarios = await generate_scenarios(tools, num_scenarios=24, generator_api_key=...)
    train, val = scenarios.shuffle().split(16)

`environments.adapters.mcp` plays such a scenario with any MCP server. Nothing is sent before `generate_scenarios` is
called. Depends on pydantic and the `openai` client. Source: `art.mcp` of ART 0.5.18.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Self

from openai import AsyncOpenAI
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

__all__ = [
    "GeneratedScenario", "GeneratedScenarioCollection", "MCPResource", "MCPTool", "complete_task_tool", "generate_scenarios",
]  # fmt: skip

MAX_TOKENS = 8000  # of the generator's answer
PROMPT = """Below are the tools and resources of an MCP server. Write {count} different tasks that a user of this server
could have, for training an agent. Each can be done with these tools and does not name them. Vary the number of calls that
a task needs, from one to many, and rate its difficulty from 1 (one call) to 5 (many calls, and conclusions from their
results). Each task ends by asking for a summary of what was done and found.

Tools:
{tools}

Resources:
{resources}
"""


class _Described:
    """Conversion of a dataclass to and from a dictionary."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Raises: pydantic.ValidationError naming the fields that are missing or have the wrong type."""
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]


@dataclass
class MCPTool(_Described):
    """A tool. parameters: its JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def to_tool_schema(self) -> dict[str, Any]:
        """Return the tool in OpenAI's format."""
        return {"type": "function", "function": self.to_dict()}


@dataclass(config=ConfigDict(populate_by_name=True))
class MCPResource(_Described):
    """A resource. mime_type: also read from `mimeType`."""

    uri: str
    name: str
    description: str
    mime_type: str | None = Field(default=None, alias="mimeType")

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        return found | ({"mimeType": mime} if (mime := found.pop("mime_type")) else {})


@dataclass
class GeneratedScenario(_Described):
    """A task for an agent. difficulty: an integer from 1 (easy) to 5 (hard)."""

    task: str
    difficulty: int = Field(strict=True, ge=1, le=5)

    def preview(self, max_length: int = 120) -> str:
        """Return the beginning of the task on one line, without control characters."""
        text = "".join(character if character.isprintable() else " " for character in self.task)
        return text if len(text) <= max_length else text[:max_length].rstrip() + "…"


class GeneratedScenarioCollection(Sequence[GeneratedScenario]):
    """Scenarios, to shuffle, split and filter. Each of these returns a new collection."""

    def __init__(self, scenarios: list[GeneratedScenario]):
        self.scenarios = scenarios

    @classmethod
    def from_dicts(cls, data: list[dict[str, Any]]) -> GeneratedScenarioCollection:
        """Return the scenarios. Raises: pydantic.ValidationError, a ValueError, naming missing or wrong fields."""
        return cls(TypeAdapter(list[GeneratedScenario]).validate_python(data))

    @classmethod
    def from_json(cls, json_str: str) -> GeneratedScenarioCollection:
        """Read what `to_json` wrote, or a list. Raises: ValueError for anything else."""
        data = json.loads(json_str)
        found = data.get("scenarios") if isinstance(data, dict) else data
        return cls.from_dicts(found)  # type: ignore[arg-type]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [scenario.to_dict() for scenario in self.scenarios]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps({"scenarios": self.to_dicts()}, indent=indent)

    def __len__(self) -> int:
        return len(self.scenarios)

    def __getitem__(self, index: Any) -> Any:
        return self.scenarios[index]

    def shuffle(self) -> GeneratedScenarioCollection:
        """Return the scenarios in an order drawn by Python's global generator."""
        return GeneratedScenarioCollection(random.sample(self.scenarios, len(self.scenarios)))

    def split(self, train_size: int) -> tuple[GeneratedScenarioCollection, GeneratedScenarioCollection]:
        """Return the first `train_size` scenarios and the others. Raises: ValueError if `train_size` is out of range."""
        if not 0 <= train_size <= len(self):
            raise ValueError(f"train_size must be from 0 to {len(self)}, the number of scenarios, not {train_size}")
        return tuple(map(GeneratedScenarioCollection, (self.scenarios[:train_size], self.scenarios[train_size:])))  # type: ignore[return-value]

    def filter_by_difficulty(self, min_difficulty: int = 1, max_difficulty: int = 5) -> GeneratedScenarioCollection:
        return GeneratedScenarioCollection([s for s in self.scenarios if min_difficulty <= s.difficulty <= max_difficulty])

    def get_difficulty_distribution(self) -> Counter[int]:
        return Counter(scenario.difficulty for scenario in self.scenarios)

    def preview(self, n: int = 5, max_task_length: int = 120) -> None:
        """Print the first `n` scenarios."""
        for number, scenario in enumerate(self.scenarios[:n], 1):
            print(f"{number}. {scenario.preview(max_task_length)} (difficulty {scenario.difficulty} of 5)")

    def print_difficulty_distribution(self) -> None:
        """Print the number of scenarios of each difficulty."""
        counts = self.get_difficulty_distribution()
        print("difficulty:", ", ".join(f"{level}: {counts[level]}" for level in range(1, 6)))

    def get_summary(self) -> dict[str, Any]:
        """Return the number of scenarios, in total and by difficulty, and mean difficulty and length (0 if empty)."""
        return {
            "total_scenarios": len(self),
            "difficulty_distribution": dict(self.get_difficulty_distribution()),
            "avg_difficulty": fmean(s.difficulty for s in self.scenarios) if self.scenarios else 0,
            "avg_task_length": fmean(len(s.task) for s in self.scenarios) if self.scenarios else 0,
        }


complete_task_tool = MCPTool(
    name="complete_task",
    description="Finish the task.",
    parameters={
        "type": "object",
        "properties": {"summary": {"type": "string", "description": "What was done, and the answer."}},
        "required": ["summary"],
    },
)


async def generate_scenarios(
    tools: Sequence[MCPTool | dict[str, Any]],
    resources: Sequence[MCPResource | dict[str, Any]] | None = None,
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str = "openai/gpt-4.1-mini",
    generator_api_key: str | None = None,
    generator_base_url: str = "https://openrouter.ai/api/v1",
) -> GeneratedScenarioCollection:
    """Generate scenarios with a language model. Sends the descriptions of tools and resources, and `custom_instructions`.

    generator_api_key: None: the variable OPENROUTER_API_KEY. generator_base_url: of any OpenAI-compatible server.
    show_preview: print five scenarios and the difficulties.

    Raises: ValueError without tools and resources, without a key, or when the answer is truncated or not `num_scenarios`
        scenarios; openai.APIError when the request fails.
    """
    if not tools and not resources:
        raise ValueError("tools and resources are empty: pass at least one tool or resource of the server")
    key = generator_api_key or os.environ.get("OPENROUTER_API_KEY")
    if not key:
        raise ValueError("no API key: pass generator_api_key, or set OPENROUTER_API_KEY")
    listings = [json.dumps([*given], indent=2, default=lambda each: each.to_dict()) for given in (tools, resources or ())]
    prompt = PROMPT.format(count=num_scenarios, tools=listings[0], resources=listings[1])
    prompt += f"\n{custom_instructions}\n" if custom_instructions else ""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    scenario = {
        "type": "object", "additionalProperties": False, "required": ["task", "difficulty"],
        "properties": {"task": {"type": "string"}, "difficulty": {"type": "integer", "minimum": 1, "maximum": 5}},
    }  # fmt: skip
    many = {"type": "array", "items": scenario, "minItems": num_scenarios, "maxItems": num_scenarios}
    schema = {"type": "object", "additionalProperties": False, "required": ["scenarios"], "properties": {"scenarios": many}}
    async with AsyncOpenAI(api_key=key, base_url=generator_base_url) as client:
        response = await client.chat.completions.create(
            model=generator_model, messages=messages, max_completion_tokens=MAX_TOKENS,
            response_format={"type": "json_schema", "json_schema": {"name": "scenarios", "schema": schema}},
        )  # fmt: skip
    if not response.choices:
        raise ValueError(f"{generator_model} returned no answer: {str(response)[:200]!r}")
    choice = response.choices[0]
    if choice.finish_reason == "length":
        raise ValueError(f"the answer of {generator_model} was truncated; ask for fewer scenarios than {num_scenarios}")
    text = choice.message.content or ""
    try:
        found = GeneratedScenarioCollection.from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer of {generator_model} is not a list of scenarios: {text[:200]!r}") from error
    if len(found) != num_scenarios:
        raise ValueError(f"{generator_model} wrote {len(found)} scenarios instead of {num_scenarios}; call again")
    if show_preview:
        found.print_difficulty_distribution()
        found.preview()
    return found
