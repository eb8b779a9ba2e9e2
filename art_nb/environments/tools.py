"""Tools of an environment: OpenAI schemas from typed methods, and validation of the calls that a model makes.

Does not depend on environments, models or training.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter

Tool = TypeVar("Tool", bound=Callable[..., str])

_DESCRIBED = {
    "string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false", "object": "an object",
    "array": "a list",
}  # fmt: skip


class MalformedCall(ValueError):
    """A tool call that does not fit the tools' schemas. kind: "no call", "unknown tool" or "bad arguments"."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class RefusedCall(Exception):
    """Raised by a tool if its arguments fit the schema but cannot be used; the agent reads the message and may try again."""


def tool(method: Tool) -> Tool:
    """Make a method of a `ToolEpisode` one of its tools.

    The method needs type hints and a Google docstring that describes each parameter; it returns the observation as text.
    Calling the decorated method counts as a turn, like `call` with the tool's name.

    Raises: as `tool_schema`.
    """
    signature = inspect.signature(method)

    @wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> str:
        _, *given = signature.bind(self, *args, **kwargs).arguments.items()
        return self.call(method.__name__, dict(given))

    called.schema = tool_schema(method)  # type: ignore[attr-defined]
    return cast(Tool, called)


def tool_schema(function: Callable[..., Any]) -> dict:
    """Return the OpenAI schema of a typed function, for most types equal to that of `transformers.utils.get_json_schema`.

    The descriptions of the function and of its parameters come from its Google docstring. `self` is left out.

    Raises: TypeError for a parameter without a type hint, ValueError for one without a description or of a recursive type.
    """
    name, hints = function.__name__, get_type_hints(function)
    description, described = _read_docstring(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name} of the tool {name} has no type hint; add one such as `: str`")
        if parameter.name not in described:
            raise ValueError(f"parameter {parameter.name} of the tool {name} has no description; add it to the docstring")
        found = resolved(TypeAdapter(hints[parameter.name]).json_schema())
        kind = {"type": found.pop("type")} if "type" in found else {}
        properties[parameter.name] = kind | found | {"description": described[parameter.name]}
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    schema = {"name": name, "description": description, "parameters": parameters, "return": {"type": "string"}}
    return {"type": "function", "function": schema}


def resolved(schema: dict) -> dict:
    """Return a JSON schema without `$defs`, each reference replaced by the schema that it refers to.

    Raises: ValueError for a recursive schema or a reference to another document; KeyError for a missing definition.
    """

    def inner(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inner(each, path) for each in value]
        if not isinstance(value, dict):
            return value
        if isinstance(reference := value.get("$ref"), str):
            if not reference.startswith("#/") or reference in path:
                raise ValueError(f"the schema refers to {reference}, which is recursive or in another file: leave it out")
            found: Any = schema
            for part in reference.removeprefix("#/").split("/"):
                found = found[part]
            return inner({**found, **{k: v for k, v in value.items() if k != "$ref"}}, (*path, reference))
        return {key: inner(each, path) for key, each in value.items() if key != "$defs"}

    return inner(schema, ())


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return (description, {parameter: description}) of a Google docstring."""
    description, *sections = re.split(r"^(Args|Returns|Raises):\s*$", inspect.getdoc(function) or "", flags=re.MULTILINE)
    described = dict(zip(sections[::2], sections[1::2], strict=True)).get("Args", "")
    entries = re.findall(r"^    (\w+)[^:\n]*:\s*(.*(?:\n     +.*)*)", described, flags=re.MULTILINE)
    return description.strip(), {name: " ".join(text.split()) for name, text in entries}


def parse_arguments(tools: Iterable[dict], name: str | None, arguments: str | dict | None) -> dict:
    """Return the validated arguments of a tool call.

    tools: OpenAI schemas. name: None for an answer without a call. arguments: the model's JSON text, or an object;
    may be empty for a tool without parameters.

    Raises: MalformedCall if the call does not fit the schemas.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    if not name:
        raise MalformedCall("no call", "every turn must call a tool")
    if name not in schemas:
        raise MalformedCall("unknown tool", f"there is no tool {quoted(name)}; the tools are {', '.join(schemas)}")
    properties = schemas[name].get("properties", {})
    if not arguments and not properties:
        return {}
    try:
        given: Any = json.loads(arguments, parse_constant=_not_json) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        raise MalformedCall("bad arguments", "the arguments are not JSON") from None
    if not isinstance(given, dict):
        raise MalformedCall("bad arguments", "the arguments must be a JSON object")
    for parameter, value in given.items():
        if parameter not in properties:
            raise MalformedCall("bad arguments", f"{name} has no argument {quoted(parameter)}")
        if not _validator()(properties[parameter]).is_valid(value):
            raise MalformedCall("bad arguments", f"{parameter} must be {_expected(properties[parameter])}")
    if missing := [parameter for parameter in schemas[name].get("required", ()) if parameter not in given]:
        raise MalformedCall("bad arguments", f"{name} needs {' and '.join(missing)}")
    return given


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON, though Python's parser accepts it")


@cache
def _validator() -> Any:
    """Return a validator class for draft 2020-12 (pydantic, MCP), also with draft 7's `items`; 3.0 is not an integer."""
    from jsonschema.validators import Draft202012Validator as Latest  # takes half a second
    from jsonschema.validators import extend

    def items(validator: Any, schemas: Any, value: Any, schema: dict) -> Iterator[Any]:
        if not isinstance(schemas, list):
            yield from Latest.VALIDATORS["items"](validator, schemas, value, schema)
        elif isinstance(value, list):  # one schema per position, as `prefixItems` in later drafts
            for item, item_schema in zip(value, schemas, strict=False):
                yield from validator.descend(item, item_schema)

    def by_pattern(keyword: str, *args: Any) -> Iterator[Any]:
        with suppress(re.error):  # Python cannot compile every pattern of JSON Schema, such as \p{L}
            yield from Latest.VALIDATORS[keyword](*args)

    patterns = {name: partial(by_pattern, name) for name in ("pattern", "patternProperties", "additionalProperties")}
    is_integer = lambda _, value: isinstance(value, int) and not isinstance(value, bool)  # noqa: E731
    return extend(Latest, {"items": items, **patterns}, type_checker=Latest.TYPE_CHECKER.redefine("integer", is_integer))


def _expected(schema: dict | bool) -> str:
    if isinstance(schema, bool):
        return "left out"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kept = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    if kept == {"type": "array", "items": {"type": "string"}}:
        return "a list of strings"
    if kept.keys() == {"type"} and str(kept["type"]) in _DESCRIBED:
        return _DESCRIBED[kept["type"]]
    return f"valid under {json.dumps(schema)}"


def quoted(text: str) -> str:
    """Return the first 40 characters of a model's text as a JSON string on one line."""
    text = text.encode("utf-8", "replace").decode()
    return json.dumps(text if len(text) <= 40 else f"{text[:40]}...", ensure_ascii=False)


def clean(text: str) -> str:
    """Return text that SQLite and JSON accept: NUL becomes a space, an unpaired surrogate becomes "?"."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
