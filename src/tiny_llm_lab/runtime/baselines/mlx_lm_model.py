"""mlx-lm's network and caches with the interface of a solution's."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import load_model

from tiny_llm_lab import types


class MlxLmKvCache(KVCache, types.RequestKvCache):
    """One layer's cache of mlx-lm, for one request, with the methods it lacks here."""

    def offsets(self, num_rows: int) -> list[int]:
        return [self.offset] * num_rows

    def fetch(self) -> tuple[mx.array, mx.array]:
        return cast(tuple[mx.array, mx.array], self.keys_and_values())

    def attention_mask(self, num_new_tokens: int) -> mx.array | Literal["causal"] | None:
        mask = self.make_mask(num_new_tokens, return_array=False)
        return cast(mx.array | Literal["causal"] | None, mask)

    def materialize(self) -> None:
        if not self.empty():
            mx.eval(self.keys, self.values)

    def rewind(self, n: int) -> None:
        self.trim(n)

    def release(self) -> None:
        self.keys = self.values = None
        self.offset = 0


class MlxLmModel:
    """A Qwen of mlx-lm; `network` is its module."""

    def __init__(self, config: types.ModelConfig, network: Any) -> None:
        self.config = config
        self.ops: types.KernelOps | None = None  # its network chooses its own
        self.network = network

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[types.Memory] | None = None,
        *,
        wanted: types.Wanted = types.Wanted(),
    ) -> mx.array:
        if cache is not None and not all(isinstance(layer, MlxLmKvCache) for layer in cache):
            raise ValueError("this cache is not mlx-lm's: use model.create_kv_cache()")
        held = 0 if cache is None else cache[0].offsets(1)[0]
        # mlx-lm takes positions from the cache alone.
        if offset != held:
            raise ValueError(f"offset {offset} does not match a cache of {held} tokens")
        hidden = self.network.model(tokens, cache=cache)
        hidden = hidden[:, max(0, hidden.shape[1] - wanted.last) :]
        is_tied = self.config.tie_word_embeddings
        head = self.network.model.embed_tokens.as_linear if is_tied else self.network.lm_head
        return cast(mx.array, head(hidden))

    def create_kv_cache(self) -> list[types.RequestKvCache]:
        return [MlxLmKvCache() for _ in self.network.layers]


def build_model(checkpoint: types.Checkpoint) -> MlxLmModel:
    """The network that mlx-lm builds for the checkpoint's folder, on the checkpoint's own arrays."""
    config = checkpoint.config
    if config.hybrid:
        complaint = f"--solution mlx-lm has no caches for {config.model_type}, a hybrid model: choose ref"
        raise types.UserError(f"{checkpoint.path}: {complaint}")
    is_mixed = config.norm_topk_prob or not all(map(config.has_experts, range(config.num_hidden_layers)))
    if config.model_type == "qwen2_moe" and is_mixed:
        complaint = "mlx-lm ignores norm_topk_prob and dense layers in qwen2_moe: choose another solution"
        raise types.UserError(f"{checkpoint.path}: {complaint} or checkpoint")
    # mlx-lm would guess these: it ignores rope_parameters in qwen2 and ties by default.
    settings: dict[str, object] = {
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(checkpoint),
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    is_packed = any(isinstance(w, types.QuantizedWeights) for w in checkpoint.weights.values())
    if not is_packed:
        # This happens with fp8, which mlx-lm can't read: it would complain about the scales.
        settings["quantization_config"] = None
    if not any(checkpoint.path.glob("model*.safetensors")):
        complaint = "mlx-lm reads only model*.safetensors: rename the weight files"
        raise types.UserError(f"{checkpoint.path}: {complaint}")
    network, _ = load_model(checkpoint.path, lazy=True, strict=is_packed, model_config=settings)
    # Nothing was read, because it was lazy. Two engines in one process share the weights.
    network.load_weights(list(_named_arrays(checkpoint)))
    return MlxLmModel(config, network)


def _rope_scaling(checkpoint: types.Checkpoint) -> dict[str, float | str] | None:
    """`rope_scaling` in the keys that mlx-lm reads; it does not know attention_factor, so we pass mscale."""
    scaling = checkpoint.config.rope_scaling
    if scaling is None:
        return None
    kind, is_experts = checkpoint.config.model_type, checkpoint.config.num_experts > 0
    if is_experts or not scaling.truncate:
        what = f"rope_scaling in {kind}" if is_experts else "truncate in rope_scaling"
        raise types.UserError(
            f"{checkpoint.path}: mlx-lm ignores {what}: choose another solution or checkpoint"
        )
    settings: dict[str, float | str] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        settings["original_max_position_embeddings"] = scaling.original_max_position_embeddings
    if scaling.kind == "yarn":
        per_weight = types.yarn_magnitude(scaling.factor) - 1
        settings |= {
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "mscale": (scaling.magnitude - 1) / per_weight if per_weight else 1.0,
        }
    if scaling.kind == "llama3":
        settings |= {"high_freq_factor": scaling.beta_fast, "low_freq_factor": scaling.beta_slow}
    return settings


def _named_arrays(checkpoint: types.Checkpoint) -> Iterator[tuple[str, mx.array]]:
    for name, w in checkpoint.weights.items():
        if isinstance(w, types.QuantizedWeights):
            module = name.removesuffix(".weight")
            yield from ((name, w.weight), (f"{module}.scales", w.scales))
            if w.biases is not None:
                yield f"{module}.biases", w.biases
        else:
            yield name, w
