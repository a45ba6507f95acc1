"""Writes the shipped folder: `python -m recipes.default_model.export --run DIR --to FOLDER`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tiny_llm_lab.measure.corpus.recall import TURN_END

from .chat_markup import END_OF_TEXT
from .hybrid import HYBRID_SHAPE, Hybrid, hybrid_config, stored_weights
from .model import DEFAULT_SHAPE, Qwen3
from .tokenizer import save_tokenizer

LARGEST_FOLDER: Final = 12_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a checkpoint in the layout of Hugging Face.")
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of the training")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.run / "tokenizer.json"))
    save_tokenizer(tokenizer, arguments.to)
    model = load_trained(arguments.run)
    save_configs(tokenizer, arguments.to, isinstance(model, Hybrid))
    save_weights(model, arguments.to)
    size = sum(file.stat().st_size for file in arguments.to.iterdir())
    if size > LARGEST_FOLDER:
        raise SystemExit(f"{arguments.to} takes {size} bytes; the repository allows {LARGEST_FOLDER}")


def load_trained(run: Path) -> Qwen3:
    """The model of a training folder, ready to be used."""
    weights = torch.load(run / "checkpoint.pt")["model"]
    is_hybrid = any("in_proj_qkv" in name for name in weights)
    model = Hybrid(HYBRID_SHAPE) if is_hybrid else Qwen3(DEFAULT_SHAPE)
    model.load_state_dict(weights)
    return model.eval()


def save_configs(tokenizer: Tokenizer, folder: Path, is_hybrid: bool) -> None:
    """config.json and generation_config.json."""
    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)
    config: dict[str, Any] = {
        **(hybrid_config() if is_hybrid else _dense_config()),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": pad,
        "eos_token_id": end,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    generation = {"bos_token_id": pad, "pad_token_id": pad, "eos_token_id": [end, pad], "do_sample": False}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _dense_config() -> dict[str, Any]:
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **asdict(DEFAULT_SHAPE)}


def save_weights(model: Qwen3, folder: Path) -> None:
    """model.safetensors in float32; the head is the embedding and is not stored twice."""
    weights = stored_weights(model) if isinstance(model, Hybrid) else model.state_dict()
    weights = {name: tensor.detach().float().contiguous() for name, tensor in weights.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
