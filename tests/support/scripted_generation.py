"""A generation whose content is given instead of sampled."""

from types import SimpleNamespace

from art_nb.inference.chat import ChatOptions


class ScriptedGeneration:
    """Stands in for `art_nb.inference.generation.Generation` where completions and chunks are built."""

    prompt, tokens, logprobs, token_details = [1], [2, 3], [0.0, 0.0], []
    policy, vocabulary = SimpleNamespace(name="scripted"), SimpleNamespace(token_text=str)

    def __init__(self, options: ChatOptions, text: str, finish_reason: str = "stop"):
        self.options, self.text, self.finish_reason = options, text, finish_reason

    def content(self) -> str:
        return self.text
