"""Record what transformers (PyTorch, CPU, float32) computes from hybrids, for the tests to compare with.

    PYTHONPATH=src python tests/golden/make_hybrid_golden.py random:qwen3.5-shrunk ...

As make_transformers_golden.py; without names it records HYBRIDS. Of every position of a long prompt it keeps
the logits of some tokens, and all logits behind prompts of LENGTHS, each computed by itself.
"""

import os
import sys
import tempfile

import numpy as np

# Tied and untied, dense and with experts, as many value heads as key heads and twice as many; Dk is not Dv.
HYBRIDS = [
    "random:qwen3.5-shrunk",
    "random:qwen3.5-shrunk,tied=0,key_heads=4",
    "random:qwen3.5-moe-shrunk",
    "random:qwen3-next-shrunk",
    "random:qwen3-next-shrunk,tied=1,key_heads=4",
]
# One token, the width of the convolution, and either side of a chunk of 64, in which transformers computes.
LENGTHS = [1, 2, 3, 17, 64, 65, 300]
EVERY = 16  # of the tokens
GREEDY_FROM = 17  # tokens of the prompt that is answered


def record(name):
    import torch
    from make_transformers_golden import answered, golden_path, keep
    from transformers import AutoModelForCausalLM

    from tiny_llm_lab.runtime.models.registry import find_folder

    folder = find_folder(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = np.random.default_rng(0).integers(0, 320, LENGTHS[-1]).tolist()
    with torch.no_grad():
        every = model(torch.tensor([tokens])).logits[0, :, ::EVERY].numpy()
        last = [model(torch.tensor([tokens[:length]])).logits[0, -1].numpy() for length in LENGTHS]
        asked = tokens[:GREEDY_FROM]
        greedy, leads = answered(lambda answer: model(torch.tensor([asked + answer])).logits[0, -1])
    arrays = {"prompt": np.array(tokens, np.int32), "every": every, "last": np.stack(last)}
    keep(golden_path(name), greedy, leads, every, **arrays)


if __name__ == "__main__":
    # Made afresh: a cache may hold weights of an older recipe.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TINY_LLM_CACHE"] = cache
        for name in sys.argv[1:] or HYBRIDS:
            record(name)
