"""Random checkpoints in the layout of Qwen3-Embedding and of Qwen3-Reranker."""

import json
from pathlib import Path

from tests.helpers.checkpoints import copy_of, edit_json, save_tensors, tensors_of

END = 256  # <|endoftext|>, which the tokenizer of an embedding model puts after a text
NO, YES = 259, 261
LASTTOKEN = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True, "include_prompt": True}


def embedding_folder(name: str, folder: Path) -> Path:
    """A copy of checkpoint `name` for sentence-transformers: no "model." in its names, and no head."""
    copy_of(name, folder)
    tensors = tensors_of(folder).items()
    save_tensors(
        folder, {n.removeprefix("model."): each for n, each in tensors if not n.startswith("lm_head.")}
    )
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    edit_json(
        folder / "config_sentence_transformers.json", prompts={"document": ""}, similarity_fn_name="cosine"
    )
    (folder / "1_Pooling").mkdir()
    edit_json(folder / "1_Pooling" / "config.json", **LASTTOKEN)
    added = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    ends = {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}
    post_processor = {
        "type": "TemplateProcessing",
        "single": [text, added],
        "pair": [text, added],
        "special_tokens": {"<|endoftext|>": ends},
    }
    edit_json(folder / "tokenizer.json", post_processor=post_processor)
    return folder


def reranker_folder(name: str, folder: Path) -> Path:
    """A copy of checkpoint `name` in which "no" and "yes" are tokens."""
    copy_of(name, folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    names = {token: name for name, token in content["model"]["vocab"].items()} | {
        NO: "no",
        NO + 1: "ye",
        YES: "yes",
    }
    content["model"]["vocab"] = {name: token for token, name in names.items()}
    content["model"]["merges"] = [["n", "o"], ["y", "e"], ["ye", "s"]]
    path.write_text(json.dumps(content))
    return folder
