"""A tokenizer is what its files say, whatever model type and class the configuration names."""

import json

import pytest
from tests.helpers.checkpoints import complaint, copy_of, edit_json
from tokenizers import Tokenizer, decoders, models, normalizers

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import load_tokenizer

UNDERLINE = "\u2581"
TEXT = "ab a é"


def sentence_piece():
    """A tokenizer as Llama's: U+2581 for a space, one in front of every text, bytes for the rest."""
    vocabulary = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        UNDERLINE,
        "a",
        "b",
        f"{UNDERLINE}a",
        "ab",
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(vocabulary)},
            [(UNDERLINE, "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(UNDERLINE), normalizers.Replace(" ", UNDERLINE)]
    )
    steps = [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


@pytest.mark.parametrize("name", ["random:qwen2.5-shrunk", "random:qwen3-shrunk"])
@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast", ...])
def test_a_qwen_with_the_tokenizer_of_another_family(copy, name, kind):
    folder, written = copy(name), sentence_piece()
    written.save(str(folder / "tokenizer.json"))
    edit_json(folder / "tokenizer_config.json", tokenizer_class=kind, eos_token=..., pad_token=...)
    tokenizer = load_checkpoint(folder).tokenizer
    assert tokenizer.encode(TEXT) == written.encode(TEXT).ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_vocabulary_and_merges_are_as_good_as_tokenizer_json(tmp_path):
    content = json.loads((find_folder("default") / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    text = "Mira keeps the brass compass in the attic."
    whole = load_checkpoint("default").tokenizer
    assert load_tokenizer(tmp_path).encode(text) == whole.encode(text)


def test_a_tokenizer_model_alone_is_not_enough(tmp_path):
    folder = copy_of("random:qwen3-shrunk", tmp_path / "checkpoint")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    assert complaint(folder) == f"{folder}: it has no tokenizer.json: fetch the whole checkpoint again"
