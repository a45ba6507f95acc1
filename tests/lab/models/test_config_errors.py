"""What is said about a `config.json` that we cannot run: the file, the key and its value, the cure."""

import pytest
from tests.helpers.checkpoints import complaint, overwritten, without
from tests.helpers.golden import rows_of

from tiny_llm_lab import load_checkpoint

QWEN3, AGAIN = "random:qwen3-shrunk", "fetch the file again"
# Of each: a model, what is set in its config.json and which keys it is without, and what is said of that.
# transformers slides by 4,096 tokens when the window is missing, and in all layers of an MoE.
REFUSED = rows_of("refused_configs")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case['model']}: {case['says']}")
def test_a_configuration_we_cannot_run(copy, case):
    folder = copy(f"random:{case['model']}", **case["set"], **dict.fromkeys(case.get("without", ()), ...))
    assert complaint(folder) == f"{folder}/config.json: {case['says']}"


NO_CONFIGS = [
    (without("config.json"), "missing: name a folder with a complete checkpoint"),
    (overwritten("config.json", b"[]"), f"not a JSON object: {AGAIN}"),
]


@pytest.mark.parametrize(("damage", "expected"), NO_CONFIGS)
def test_a_file_that_is_no_configuration(copy, damage, expected):
    folder = copy(QWEN3)
    damage(folder)
    assert complaint(folder) == f"{folder}/config.json: {expected}"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b'{"a": 1', b"[" * 100_000])
def test_a_file_that_is_no_json(copy, content):
    folder = copy(QWEN3)
    (folder / "config.json").write_bytes(content)
    message = complaint(folder)
    assert message.startswith(f"{folder}/config.json: cannot read it (")
    assert message.endswith(f"): {AGAIN}")


HARMLESS = [
    {"is_causal": True},
    {"is_causal": None},
    {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3},
    {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["full_attention"] * 3},
    {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["sliding_attention"] * 3},
]


@pytest.mark.parametrize("changes", HARMLESS)
def test_what_changes_nothing_is_no_complaint(copy, changes):
    """No window, no layer that has it, or one as wide as the longest text."""
    folder = copy(QWEN3, **changes)
    assert load_checkpoint(folder).config.max_position_embeddings == 512
