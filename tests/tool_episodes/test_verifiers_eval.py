"""verifiers' own evaluation command runs our environment against `art-nb serve`, in an environment that has verifiers and uv."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running_server import NANO_EMAIL, TOKEN, serving

pytest.importorskip("verifiers.v1", reason="verifiers 0.4 pins mcp 2.0.0, which the lock excludes: install it in an environment of its own")

COMMAND = Path(sys.executable).parent / "vf-eval"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("uv"), reason="verifiers starts its agent with uv")
def test_vf_eval_against_our_server(tmp_path):
    with serving(tmp_path / "server", nano_email=NANO_EMAIL) as server:
        options = [
            "email_search", "-m", "nano_email", "-n", "1", "--client.base-url", f"{server.url}/v1", "--client.api-key-var", "ART_NB_TOKEN",
            "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess", "--env.agent.max-turns", "6",
            "--sampling.max-tokens", "48", "--sampling.temperature", "0.01", "--no-push", "--no-rich", "--output-dir", str(tmp_path / "out"),
        ]  # fmt: skip
        run = subprocess.run([COMMAND, *options], env={**os.environ, "ART_NB_TOKEN": TOKEN}, capture_output=True, text=True, timeout=500)
    (traces,) = (tmp_path / "out").rglob("traces.jsonl")
    (trace,) = map(json.loads, traces.read_text().splitlines())
    assert run.returncode == 0 and trace["ok"] and not trace["errors"], (run.stdout, run.stderr, trace["errors"])
    calls = [c["name"] for node in trace["nodes"] if node["sampled"] for c in node["message"].get("tool_calls") or []]
    assert calls and trace["rewards"]["reward"]["score"] is not None and trace["metrics"]["turns"] >= 1
