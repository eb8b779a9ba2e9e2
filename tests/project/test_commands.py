"""`art-nb`: a wrong command or option is named, and an expected error is one line."""

import pytest

from art_nb import __main__
from course import commands


def fails() -> int:
    """fail"""
    raise ValueError("this was wrong")


def lacks() -> int:
    """lack a package"""
    raise ImportError("gguf is missing")


def takes(*options: str) -> int:
    """take options"""
    return len(options)


def stopped() -> int:
    """be stopped"""
    raise KeyboardInterrupt


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["nosuch"], 2, "no command 'nosuch'"), (["fails", "x"], 2, "art-nb fails takes no options; given: x"), (["fails", "--help"], 0, "art-nb fails: fail"),
    (["fails"], 1, "art-nb fails: this was wrong"), (["lacks"], 1, "art-nb lacks: gguf is missing"), (["stopped"], 130, "\nStopped.\n"), (["takes", "--help"], 0, "art-nb takes: take options"), (["takes", "x"], 1, ""), (["--help"], 0, "usage: art-nb COMMAND"), ([], 2, "usage: art-nb COMMAND"),
])  # fmt: skip
def test_the_reason_comes_first(monkeypatch, capsys, arguments, code, words):
    monkeypatch.setattr(commands, "COMMANDS", {"fails": fails, "lacks": lacks, "takes": takes, "stopped": stopped})
    assert __main__.main(arguments) == code
    out, err = capsys.readouterr()
    assert (out + err).startswith(words)
