"""The pause between two forwards, in which those who were answered ask again. So batches fill."""

import asyncio

ROUNDS = 8  # of the event loop


async def settle() -> None:
    """Let every coroutine that can run, run."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
