"""The routes of `vllm serve` that a VllmBackend uses, on a CPU: transformers samples the tokens, PEFT loads the adapters.

    with VllmStandIn(base_folder) as server: ...   # server.url is its root

It takes and gives what vLLM 0.28 does, by the table that make_vllm_signatures.py reads from vLLM's own files: a field that vLLM
does not know is refused here. Of this package it knows nothing.
"""

import json
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

TABLE = json.loads((Path(__file__).parent / "vllm_0_28_0_signatures.json").read_text("utf-8"))


class Refused(Exception):
    """status, message: as vLLM answers."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.message = status, message


class VllmStandIn:
    """requests: (path, body) of each request, in order. adapters: name -> folder, of those that are loaded.
    disconnected: number of clients that closed their connection before the answer was ready. lock: held while tokens are sampled.

    runtime_loras: whether VLLM_ALLOW_RUNTIME_LORA_UPDATING is set.
    """

    def __init__(self, base, *, runtime_loras=True):
        from transformers import AutoModelForCausalLM

        self.base, self.runtime_loras = Path(base).name, runtime_loras
        self.model = AutoModelForCausalLM.from_pretrained(base).eval()
        self.requests, self.adapters, self.disconnected, self.lock = [], {}, 0, threading.Lock()

    def restart(self):
        """Unload all adapters, like a restarted server."""
        self.adapters.clear()

    def __enter__(self):
        stand_in = self

        class VllmHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def answer(self, body):
                try:
                    status, payload = 200, stand_in.serve(f"{self.command} {self.path}", body)
                except Refused as error:
                    kind = {"message": error.message, "type": "BadRequestError", "param": None, "code": error.status}
                    status, payload = error.status, made("ErrorResponse", error=made("ErrorInfo", **kind))
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                    stand_in.disconnected, self.close_connection = stand_in.disconnected + 1, True
                    return
                payload = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), VllmHandler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def serve(self, route, body):
        assert route in TABLE["routes"]
        self.requests.append((route, body))
        if route == "GET /v1/models":
            cards = [made("ModelCard", id=self.base, root=self.base, max_model_len=self.model.config.max_position_embeddings)]
            cards += [made("ModelCard", id=name, root=str(folder), parent=self.base) for name, folder in self.adapters.items()]
            return made("ModelList", data=cards)
        if route == "POST /v1/load_lora_adapter":
            return self.load(**known("LoadLoRAAdapterRequest", body))
        return self.complete(known("CompletionRequest", body))

    def load(self, lora_name, lora_path):
        if not self.runtime_loras:
            raise Refused(404, "Not Found")
        if lora_name in self.adapters:
            raise Refused(400, f"The lora adapter '{lora_name}' has already been loaded. If you want to load the adapter in place, ...")
        if not (Path(lora_path) / "adapter_config.json").exists():
            raise Refused(404, f"Loading lora {lora_name} failed: No adapter found for {lora_path}")
        self.adapters[lora_name] = lora_path
        return f"Success: LoRA adapter '{lora_name}' added successfully."

    def complete(self, body):
        if body["model"] not in (self.base, *self.adapters):
            raise Refused(404, f"The model `{body['model']}` does not exist.")
        with self.lock:
            tokens, logprobs, top = self.draw(body)
        ended = tokens[-1] in body["stop_token_ids"]
        names = [f"token_id:{token}" for token in tokens]
        payload = made("CompletionLogProbs", tokens=names, token_logprobs=logprobs, top_logprobs=top, text_offset=[0] * len(tokens))
        choice = made("CompletionResponseChoice", index=0, text="", logprobs=payload, finish_reason="stop" if ended else "length",
                      token_ids=tokens, prompt_token_ids=body["prompt"])  # fmt: skip
        return made("CompletionResponse", id="cmpl-1", object="text_completion", created=1, model=body["model"], choices=[choice], usage={})

    @torch.inference_mode()
    def draw(self, body):
        """Return tokens, their log-probabilities at temperature 1 (`raw_logprobs`), and the most likely tokens of each position."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model = self.model
        if body["model"] != self.base:
            copy = AutoModelForCausalLM.from_config(self.model.config, dtype=self.model.dtype)
            copy.load_state_dict(self.model.state_dict())
            model = PeftModel.from_pretrained(copy, self.adapters[body["model"]]).eval()
        torch.manual_seed(body["seed"] % 2**32)
        greedy = body["temperature"] == 0
        settings = {"do_sample": False} if greedy else {"do_sample": True, "temperature": body["temperature"], "top_p": body["top_p"]}
        ids = torch.tensor([body["prompt"]])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=body["max_tokens"], top_k=body["top_k"],
            eos_token_id=body["stop_token_ids"], output_logits=True, return_dict_in_generate=True, **settings,
        )  # fmt: skip
        tokens = out.sequences[0, len(body["prompt"]) :].tolist()
        rows = [logits[0].log_softmax(-1) for logits in out.logits]
        top = []
        for token, row in zip(tokens, rows, strict=True):
            best = row.topk(max(body["logprobs"], 1))
            likeliest = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if body["logprobs"] else {}
            top.append({f"token_id:{t}": p for t, p in ({token: float(row[token])} | likeliest).items()})
        return tokens, [float(row[token]) for token, row in zip(tokens, rows, strict=True)], top


def known(kind, body):
    unknown = set(body) - set(TABLE["classes"][kind])
    if unknown:
        raise Refused(400, f"{kind} has no {', '.join(unknown)}")
    return body


def made(kind, **fields):
    """Return a response with the fields of vLLM's own."""
    assert set(fields) <= set(TABLE["classes"][kind]), kind
    return fields
