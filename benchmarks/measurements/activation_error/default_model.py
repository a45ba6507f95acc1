"""The shipped model in 4 bits, on text that its training did not see."""

import json
import random
import shutil
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np
from recipes.default_model.stories import make_story

from benchmarks.measurements.activation_error.figures import Array, log_softmax
from benchmarks.measurements.activation_error.sides import Side, built
from benchmarks.measurements.recall import ANSWER_TOKENS, judge
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.corpus.recall import recall_questions
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.types import SamplingParams

_GROUP, _BITS = 64, 4
_STORIES, _LENGTH = 200, 64
_BATCH: Final = 5


def packed_default(folder: Path) -> None:
    """Write the default model into the new `folder`, all matrices in 4 bits in groups of 64."""
    checkpoint = load_checkpoint("default", dtype="float32")
    shutil.copytree(checkpoint.path, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    packing = {"quantization": {"group_size": _GROUP, "bits": _BITS}}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | packing), encoding="utf-8")
    tensors = dict[str, mx.array]()
    for name, w in checkpoint.weights.items():
        assert isinstance(w, mx.array)
        if w.ndim == 1:
            tensors[name] = w
            continue
        module = name.removesuffix(".weight")
        parts = mx.quantize(w.astype(mx.bfloat16), _GROUP, _BITS)
        tensors |= dict(zip((name, f"{module}.scales", f"{module}.biases"), parts, strict=True))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})


def story_tokens(folder: Path) -> Array:
    """The first 64 tokens of 200 new stories."""
    rng, encode = random.Random("activation error"), load_checkpoint(folder).tokenizer.encode
    stories = (encode(make_story(rng).text)[:_LENGTH] for _ in range(10 * _STORIES))
    return np.array([story for story in stories if len(story) == _LENGTH][:_STORIES], np.int32)


def perplexity(logits: Array, tokens: Array) -> float:
    """Of tokens [B, L], each after those before it in its row; logits are [B * L, V]."""
    rows = logits.reshape(*tokens.shape, -1)[:, :-1]
    found = [
        log_softmax(row)[np.arange(len(row)), after] for row, after in zip(rows, tokens[:, 1:], strict=True)
    ]
    return float(np.exp(-np.mean(found)))


def recall(side: Side, folder: Path, context: int, count: int) -> float:
    """How many of `count` answers about notes of `context` tokens are right."""
    checkpoint = load_checkpoint(folder, dtype=side.dtype)
    tokenizer = checkpoint.tokenizer
    questions = recall_questions(1, count, context, tokenizer.encode)
    answers = load_solution("ref").batch_generate(
        built(side, checkpoint),
        tokenizer,
        [as_chat(tokenizer, question.user) for question in questions],
        max_seq_len=context + ANSWER_TOKENS,
        batch_size=_BATCH,
        sampling=SamplingParams(max_tokens=ANSWER_TOKENS),
    )
    return float(judge(questions, answers)["num_right"])
