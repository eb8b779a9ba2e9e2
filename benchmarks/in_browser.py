"""The page "Watch it learn" in headless Chromium: bytes and seconds until it can be used, and milliseconds per move.

`make book`, then `python -m benchmarks.in_browser` prints one JSON line. The page is loaded over a simulated 10 Mbit/s
link with 40 ms latency; `first_s` is the time until the first probabilities are on the page, `first_bytes` the bytes
received until then, `all_bytes` the size of both views' policies. `move_ms` is the median time of a forward pass
over a board of 2048, by factor of CPU throttling (as in Chrome's developer tools), `slowest_ms` the 95th percentile.
`ratio` is transformers' time for the same boards, with torch's default threads, over that of the browser without throttling.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gathering import BASE
from benchmarks.result import print_result
from course.policy_files import policy_parts, script
from game_2048 import random_board, render

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
NETWORK = {"offline": False, "latency": 40, "downloadThroughput": 10e6 / 8, "uploadThroughput": 10e6 / 8}
FACTORS = (1, 4)
BOARDS = 100
LOAD = """async ([code, parts, url]) => {
  const engine = new Function(code + "; return { Tokenizer, Qwen3, readSafetensors }")();
  const tokenizer = new engine.Tokenizer(parts.tokenizer);
  const model = new engine.Qwen3(parts.config, engine.readSafetensors(await (await fetch(url)).arrayBuffer()));
  window.move = (board) => {
    const prompt = tokenizer.prompt(board), started = performance.now();
    model.logits(prompt);
    return performance.now() - started;
  };
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def measure(book: Path) -> dict:
    """Return the numbers of the module's docstring. Raises: SystemExit without the page or Chromium."""
    page = book / "book/watch_it_learn.html"
    if not page.exists() or not Path(CHROMIUM).exists():
        raise SystemExit(f"{page} and {CHROMIUM} are needed: run `make book`, or set CHROMIUM to the browser's path")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=book)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            found = in_chromium(f"http://127.0.0.1:{server.server_port}/book/watch_it_learn.html")
        finally:
            server.shutdown()
    found["all_bytes"] = sum(path.stat().st_size for path in page.parent.glob("policies/*.safetensors"))
    found["ratio"] = 1000 * seconds_of_transformers() / found["move_ms"]["1"]
    return found


def boards() -> list[str]:
    rng = random.Random(0)
    return [render(random_board(rng, max_tile=256)) for _ in range(BOARDS)]


def in_chromium(url: str) -> dict:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1360, "height": 1000})
        devtools = tab.context.new_cdp_session(tab)
        devtools.send("Network.enable")
        received = []
        devtools.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
        devtools.send("Network.emulateNetworkConditions", NETWORK)
        tab.goto(url, wait_until="commit")
        tab.wait_for_function("document.querySelector('.an-policy')?.dataset.loaded >= 1", polling=20)
        first = {"first_s": tab.evaluate("performance.now()") / 1000, "first_bytes": sum(received)}
        devtools.send("Network.emulateNetworkConditions", {**NETWORK, "latency": 0, "downloadThroughput": -1})
        tab.evaluate("document.body.replaceChildren()")  # nothing else computes
        code = script().replace("export default", "const view =")
        tab.evaluate(LOAD, [code, policy_parts(BASE, "2048"), "policies/2048_0000.safetensors"])
        moves = {}
        for factor in FACTORS:
            devtools.send("Emulation.setCPUThrottlingRate", {"rate": factor})
            moves[factor] = tab.evaluate("(boards) => boards.map((board) => window.move(board))", boards())
        browser.close()
    return {
        **first, "move_ms": {str(factor): median(times) for factor, times in moves.items()},
        "slowest_ms": {str(factor): quantiles(times, n=20)[-1] for factor, times in moves.items()},
    }  # fmt: skip


@torch.inference_mode()
def seconds_of_transformers() -> float:
    """Return transformers' median seconds for a forward pass over a board."""
    tokenizer, model = AutoTokenizer.from_pretrained(BASE), AutoModelForCausalLM.from_pretrained(BASE).eval()
    times = []
    for board in boards():
        message = [{"role": "user", "content": board}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        started = time.perf_counter()
        model(input_ids=ids["input_ids"], logits_to_keep=1)
        times.append(time.perf_counter() - started)
    return median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--book", type=Path, default=Path("out/book"), help="the folder that `make book` writes")
    arguments = parser.parse_args()
    print_result("in_browser", lambda: measure(arguments.book))
