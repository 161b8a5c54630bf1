"""Writes a model that vLLM serves: two layers of random weights, a tokenizer of 128 words, a chat template, a LoRA adapter.

Run by the Python of the virtual environment that vLLM is in: `make_model.py DIRECTORY` writes `m` and `lora` there. The same
seed each time, so that an answer to a question is the same in every run; what it says means nothing.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 128
WIDTH = 64
LAYERS = 2
RANK = 8
CONTEXT = 32768
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def write_model(place: Path) -> None:
    """Write the model and its tokenizer. Its only end token is one that random weights are told never to prefer."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(place)
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "system": 4, "user": 5, "assistant": 6}
    words |= {f"w{number}": number for number in range(len(words), WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(place)


def write_adapter(place: Path) -> None:
    """Write a LoRA adapter for two projections of each layer, in the format of PEFT, without PEFT."""
    torch.manual_seed(8)
    place.mkdir(parents=True, exist_ok=True)
    targets = ("q_proj", "v_proj")
    weights = {}
    for layer in range(LAYERS):
        for target in targets:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, WIDTH, dtype=torch.bfloat16)
            weights[f"{name}.lora_B.weight"] = torch.randn(WIDTH, RANK, dtype=torch.bfloat16)
    save_file(weights, str(place / "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "m",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": list(targets),
    }
    (place / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    write_model(root / "m")
    write_adapter(root / "lora")
