"""Tiny randomly initialised checkpoints of several families, made by the tests that need them; no download."""

from pathlib import Path

import torch

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FAMILIES = ("qwen2", "qwen3", "llama", "deepseek_v3")
LINEAR_ONLY_HERE = {"deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]}


def make_tokenizer():
    """Return a byte-level tokenizer without merges, with ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate(special + letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", model_max_length=512
    )
    fast.chat_template = CHATML
    return fast


def make_checkpoint(folder: Path, family: str = "qwen3", *, tied: bool = True, seed: int = 0, **config) -> Path:
    """Write model and tokenizer to `folder` as a Hugging Face checkpoint; return the folder. config: further fields."""
    from transformers.utils import logging

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    model = make_model(family, len(tokenizer), tied, **config)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)
    return folder


def make_model(family: str, vocabulary: int, tied: bool = True, **config):
    """Return a model of two layers and 32 channels, with weights large enough that its answers are not uniform."""
    import transformers as t

    shared = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "pad_token_id": 0,
        "eos_token_id": 2,
        **config,
    }
    if family == "deepseek_v3":
        config = t.DeepseekV3Config(
            **shared | {"num_key_value_heads": 4, "tie_word_embeddings": False},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            n_shared_experts=1,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
        )
        model = t.DeepseekV3ForCausalLM(config)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.5)
        return model
    configs = {"qwen2": t.Qwen2Config, "qwen3": t.Qwen3Config, "llama": t.LlamaConfig}
    models = {"qwen2": t.Qwen2ForCausalLM, "qwen3": t.Qwen3ForCausalLM, "llama": t.LlamaForCausalLM}
    own = {"head_dim": 8} if family == "qwen3" else {}
    return models[family](configs[family](**shared, num_key_value_heads=2, **own))


def with_moved_adapter(policy):
    """Change the policy's adapter at random, as training does; return the policy."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    return policy
