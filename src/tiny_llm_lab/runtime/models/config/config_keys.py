"""The keys of a `config.json`: which we read, which change no number, and which values we refuse."""

import tomllib
from pathlib import Path

from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.models.config.fields import Fields

OTHER_CHECKPOINT = "choose another checkpoint"
_KEYS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
READ_KEYS = frozenset(_KEYS["read"].split())
KEYS_WITHOUT_INFLUENCE = frozenset(_KEYS["without_influence"].split())
HYBRID_KEYS = frozenset(_KEYS["hybrid"].split())
HYBRID_KEYS_WITHOUT_INFLUENCE = frozenset(_KEYS["hybrid_without_influence"].split())


def warn_of_unknown_keys(content: Fields, is_hybrid: bool) -> None:
    """Print one line on stderr about unknown keys, without those whose value is empty."""
    known = READ_KEYS | KEYS_WITHOUT_INFLUENCE
    if is_hybrid:
        known |= HYBRID_KEYS | HYBRID_KEYS_WITHOUT_INFLUENCE
    # Falsy values turn a feature off, and "everything as usual" needs no warning.
    if unknown := sorted(key for key, value in content.items() if key not in known and value):
        log(
            f"{content.path}: we ignore unknown keys: {', '.join(unknown)}; "
            "if one of them changes the model, its answers are wrong"
        )


def refuse_variants(content: Fields) -> None:
    """Raise UserError for values that would change the numbers and that no solution knows about."""
    if content.flag("is_causal", True) is False:
        message = "is_causal false, as in embedding models, is not supported"
        raise content.refused(message, f"{OTHER_CHECKPOINT}, one that generates text")
    model_type = content.get("model_type")
    # Qwen2 has biases whatever this key says.
    if model_type != "qwen2" and content.flag("attention_bias"):
        raise content.refused(f"attention_bias is not supported in {model_type}", OTHER_CHECKPOINT)
    if (content.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise content.refused(f"hidden_act {content['hidden_act']!r} is not supported", OTHER_CHECKPOINT)
    if content.get("pretraining_tp") not in (None, 1):
        raise content.refused("pretraining_tp above 1 is not supported", OTHER_CHECKPOINT)
    for name in ("mlp_bias", "is_encoder_decoder", "quantize_activations", "rope_traditional", "use_mrope"):
        if content.flag(name):
            raise content.refused(f"{name} is not supported", OTHER_CHECKPOINT)


def refuse_sliding_window(content: Fields, positions: int) -> None:
    """Raise UserError when a layer sees fewer tokens than the `positions` that can be served."""
    layers = content.list_of(str, "layer_types")
    is_used = content.flag("use_sliding_window")
    if layers:
        has_sliding = any(kind != "full_attention" for kind in layers)
    else:
        # Those with experts have no full layers below; the others begin to slide at max_window_layers.
        starts_below = (
            content.get("model_type") in ("qwen2_moe", "qwen3_moe") or content.get("max_window_layers") == 0
        )
        first = 0 if starts_below else content.count("max_window_layers", 28)
        has_sliding = is_used and first < content.count("num_hidden_layers")
    # A missing window is transformers' 4096; null means no window.
    window = content.get("sliding_window", 4096)
    is_known = is_used and not set(layers) - {"full_attention", "sliding_attention"}
    is_off = window is None and not layers
    is_wide = is_known and isinstance(window, int) and window >= positions
    if has_sliding and not is_off and not is_wide:
        raise content.refused("sliding-window attention is not supported", OTHER_CHECKPOINT)


def positions_in_one_chunk(content: Fields, positions: int) -> int:
    """How many of `positions` dual chunk attention (Qwen2.5-1M) leaves alone: those of its first chunk."""
    dual = content.inner("dual_chunk_attention_config")
    if not dual:
        return positions
    chunk, local = dual.count("chunk_size"), dual.count("local_size")
    return min(positions, max(1, chunk - local))
