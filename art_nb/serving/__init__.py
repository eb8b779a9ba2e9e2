"""A backend behind HTTP: chat completions for any OpenAI client, training, episodes for workers, a live page.

`art-nb serve` and `art-nb worker`. Does not depend on how a policy samples or learns.
"""
