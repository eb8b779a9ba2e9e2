"""Backends sample and train a model: in this process, on a server, in Ray actors, with vLLM, on a rented machine.

`base` holds the code that all share; `vllm` and `ray` build on `local`, `skypilot` on `remote`. Does not depend on tasks or
rewards, nor on the server that `remote` calls.
"""
