"""`convert_litellm_choice_to_openai`: converts a LiteLLM choice to openai's `Choice`, for a trajectory."""

from typing import Any

from openai.types.chat.chat_completion import Choice


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """Convert the choice of a LiteLLM completion: message, tool calls, log-probabilities.

    Raises: ValueError for a streaming chunk's choice, or a message whose role is not assistant.
    """
    fields = litellm_choice.model_dump()
    if (fields.get("message") or {}).get("role") != "assistant":
        raise ValueError(f"expected a choice with a complete assistant message, got {str(fields)[:200]}")
    known = {name: fields[name] for name in Choice.model_fields if name in fields}
    message = {name: known["message"].get(name) for name in ("role", "content", "refusal", "tool_calls")}
    return Choice.model_validate({"logprobs": None, **known, "message": message})
