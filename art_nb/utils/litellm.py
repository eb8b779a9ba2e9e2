"""`convert_litellm_choice_to_openai`: what LiteLLM answered, as a trajectory takes it."""

from typing import Any

from openai.types.chat.chat_completion import Choice


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """The choice of a completion by LiteLLM as one of OpenAI's: message, tool calls, log-probabilities.

    Raises: ValueError for a choice of a stream, or one that no assistant said.
    """
    fields = litellm_choice.model_dump()
    if (fields.get("message") or {}).get("role") != "assistant":
        raise ValueError(f"expected the choice of a whole answer by an assistant, got {str(fields)[:200]}")
    known = {name: fields[name] for name in Choice.model_fields if name in fields}
    message = {name: known["message"].get(name) for name in ("role", "content", "refusal", "tool_calls")}
    return Choice.model_validate({"logprobs": None, **known, "message": message})
