"""Record what transformers (PyTorch, CPU, float32) computes from checkpoints that read pictures.

    PYTHONPATH=src:. python tests/golden/make_picture_golden.py

It needs PyTorch (CONTRIBUTING.md). Run it again when a checkpoint's weights change.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from tests.golden.make_transformers_golden import NUM_GREEDY, NUM_LOGITS, SMALLEST_LEAD
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
    greedy, leads, logits = [], [], []
    with torch.no_grad():
        while len(greedy) <= NUM_GREEDY:
            ids = torch.tensor([tokens + greedy])
            kinds = (ids == model.config.image_token_id).int()
            out = model(
                input_ids=ids,
                pixel_values=torch.tensor(frames),
                image_grid_thw=grid,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=kinds,
            ).logits[0]
            logits.append(out[-NUM_LOGITS:].numpy())
            best = torch.topk(out[-1], 2)
            leads.append(float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
    path = Path(__file__).parent / f"pictures-{name.removeprefix('random:')}.npz"
    np.savez_compressed(path, logits=logits[0], greedy=np.array(greedy[:NUM_GREEDY], np.int32))
    print(f"{path.name}: {len(set(greedy))} different tokens, smallest lead {min(leads):.2g}")
    if min(leads) < SMALLEST_LEAD:
        sys.exit(f"{name}: token {np.argmin(leads)} is nearly a tie: choose another seed")


if __name__ == "__main__":
    os.environ["TINY_LLM_CACHE"] = tempfile.mkdtemp()
    for each in sys.argv[1:] or GOLDEN_NAMES:
        record(each)
