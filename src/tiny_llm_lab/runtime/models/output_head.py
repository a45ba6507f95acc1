"""Other output heads for a checkpoint: one that gives what a text means, and one that says yes or no."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.runtime.models.config.model_config import read_json
from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.types import Checkpoint, QuantizedWeights, Task, UserError

ANSWERS = ("no", "yes")  # whose logits a model of task "score" gives
_POOLING = "1_Pooling/config.json"
_LOGIT_SCORE = "1_LogitScore/config.json"


def task_of(folder: Path, asked: Task | Literal["auto"]) -> Task:
    """`asked`, or what a checkpoint of sentence-transformers is for, to embed or to score; others generate.

    Raises UserError for an embedding model that does not take the last token, or computes more after it.
    """
    if not (folder / "modules.json").is_file():
        return "generate" if asked == "auto" else asked
    is_reranker = (folder / _LOGIT_SCORE).is_file()
    task: Task = ("score" if is_reranker else "embed") if asked == "auto" else asked
    if task == "embed":
        pooling = read_json(folder / _POOLING)
        if not (pooling.get("pooling_mode_lasttoken") or pooling.get("pooling_mode") == "lasttoken"):
            raise UserError(f"{folder / _POOLING}: not pooling_mode_lasttoken: choose another model")
        modules = [each.name for each in folder.iterdir() if re.match(r"\d+_", each.name)]
        if more := sorted(name for name in modules if not name.endswith(("_Pooling", "_Normalize"))):
            raise UserError(f"{folder}: the module {more[0]} is not supported: choose another model")
    return task


def with_head(checkpoint: Checkpoint, task: Task) -> Checkpoint:
    """The checkpoint with an output head for `task`; of "generate" it is its own.

    For "embed" the head is the identity [E, E], so that a row of "logits" is the hidden state, without
    rounding. For "score" it has the rows of ANSWERS, [2, E]. Raises UserError if the model answers otherwise.
    """
    config, weights = checkpoint.config, checkpoint.weights
    if task == "generate":
        return checkpoint
    if task == "embed":
        head = mx.eye(config.hidden_size, dtype=checkpoint.dtype)
    else:
        whole = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        rows = mx.array(_answer_ids(checkpoint))
        if isinstance(whole, QuantizedWeights):
            head = whole.mapped(lambda part: part[rows]).dequantized().astype(checkpoint.dtype)
        else:
            head = whole[rows]
    mx.eval(head)
    changed = replace(config, tie_word_embeddings=False, task=task)
    return replace(checkpoint, config=changed, weights={**weights, "lm_head.weight": head})


def _answer_ids(checkpoint: Checkpoint) -> list[int]:
    encoded = [checkpoint.tokenizer.encode(RenderedChat(word)) for word in ANSWERS]
    ids = [token for tokens in encoded for token in tokens]
    file = checkpoint.path / _LOGIT_SCORE
    declared = read_json(file) if file.is_file() else {}
    said = [declared.get(f"{name}_token_id", ids[i]) for i, name in enumerate(("false", "true"))]
    if [len(tokens) for tokens in encoded] != [1, 1] or said != ids:
        raise UserError(f'{checkpoint.name}: it does not score with "no" and "yes": choose a Qwen3-Reranker')
    return ids
