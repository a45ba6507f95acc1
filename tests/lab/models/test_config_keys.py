"""Every key of a Qwen `config.json`: computed, refused where it would change the numbers, or harmless."""

import dataclasses
import importlib
import warnings

import pytest
from tests.helpers.checkpoints import edit_json

from tiny_llm_lab.runtime.models.config.config_keys import KEYS_WITHOUT_INFLUENCE, READ_KEYS
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.types import UserError

DENSE, EXPERTS = "random:qwen3-shrunk", "random:qwen3-moe-shrunk"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
PACKED = {"bits": 4, "group_size": 64}
# A value that changes what is computed: another configuration or another packing is read.
COMPUTED = {
    "decoder_sparse_step": 2,
    "head_dim": 64,
    "hidden_size": 128,
    "intermediate_size": 100,
    "max_position_embeddings": 256,
    "mlp_only_layers": [1],
    "moe_intermediate_size": 100,
    "norm_topk_prob": False,
    "num_attention_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "quantization": PACKED,
    "quantization_config": PACKED,
    "rms_norm_eps": 1e-5,
    "rope_parameters": YARN,
    "rope_scaling": YARN,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
    "vocab_size": 321,
    # Dual chunk attention leaves the first chunk as it is, and more is not served.
    "dual_chunk_attention_config": {"chunk_size": 300, "local_size": 44, "sparse_attention_enabled": True},
}
# A value that would change what other engines compute, and that is refused here by name.
REFUSED = {
    "attention_bias": True,
    "hidden_act": "gelu",
    "is_causal": False,
    "is_encoder_decoder": True,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "model_type": "llama",
    "num_local_experts": 4,
    "partial_rotary_factor": 0.5,
    "quantize_activations": True,
    "rope_traditional": True,
    "use_mrope": True,
}
# Read only beside another key, which the value comes with.
BESIDE = {
    "sliding_window": ({"use_sliding_window": True}, 128),
    "use_sliding_window": ({"sliding_window": 128}, True),
    "max_window_layers": ({"use_sliding_window": True, "sliding_window": 128, "model_type": "qwen3"}, 0),
    "original_max_position_embeddings": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 256),
}
# Read elsewhere: by the tokenizer.
OF_THE_TOKENIZER = {"eos_token_id": 5}


def reading(folder, **changes):
    """What is read after `changes`, or the complaint about them."""
    path = folder / "config.json"
    before = path.read_text()
    edit_json(path, **changes)
    try:
        return read_config(path)
    except UserError as error:
        return str(error)
    finally:
        path.write_text(before)


@pytest.fixture
def folder(copy):
    return copy(EXPERTS)


def test_every_known_key_has_its_effect_here():
    assert {*COMPUTED, *REFUSED, *BESIDE, *OF_THE_TOKENIZER} == READ_KEYS


@pytest.mark.parametrize("key", COMPUTED)
def test_a_key_that_is_computed(folder, key):
    plain, changed = reading(folder), reading(folder, **{key: COMPUTED[key]})
    assert not isinstance(changed, str) and changed != plain


def test_dual_chunk_attention_is_served_as_far_as_its_first_chunk(folder):
    read = reading(folder, dual_chunk_attention_config={"chunk_size": 300, "local_size": 44})
    assert read == reading(folder, max_position_embeddings=256)
    wide = reading(folder, dual_chunk_attention_config={"chunk_size": 900, "local_size": 44})
    assert wide == reading(folder)


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_is_refused_where_it_differs(folder, key):
    said = reading(folder, **{key: REFUSED[key]})
    name = {"layer_types": "sliding-window", "num_local_experts": "num_experts"}.get(key, key)
    assert isinstance(said, str) and name in said


@pytest.mark.parametrize("key", BESIDE)
def test_a_key_that_counts_beside_another(folder, key):
    others, value = BESIDE[key]
    without, beside = reading(folder, **{key: ...}, **others), reading(folder, **{key: value}, **others)
    assert without != beside and isinstance(without, str) != isinstance(beside, str)


@pytest.mark.parametrize("key", sorted(KEYS_WITHOUT_INFLUENCE))
def test_a_key_that_changes_nothing(folder, capsys, key):
    assert reading(folder, **{key: "whatever it says"}) == reading(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", sorted({*COMPUTED, *REFUSED, *KEYS_WITHOUT_INFLUENCE} - {"model_type"}))
def test_null_is_as_good_as_missing(folder, key):
    without = reading(folder, **{key: ...})
    assert reading(folder, **{key: None}) == without


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_moe"])
def test_every_key_that_transformers_writes_is_known(model_type):
    """Its configurations with all defaults; a new key of theirs fails here until its effect is decided."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        keys = AutoConfig.for_model(model_type).to_dict().keys()
    assert len(keys) > 20 and keys <= READ_KEYS | KEYS_WITHOUT_INFLUENCE


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_moe"])
def test_every_key_that_mlx_lm_reads_is_known(model_type):
    args = importlib.import_module(f"mlx_lm.models.{model_type}").ModelArgs
    keys = {field.name for field in dataclasses.fields(args)}
    assert len(keys) > 10 and keys <= READ_KEYS | KEYS_WITHOUT_INFLUENCE


def test_an_unknown_key_is_named_once(folder, capsys):
    new = {"logit_scale": 0.5, "embedding_multiplier": 12}
    assert reading(folder, **new) == reading(folder)
    assert capsys.readouterr().err == (
        f"{folder}/config.json: we ignore unknown keys: embedding_multiplier, logit_scale; "
        "if one of them changes the model, its answers are wrong\n"
    )


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_an_unknown_key_that_is_off_is_not_named(folder, capsys, value):
    assert reading(folder, use_something_new=value) == reading(folder)
    assert capsys.readouterr().err == ""
