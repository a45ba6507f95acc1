"""Record what transformers (PyTorch, CPU, float32) computes from checkpoints, for the tests to compare with.

    PYTHONPATH=src:. python tests/golden/make_transformers_golden.py default random:qwen3-shrunk ...

Without names it records SHRUNK. It needs PyTorch (CONTRIBUTING.md), which continuous integration has
not: that reads the files alone. Run this again when a checkpoint's weights or its tokenizer change.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from tests.helpers.checkpoints import SHRUNK

PROMPT = "Once upon a time there was a small red fox who lived by the sea. One day"
NUM_LOGITS = 8  # of the last positions of the prompt, which see all before them
NUM_GREEDY = 64
# Between the best token and the second: an answer that rounding could change proves nothing.
SMALLEST_LEAD = 1e-3


def golden_path(name):
    return Path(__file__).parent / f"transformers-{name.removeprefix('random:')}.npz"


def answered(logits_after, num_tokens=NUM_GREEDY):
    """The greedy answer, and how far each token is ahead of the second; `logits_after(answer)` is [V]."""
    import torch

    greedy, leads = [], []
    while len(greedy) < num_tokens:
        best = torch.topk(logits_after(greedy), 2)
        leads.append(float(best.values[0] - best.values[1]))
        greedy.append(int(best.indices[0]))
    return greedy, leads


def keep(path, greedy, leads, every_logit, **arrays):
    """Write a file and say what is in it; end if a token is nearly a tie."""
    np.savez_compressed(path, greedy=np.array(greedy, np.int32), **arrays)
    print(
        f"{path.name}: {path.stat().st_size} bytes, logits to {np.abs(every_logit).max():.1f}, "
        f"{len(set(greedy))} different tokens, smallest lead {min(leads):.2g}"
    )
    if min(leads) < SMALLEST_LEAD:
        sys.exit(f"{path.name}: token {np.argmin(leads)} is nearly a tie: choose another seed or prompt")


def record(name):
    import torch
    from transformers import AutoModelForCausalLM

    from tiny_llm_lab.runtime.models.registry import find_folder
    from tiny_llm_lab.runtime.models.text.tokenizer import load_tokenizer

    folder = find_folder(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = load_tokenizer(folder).encode(PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, -NUM_LOGITS:].numpy()
        greedy, leads = answered(lambda answer: model(torch.tensor([tokens + answer])).logits[0, -1])
    keep(golden_path(name), greedy, leads, logits, prompt=np.array(tokens, np.int32), logits=logits)


if __name__ == "__main__":
    # Made afresh: a cache may hold weights of an older recipe.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TINY_LLM_CACHE"] = cache
        for name in sys.argv[1:] or SHRUNK:
            record(name)
