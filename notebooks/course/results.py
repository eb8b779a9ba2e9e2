"""The results of a notebook: a table for the reader, and the same numbers as data for `make demo`."""

from __future__ import annotations

MIME = "application/vnd.art-nb.results+json"  # of an output that holds a list of `result`


def result(
    label: str, value: float, low: float | None = None, high: float | None = None, unit: str = "%", n: int | None = None
) -> dict:
    """Return one result. low, high: the bounds of the 95% interval. n: the number of games, questions, ... behind it."""
    fields = {"label": label, "value": float(value), "low": low, "high": high, "unit": unit, "n": n}
    return {name: field for name, field in fields.items() if field is not None}


def show(*rows: dict) -> None:
    """Display results as a table. The output also holds them as JSON, which no front end shows."""
    from IPython.display import display

    display({"text/plain": table(list(rows)), MIME: list(rows)}, raw=True)


def table(rows: list[dict]) -> str:
    """Format results as aligned lines: label, value with unit, 95% interval, n. Raises: ValueError without results."""
    if not rows:
        raise ValueError("there is no result: expected at least one")
    lines = []
    for row in rows:
        value = f"{row['value']:.1f}{row.get('unit', '')}"
        interval = f"95% interval {row['low']:.1f} to {row['high']:.1f}" if "low" in row else ""
        lines.append((row["label"], value, interval, f"n = {row['n']}" if "n" in row else ""))
    first, second, third = (max(map(len, column)) for column in list(zip(*lines, strict=True))[:3])
    return "\n".join(f"{a:<{first}}  {b:>{second}}  {c:<{third}}  {d}".rstrip() for a, b, c, d in lines)
