"""The policies of data/policy_* in transformers and PEFT: an independent reference for what the browser computes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).resolve().parents[2] / "data"
ITEMS = {"2048": DATA / "policy_2048", "tic_tac_toe": DATA / "policy_tic_tac_toe"}


class Reference:
    """A policy after each of its kept steps. Weights are those of the page: base model in float16, adapters in int8 by row."""

    def __init__(self, game: str) -> None:
        item = ITEMS[game]
        self.facts = json.loads((item / "training.json").read_text("utf-8"))
        self.base = DATA / self.facts["base"]
        self.tokenizer = AutoTokenizer.from_pretrained(self.base)
        files = {int(path.stem): load_file(path) for path in sorted(item.glob("[0-9]*.safetensors"))}
        self.adapters = {
            step: {name: t.float() * tensors[f"{name}_scale"].float() for name, t in tensors.items() if not name.endswith("_scale")}
            for step, tensors in files.items()
        }
        self.steps = [0, *self.adapters]
        self._models: dict[int, torch.nn.Module] = {}

    def model(self, step: int) -> torch.nn.Module:
        if step not in self._models:
            model = AutoModelForCausalLM.from_pretrained(self.base).eval()
            for weight in model.parameters():
                weight.data = weight.data.half().float()
            if step:
                tensors = self.adapters[step]
                rank = next(tensor.shape[0] for name, tensor in tensors.items() if "lora_A" in name)
                targets = sorted({name.split(".")[-3] for name in tensors})
                model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank * self.facts["scale"], target_modules=targets))
                found = set_peft_model_state_dict(model, {name: tensor.float() for name, tensor in tensors.items()})
                assert not found.unexpected_keys and not [name for name in found.missing_keys if "lora" in name]
            self._models[step] = model.eval()
        return self._models[step]

    def prompt(self, board: str) -> list[int]:
        """Return the ids of the board as one user message."""
        message = [{"role": "user", "content": board}]
        return self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]

    @torch.inference_mode()
    def logits(self, step: int, boards: list[str]) -> torch.Tensor:
        """Return (boards, V): the logits of the first token of the answer."""
        prompts = [self.prompt(board) for board in boards]
        longest = max(map(len, prompts))
        ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
        mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])
        logits = self.model(step)(input_ids=ids, attention_mask=mask).logits
        return logits[torch.arange(len(boards)), torch.tensor(list(map(len, prompts))) - 1]

    def answers(self, step: int, boards: list[str]) -> list[str]:
        """Return the greedy answers, as text."""
        return [self.tokenizer.decode(i) for i in self.logits(step, boards).argmax(-1).tolist()]


def checkpoints(reference: Reference, folder: Path, steps: list[int]) -> dict[int, Path]:
    """Write checkpoints as a backend does: float32 weights and adapter_config.json."""
    found = {}
    for step in steps:
        found[step] = folder / f"{step:04d}"
        found[step].mkdir(parents=True)
        tensors = {name: tensor.float() for name, tensor in reference.adapters[step].items()}
        rank = next(tensor.shape[0] for name, tensor in tensors.items() if "lora_A" in name)
        save_file(tensors, found[step] / "adapter_model.safetensors")
        settings = {"r": rank, "lora_alpha": rank * reference.facts["scale"]}
        (found[step] / "adapter_config.json").write_text(json.dumps(settings))
    return found
