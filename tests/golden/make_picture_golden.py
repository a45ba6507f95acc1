"""Record what transformers (PyTorch, CPU, float32) computes from checkpoints that read pictures.

    PYTHONPATH=src:. python tests/golden/make_picture_golden.py

It needs PyTorch (CONTRIBUTING.md). Run it again when a checkpoint's weights change.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from tests.golden.make_transformers_golden import NUM_LOGITS, answered, keep
from tests.helpers.pictures import GOLDEN_NAMES, golden_prompt


def record(name):
    import torch
    from transformers import AutoModelForImageTextToText

    from tiny_llm_lab.runtime.models.registry import find_folder

    tokens, pictures = golden_prompt(name)
    folder = find_folder(name)
    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    pixels = np.concatenate([each.patches for each in pictures]).astype(np.float32) / 127.5 - 1
    frames = np.repeat(pixels[:, :, None], 2, axis=2).reshape(len(pixels), -1)
    grid = torch.tensor([[1, each.rows, each.columns] for each in pictures])
    logits = []

    def after(answer):
        ids = torch.tensor([tokens + answer])
        given = {"pixel_values": torch.tensor(frames), "image_grid_thw": grid}
        given |= {"attention_mask": torch.ones_like(ids)}
        given |= {"mm_token_type_ids": (ids == model.config.image_token_id).int()}
        out = model(input_ids=ids, **given).logits[0]
        logits.append(out[-NUM_LOGITS:].numpy())
        return out[-1]

    with torch.no_grad():
        greedy, leads = answered(after)
    path = Path(__file__).parent / f"pictures-{name.removeprefix('random:')}.npz"
    keep(path, greedy, leads, logits[0], logits=logits[0])


if __name__ == "__main__":
    os.environ["TINY_LLM_CACHE"] = tempfile.mkdtemp()
    for each in sys.argv[1:] or GOLDEN_NAMES:
        record(each)
