"""A backend behind HTTP: chat completions for any client, training, leases of work, a live page (`art-nb serve`).

Knows HTTP, who may ask, and a backend. Knows nothing about how a policy samples or learns.
"""
