"""A checkpoint of random weights for the converters of other engines, by their transformers."""

import shutil
from pathlib import Path
from typing import Any


def write(folder: str, shape: dict[str, Any], tokenizer: str) -> str:
    """Write a model of `shape` in bfloat16 next to `folder`, with the tokenizer of that folder; its path."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    plain = f"{folder}-plain"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    model.save_pretrained(plain)
    for path in Path(tokenizer).glob("tokenizer*.json"):
        shutil.copy(path, plain)
    return plain
