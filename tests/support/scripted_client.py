"""A chat client whose answers are given instead of sampled."""

import json
from types import SimpleNamespace

from openai.types.chat.chat_completion import Choice


class ScriptedClient:
    """Answers in order, the last one again and again: a text, or a list of (tool, arguments). Keeps the requests.

    An answer may be a function of the request's messages.
    """

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, **request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(request["messages"]) if callable(answer) else answer
        message = {"role": "assistant", "content": answer if isinstance(answer, str) else ""}
        if not isinstance(answer, str):
            calls = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in answer]
            message["tool_calls"] = [{"id": f"c{i}", "type": "function", "function": call} for i, call in enumerate(calls)]
        return SimpleNamespace(choices=[Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message})])
