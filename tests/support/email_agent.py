"""What the tests of agent frameworks share: a nano model, the tools of a search as functions, and checks of a trajectory."""

import json
from contextlib import asynccontextmanager

from running_server import NANO_EMAIL

import art_nb as art
from art_nb.backends.local import LocalBackend
from email_search import EmailSearch, course_mailbox, scenarios

SCENARIO = scenarios("train")[0]
SAMPLING = {"temperature": 0.01, "seed": 5, "max_tokens": 48}


@asynccontextmanager
async def registered(folder, name="agent", base_model=NANO_EMAIL):
    model = art.TrainableModel(name=name, project="frameworks", base_model=base_model)
    backend = LocalBackend(path=folder, engine="transformers")
    await model.register(backend)
    yield model


class Search:
    """A search whose tools are plain functions; `calls` are those that the framework made."""

    def __init__(self):
        self.episode, self.calls = EmailSearch(course_mailbox(), SCENARIO), []

    def call(self, name, arguments):
        self.calls.append((name, arguments))
        return self.episode.call(name, {key: value for key, value in arguments.items() if value not in ("", None)})

    def search_emails(self, keywords: str = "", from_addr: str = "", to_addr: str = "", max_results: int = 4) -> str:
        """List mails, best first.

        Args:
            keywords: words that a mail must hold, all of them.
            from_addr: part of the sender's name or address.
            to_addr: part of a recipient's name or address.
            max_results: 1 to 10.
        """
        return self.call("search_emails", {"keywords": keywords, "from_addr": from_addr, "to_addr": to_addr, "max_results": max_results})

    def read_email(self, message_id: str) -> str:
        """Show one mail.

        Args:
            message_id: its id, as a search lists it.
        """
        return self.call("read_email", {"message_id": message_id})

    def return_final_answer(self, answer: str, sources: list[str]) -> str:
        """Answer the question. This ends the search.

        Args:
            answer: a few words, or I don't know.
            sources: ids of the mails it stands in.
        """
        return self.call("return_final_answer", {"answer": answer, "sources": sources})

    @property
    def functions(self):
        return [self.read_email, self.return_final_answer, self.search_emails]

    def question(self):
        return self.episode.first_message()


def check(trajectory, search, *, histories=1):
    """Each sampled turn has its exact tokens, each prompt extends the last one, and the calls are those that were made."""
    assert len(trajectory.histories()) == histories and trajectory.choices()
    for choice in trajectory.all_choices():
        assert choice.token_ids and len(choice.token_ids) == len(choice.token_logprobs) and choice.prompt_token_ids
    for history in trajectory.histories():
        pairs = zip(history.choices(), history.choices()[1:], strict=False)
        assert all(after.prompt_token_ids[: len(before.prompt_token_ids)] == before.prompt_token_ids for before, after in pairs)
    asked = [(c.function.name, json.loads(c.function.arguments)) for choice in trajectory.all_choices() for c in choice.message.tool_calls or []]
    made = iter(asked)
    assert search.calls
    for name, arguments in search.calls:  # in the order asked; what the model left out has the function's default
        assert any(n == name and all(arguments.get(key, value) == value for key, value in given.items()) for n, given in made)


async def trains(model, trajectory):
    """One step on the trajectory and a copy that was paid less changes the weights: the same request is answered otherwise."""
    other = trajectory.model_copy(deep=True)
    trajectory.reward, other.reward = 1.0, 0.0
    request = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1}

    async def logprobs():
        answer = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **request)
        return answer.choices[0].token_logprobs

    before = await logprobs()
    result = await model.train([art.TrajectoryGroup([trajectory, other])], art.TrainConfig(learning_rate=1e-2))
    assert await model.get_step() == 1 and await logprobs() != before
    return result
