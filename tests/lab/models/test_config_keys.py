"""Every key of a `config.json`: computed, refused where it would change the numbers, or harmless."""

import dataclasses
import importlib
import json
import warnings

import pytest
from tests.helpers.checkpoints import complaint, edit_json

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.config import config_keys
from tiny_llm_lab.runtime.models.config.model_config import HYBRID_TYPES, read_config
from tiny_llm_lab.types import UserError

DENSE, EXPERTS, NEXT = "random:qwen3-shrunk", "random:qwen3-moe-shrunk", "random:qwen3-next-shrunk"
KNOWN = config_keys.READ_KEYS | config_keys.KEYS_WITHOUT_INFLUENCE
KNOWN_OF_HYBRIDS = KNOWN | config_keys.HYBRID_KEYS | config_keys.HYBRID_KEYS_WITHOUT_INFLUENCE
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
COMPUTED_OF_QWEN2_MOE = {"qkv_bias": False, "shared_expert_intermediate_size": 64}
# A value that would change what other engines compute, and that is refused here by name.
REFUSED = {
    "attention_bias": True,
    "hidden_act": "gelu",
    "is_causal": False,
    "is_encoder_decoder": True,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_bias": True,
    "model_type": "gemma3",
    "num_local_experts": 4,
    "partial_rotary_factor": 0.5,
    "pretraining_tp": 2,
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


ROPE = {"rope_type": "default", "rope_theta": 10000000.0}
COMPUTED_OF_HYBRIDS = {
    "full_attention_interval": 5,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 8,
    "text_config": {"rms_norm_eps": 1e-5},
}
# A value that is refused, and what the line says.
REFUSED_OF_HYBRIDS = {
    "attn_output_gate": (False, "attn_output_gate False is not supported"),
    "output_gate_type": ("sigmoid", "output_gate_type 'sigmoid' is not supported"),
    "mamba_ssm_dtype": ("bfloat16", "mamba_ssm_dtype 'bfloat16' is not supported"),
    "mtp_use_dedicated_embeddings": (True, "mtp_use_dedicated_embeddings True is not supported"),
}
# Nothing reads the draft layer yet.
UNUSED = {"mtp_num_hidden_layers": 1}


def reading(folder, **changes):
    """What is read after `changes`, or the complaint about them."""
    path = folder / "config.json"
    before = path.read_text()
    edit_json(path, **changes)
    try:
        return read_config(path)
    except UserError as error:
        return str(error).removeprefix(f"{path}: ")
    finally:
        path.write_text(before)


@pytest.fixture
def folder(copy):
    return copy(EXPERTS)


@pytest.fixture
def hybrid(copy):
    return copy(NEXT)


def test_every_known_key_has_its_effect_here():
    assert {*COMPUTED, *COMPUTED_OF_QWEN2_MOE, *REFUSED, *BESIDE, *OF_THE_TOKENIZER} == config_keys.READ_KEYS
    assert {*COMPUTED_OF_HYBRIDS, *REFUSED_OF_HYBRIDS, *UNUSED} == config_keys.HYBRID_KEYS


COMPUTED_IN = [(EXPERTS, *row) for row in COMPUTED.items()]
COMPUTED_IN += [("random:qwen2-moe-shrunk", *row) for row in COMPUTED_OF_QWEN2_MOE.items()]
COMPUTED_IN += [(NEXT, *row) for row in COMPUTED_OF_HYBRIDS.items()]


@pytest.mark.parametrize(("name", "key", "value"), COMPUTED_IN)
def test_a_key_that_is_computed(copy, name, key, value):
    folder = copy(name)
    plain, changed = reading(folder), reading(folder, **{key: value})
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


OF_EXPERTS = sorted(config_keys.KEYS_WITHOUT_INFLUENCE)
OF_NO_INFLUENCE = [(EXPERTS, key) for key in OF_EXPERTS]
OF_NO_INFLUENCE += [(NEXT, key) for key in sorted({*config_keys.HYBRID_KEYS_WITHOUT_INFLUENCE, *UNUSED})]


@pytest.mark.parametrize(("name", "key"), OF_NO_INFLUENCE)
def test_a_key_that_changes_nothing(copy, capsys, name, key):
    folder = copy(name)
    assert reading(folder, **{key: 1}) == reading(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", REFUSED_OF_HYBRIDS)
def test_a_key_of_hybrids_that_is_refused_where_it_differs(hybrid, key):
    value, said = REFUSED_OF_HYBRIDS[key]
    assert reading(hybrid, **{key: value}) == f"{said}: choose another checkpoint"
    assert reading(hybrid, **{key: None}) == reading(hybrid)


@pytest.mark.parametrize(
    "key", sorted({*COMPUTED, *REFUSED, *config_keys.KEYS_WITHOUT_INFLUENCE} - {"model_type"})
)
def test_null_is_as_good_as_missing(folder, key):
    without = reading(folder, **{key: ...})
    assert reading(folder, **{key: None}) == without


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"])
def test_every_key_that_transformers_writes_is_known(model_type):
    """Its configurations with all defaults; a new key of theirs fails here until its effect is decided."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        keys = AutoConfig.for_model(model_type).to_dict().keys()
    assert len(keys) > 20 and keys <= KNOWN


MLX_LM = [
    *((f"{name}.ModelArgs", KNOWN) for name in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")),
    *((name, KNOWN_OF_HYBRIDS) for name in ("qwen3_5.TextModelArgs", "qwen3_next.ModelArgs")),
]


@pytest.mark.parametrize(("module", "known"), MLX_LM)
def test_every_key_that_mlx_lm_reads_is_known(module, known):
    file, _, name = module.partition(".")
    args = getattr(importlib.import_module(f"mlx_lm.models.{file}"), name)
    keys = {field.name for field in dataclasses.fields(args)}
    assert len(keys) > 10 and keys <= known


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


# Hybrids


def config_of(folder, **changes):
    """The configuration alone, without its packing, or the complaint."""
    read = reading(folder, **changes)
    return read if isinstance(read, str) else read[0]


def test_layers_are_listed_or_counted(hybrid):
    listed = ["linear_attention", "full_attention"] * 2 + ["linear_attention"]
    plain = config_of(hybrid)
    assert plain.hybrid.mixers == tuple(listed) and plain.num_kv_layers == 2
    assert config_of(hybrid, layer_types=listed) == plain
    assert config_of(hybrid, layer_types=listed, full_attention_interval=...) == plain
    others = ["full_attention", *listed[1:]]
    assert config_of(hybrid, layer_types=others, full_attention_interval=...).hybrid.mixers == tuple(others)
    assert config_of(hybrid, full_attention_interval=...).hybrid.mixers.count("full_attention") == 1


def test_where_the_rotary_factor_is_stated(hybrid):
    plain = config_of(hybrid)
    assert plain.hybrid.rotary_dims == 8
    assert config_of(hybrid, rope_parameters=ROPE, partial_rotary_factor=...) == plain
    pictures = {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
    assert config_of(hybrid, rope_parameters=ROPE | pictures) == plain
    half = config_of(hybrid, rope_parameters=ROPE | {"partial_rotary_factor": 0.5}, partial_rotary_factor=...)
    assert half.hybrid.rotary_dims == 16
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    stretched = config_of(hybrid, rope_parameters=ROPE | yarn | pictures)
    assert stretched.max_position_embeddings == 2048 and stretched.rope_scaling.kind == "yarn"


@pytest.mark.parametrize("key", ["text_config", "linear_num_key_heads"])
def test_the_keys_of_hybrids_are_not_known_elsewhere(copy, capsys, key):
    value = {"hidden_size": 3} if key == "text_config" else 7
    folder = copy("random:qwen3-shrunk")
    assert config_of(folder, **{key: value}) == config_of(folder)
    assert f"we ignore unknown keys: {key};" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["random:qwen3.5-shrunk", "random:qwen3.5-moe-shrunk"])
def test_the_text_of_a_model_that_sees_is_read_alike(copy, name):
    """With and without `text_config`, with the type of the whole or of its text."""
    folder = copy(name)
    flat = json.loads((folder / "config.json").read_text())
    want = config_of(folder)
    family = flat["model_type"].removesuffix("_text")
    assert want.model_type == family and flat["model_type"] == f"{family}_text"
    assert config_of(folder, model_type=family) == want
    outer = {"model_type": family, "vision_config": {"depth": 27, "hidden_size": 5}, "text_config": flat}
    keys = {key: ... for key in flat if key != "model_type"}
    assert config_of(folder, **keys, **outer) == want
    # transformers states the tie beside the text as well, where its own default stands.
    other_tie = not flat["tie_word_embeddings"]
    assert config_of(folder, **{**keys, **outer, "tie_word_embeddings": other_tie}) == want


HYBRIDS = ["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"]


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_what_transformers_writes_of_a_hybrid_is_read_without_a_word(tmp_path, capsys, model_type):
    """Its configurations with all defaults, which are those of real models, are read without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig

        content = AutoConfig.for_model(model_type).to_dict()
    capsys.readouterr()
    assert content.keys() | content.get("text_config", {}).keys() <= KNOWN_OF_HYBRIDS
    (tmp_path / "config.json").write_text(json.dumps(content))
    config, _ = read_config(tmp_path / "config.json")
    assert config.hybrid is not None and config.hybrid.rotary_dims == 64
    assert config.num_kv_layers == config.num_hidden_layers / 4
    assert capsys.readouterr().err == ""


def test_types_have_shapes_of_their_own():
    assert {load_checkpoint(f"random:{name}").config.model_type for name in (
        "qwen3.5-shrunk", "qwen3.5-moe-shrunk", "qwen3-next-shrunk"
    )} == set(HYBRID_TYPES)  # fmt: skip
    for change, said in (
        ("key_heads=3", "key_heads must divide value_heads"),
        ("rotary=7", "rotary must be even, and at most head_dim"),
        ("interval=0", "interval, rotary, key_heads, value_heads, key_dim and value_dim are for hybrids"),
    ):
        assert complaint(f"{NEXT},{change}") == f"{NEXT},{change}: {said}"
    dense = "random:qwen3-shrunk,key_heads=2"
    assert complaint(dense).endswith("value_dim are for hybrids")
