"""Where a model is sampled and trained: in this process, on a server, in Ray actors, with vLLM, on a rented machine.

`base` is what all share; `local` is the one that the others build on. Does not depend on tasks or rewards, nor on the server
that `remote` calls.
"""
