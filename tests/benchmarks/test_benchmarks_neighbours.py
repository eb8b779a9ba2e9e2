"""The benchmarks of strangers and neighbours run and print their one line. Nothing is timed."""

import json
import sys
from functools import partial

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the open files of the server")


@pytest.mark.parametrize("name", ["stranger", "neighbour"])
def test_it_prints_its_line(name, capfd):
    from benchmarks import neighbour, stranger
    from benchmarks.result import print_result

    measure = {"stranger": stranger.measure, "neighbour": neighbour.measure}[name]
    print_result(name, partial(measure, 1.0))
    (line,) = capfd.readouterr().out.splitlines()
    result = json.loads(line)
    if name == "stranger":
        assert result["held"] <= result["files"] // 2 and result["logged_bytes"] < 5000
    else:
        assert result["slow"] > 0 and result["greedy"] > 0 and result["answers"].keys() == {"alone", "slow", "greedy"}
