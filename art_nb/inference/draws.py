"""One token drawn from each row of logits: temperature, nucleus, and a given uniform number; knows nothing else."""

import torch


def draw(logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    logits: (B, V); temperature: (B,), 0 means greedy; top_p: (B,) nucleus mass; uniform: (B,) in [0, 1). Returns (B,).
    """
    greedy = temperature == 0
    if bool(greedy.all()):
        return logits.argmax(-1)
    scale = temperature.clamp(min=1e-6).to(logits.dtype)
    probabilities, order = torch.softmax(logits / scale[:, None], dim=-1), None
    if bool((top_p < 1).any()):
        probabilities, order = probabilities.sort(dim=-1, descending=True)
        before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
        probabilities = probabilities * (before < top_p[:, None])
    mass = probabilities.cumsum(-1, dtype=torch.float64)  # of many small numbers, so in more digits than they have
    whole = mass[:, -1:]
    # Below the whole mass even when rounded, so that no token of probability 0 is ever drawn.
    point = torch.minimum(uniform[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    index = torch.searchsorted(mass, point, right=True)
    if order is not None:
        index = order.gather(1, index)
    return torch.where(greedy, logits.argmax(-1), index[:, 0]) if bool(greedy.any()) else index[:, 0]
