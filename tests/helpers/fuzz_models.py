"""The models and proposers of the differential fuzz."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests.helpers.devices import on_cpu
from tests.helpers.drafting import expected_draft
from tests.helpers.experts import MOE, in_dtype, moe_weights, pack
from tests.helpers.hybrids import HYBRID, HYBRID_MOE, QWEN2_MOE, draft_weights, hybrid_weights
from tests.helpers.pictures import SEEING, SEEING_HYBRID, SeeingEngine, seeing_weights
from tests.helpers.toy import EOS, QWEN2, QWEN3, ByteTokenizer, toy_weights

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.weights.activation_bits import with_activation_bits
from tiny_llm_lab.types import Checkpoint, Draft, DraftRequest, ModelConfig, Proposer, RopeScaling, Weight

# Some letters end an answer, so that ends come at every place of it and not only at the last token.
EOS_IDS = frozenset({EOS, EOS + 1, *b"AQ~\x07\x9b"})
MAX_POSITIONS = 640
# Models whose rows do not depend on their company, bit for bit, on the C++ kernels.
INVARIANT = (
    *("qwen3", "qwen2", "llama", "flat", "bfloat16", "packed", "bytes"),
    *("qwen2 moe", "hybrid", "hybrid moe", "packed hybrid", "2,048", "151,936", "seeing", "seeing hybrid"),
)
# Every model on each set of operators, but bfloat16 on C++ alone: elsewhere rounding changes draws.
MODELS = (
    *((name, "cpp") for name in ("mixed packings", *INVARIANT, "2,048", "mixed packings", "moe")),
    *((name, kernels) for name in ("qwen3", "qwen2", "packed", "moe") for kernels in ("mlx", "off")),
    *(("hybrid", kernels) for kernels in ("cpp", "mlx", "off")),
    *((name, kernels) for name in ("seeing", "seeing hybrid") for kernels in ("cpp", "mlx", "off")),
)


class FuzzTokenizer(ByteTokenizer):
    """`ByteTokenizer` with more tokens that end a text."""

    eos_token_ids = set(EOS_IDS)  # noqa: RUF012


class Models:
    """The models that a fuzz draws from, each built once."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._built: dict[tuple[str, str], Any] = {}
        self._weights: dict[int, dict[str, Weight]] = {}  # by id of the model, of those that read pictures

    def seeing(self, model: Any, whole: Any, num_bytes: int = 0) -> SeeingEngine | None:
        """What an engine of `whole` is built with if `model` reads pictures."""
        weights = self._weights.get(id(model))
        return None if weights is None else SeeingEngine(model, weights, whole, num_bytes)

    def of(self, name: str, kernels: str) -> Any:
        """The model called `name` on the operators that TINY_LLM_KERNELS=`kernels` stands for."""
        if (name, kernels) not in self._built:
            config, weights, dtype = _RECIPES[name]()
            config = replace(
                config, max_position_embeddings=min(MAX_POSITIONS, config.max_position_embeddings)
            )
            checkpoint = Checkpoint(name, Path(name), config, weights, FuzzTokenizer(), dtype)
            with on_cpu(kernels):
                ops = self._llm.build_model(checkpoint).ops
                checkpoint = replace(checkpoint, weights=native.laid_out(ops, dict(weights)))
                built = self._built[name, kernels] = self._llm.build_model(checkpoint)
            if config.pictures is not None:
                self._weights[id(built)] = dict(checkpoint.weights)
        return self._built[name, kernels]

    def with_draft_layer(self, name: str, kernels: str) -> Any:
        """That model, a hybrid in float32, and the layer of its checkpoint that drafts."""
        if (f"{name}, mtp", kernels) not in self._built:
            model = self.of(name, kernels)
            with on_cpu(kernels):
                weights = native.laid_out(model.ops, dict(draft_weights(model.config)))
                self._built[f"{name}, mtp", kernels] = self._llm.MtpModel(model, weights)
        return self._built[f"{name}, mtp", kernels]

    def proposer(self, kind: str, model_name: str, kernels: str, rng: random.Random) -> Any:
        """A proposer that needs no answers."""
        if kind == "ngram":
            longest = rng.randint(1, 4)
            return self._llm.NgramProposer(longest, rng.randint(1, longest), rng.randint(1, 9))
        if kind == "mtp":
            return self._llm.MtpProposer(self.with_draft_layer(model_name, kernels), rng.randint(1, 4))
        model = self.of(model_name, kernels)
        is_wide = model.config.vocab_size > QWEN3.vocab_size + 1000
        name = {"same model": model_name, "other model": "other", "small model": "small"}[kind]
        drafting = model if is_wide else self.of(name, kernels)  # the others have too small a vocabulary
        return self._llm.DraftModelProposer(drafting, rng.randint(1, 8), model.config.vocab_size)


class ScriptedProposer(Proposer):
    """Knows every answer, and drafts some of its tokens wrong, some of them outside the vocabulary."""

    def __init__(self, seed: int, right: float, num_tokens: int, silent: float, outside: float) -> None:
        self.seed, self.right, self.num_tokens = seed, right, num_tokens
        self.silent, self.outside = silent, outside
        self.texts: Mapping[str, Sequence[int]] = {}  # prompt and answer by request

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        rng = random.Random(f"{self.seed} {request_id} {len(token_ids)}")
        if rng.random() < self.silent:
            return Draft()
        text = [
            *self.texts.get(request_id or "", ()),
            *rng.choices(range(QWEN3.vocab_size), k=self.num_tokens),
        ]
        true = text[len(token_ids) :][: self.num_tokens]
        return Draft(tuple(token if rng.random() < self.right else self._wrong(rng) for token in true))

    def _wrong(self, rng: random.Random) -> int:
        if rng.random() < self.outside:
            return rng.choice((-1, QWEN3.vocab_size, 2**31 + 7))
        return rng.randrange(QWEN3.vocab_size)


class Watched:
    """A proposer, and the requests for which it has not been told that they ended."""

    def __init__(self, proposer: Any, is_exact: bool) -> None:
        """`is_exact`: what is remembered of a request must not change its drafts."""
        self.proposer = proposer
        self.is_exact = is_exact
        self.live: set[str] = set()
        self._whims = random.Random(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.proposer, name)

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        self.live.update(each.sequence.request_id for each in asked)
        drafts: list[Draft] = self.proposer.propose(asked)
        for each, draft in zip(asked, drafts, strict=True) if self.is_exact else ():
            text, count = each.sequence.token_ids, len(draft.token_ids)
            if not self.proposer.keeps_blocks:
                fresh = self.proposer.look_up(text, None).token_ids[: each.num_tokens]
            else:
                size = self.proposer.vocab_size
                fresh = tuple(expected_draft(self.proposer.model, text, count, each.drafter, size))
            assert draft.token_ids == fresh, f"drafts {draft.token_ids}, of the whole text {fresh}"
        return drafts

    def follow(self, computed: Any) -> Any:
        """A draft model that may lag reads a part now and then."""
        for each, _ in computed if self.proposer.may_lag else ():
            part = self._whims.choice((0.0, 0.5, 1.0)) * (each.num_computed_tokens - each.num_read_tokens)
            each.num_readable_tokens = each.num_read_tokens + int(part)
        return self.proposer.follow(computed)

    def forget(self, request_id: str) -> None:
        self.live.discard(request_id)
        self.proposer.forget(request_id)


_Recipe = Callable[[], tuple[ModelConfig, dict[str, Weight], mx.Dtype]]


def _plain(config: ModelConfig, seed: int = 0) -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    return config, dict(toy_weights(config, seed)), mx.float32


def _flat() -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    """Logits that differ little: the keys alone decide what is drawn."""
    config, weights, dtype = _plain(QWEN3, 2)
    return config, weights | {"model.norm.weight": weights["model.norm.weight"] * 0.1}, dtype


def _bfloat16() -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    config, weights, _ = _plain(QWEN2, 3)
    return config, in_dtype(weights, mx.bfloat16), mx.bfloat16


def _packed(*bits: int) -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    """Matrices in 4 bits, but those of layer i in bits[i] bits."""
    config, weights, dtype = _plain(QWEN3, 4)
    for name, w in weights.items():
        if "norm" not in name:
            layer = int(name.split(".")[2]) if ".layers." in name else 0
            weights[name] = pack(w, bits[layer], 32)
    return config, weights, dtype


def _bytes() -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    """Products round bfloat16 to bytes, with matrices of 4 bits and of 8."""
    config, weights, _ = _packed(4, 8)
    return config, with_activation_bits(in_dtype(weights, mx.bfloat16), 8), mx.bfloat16


def _packed_hybrid() -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    """As MLX's conversions have it: 4 bits, but 8 of the router and of the shared expert's gate."""
    assert HYBRID_MOE.hybrid is not None
    sizes = replace(HYBRID_MOE.hybrid.delta_net, value_head_dim=24)
    hybrid = replace(HYBRID_MOE.hybrid, delta_net=sizes)
    config = replace(HYBRID_MOE, hybrid=hybrid, shared_expert_intermediate_size=64)
    weights = hybrid_weights(config)
    for name, w in weights.items():
        if isinstance(w, mx.array) and w.ndim > 1 and "conv1d" not in name:
            weights[name] = pack(w, 8 if name.endswith("gate.weight") else 4, 32)
    return config, in_dtype(weights, mx.bfloat16), mx.bfloat16


def _wide(vocab_size: int, num_rows: int, dtype: mx.Dtype) -> tuple[ModelConfig, dict[str, Weight], mx.Dtype]:
    """A vocabulary of a real size, with `num_rows` different logits: all others are equal to one of them."""
    config = replace(QWEN2, vocab_size=vocab_size, hidden_size=32, num_hidden_layers=1)
    weights = toy_weights(config, 5)
    head = weights["lm_head.weight"][mx.arange(vocab_size) % num_rows]
    return config, in_dtype(dict(weights) | {"lm_head.weight": head}, dtype), dtype


_LLAMA3 = RopeScaling("llama3", 8.0, 64, beta_fast=4.0, beta_slow=1.0)
_RECIPES: Mapping[str, _Recipe] = {
    "qwen3": lambda: _plain(QWEN3),
    "qwen2": lambda: _plain(QWEN2),
    "llama": lambda: _plain(replace(QWEN2, model_type="llama", qkv_bias=False, rope_scaling=_LLAMA3)),
    "flat": _flat,
    "bfloat16": _bfloat16,
    "packed": lambda: _packed(4, 8),
    "bytes": _bytes,
    "mixed packings": lambda: _packed(4, 3),  # the kernels do not read three bits
    "moe": lambda: (MOE, moe_weights(MOE), mx.float32),
    "qwen2 moe": lambda: (QWEN2_MOE, hybrid_weights(QWEN2_MOE), mx.float32),
    "hybrid": lambda: (HYBRID, hybrid_weights(HYBRID), mx.float32),
    "hybrid moe": lambda: (HYBRID_MOE, hybrid_weights(HYBRID_MOE), mx.float32),
    "packed hybrid": _packed_hybrid,
    "2,048": lambda: _wide(2048, 1500, mx.bfloat16),
    "151,936": lambda: _wide(151_936, 140_000, mx.float32),
    "seeing": lambda: (SEEING, seeing_weights(SEEING), mx.float32),
    "seeing hybrid": lambda: (SEEING_HYBRID, seeing_weights(SEEING_HYBRID), mx.float32),
    "other": lambda: _plain(QWEN3, 1),
    "small": lambda: _plain(replace(QWEN3, vocab_size=QWEN3.vocab_size - 8, max_position_embeddings=50), 1),
}
