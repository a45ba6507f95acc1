"""Everything that an engine is built from, in one record."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

import mlx.core as mx

from tiny_llm_lab.runtime.console.field_flags import above_zero, at_least_one, flag
from tiny_llm_lab.runtime.kv_memory import AUTO, parse_size
from tiny_llm_lab.runtime.models.weights.activation_bits import ActivationBits
from tiny_llm_lab.runtime.structured.grammars import FORM_TIMEOUT_S
from tiny_llm_lab.types import SchedulerConfig, Task, UserError

LONGEST_DEFAULT: Final = SchedulerConfig.max_model_len
DRAFT: Final = "draft:"
LAYER: Final = "mtp:"
# A lookup costs no forward pass, and a draft after a match of one token is short anyway.
LOOKED_UP: Final = 8
DRAFTED: Final = 4
PREDICTED: Final = 1  # by a checkpoint's draft layer, which was trained for one
_USUAL: Final = SchedulerConfig()  # nobody chose: the model's length, and on Metal measured steps
_WITHOUT_MODEL: Final = ("off", "ngram", "mtp")


# What `LLM` may be told about loading; the rest of `ModelSettings` is for commands.
LOADING: Final = ("solution", "device", "dtype", "threads", "activation_bits")
RANK_MEMORY: Final = "1G"  # ranks must have equally many blocks, and each has its own free memory


def _after(text: str, prefix: str) -> str | None:
    return text.removeprefix(prefix) if text.startswith(prefix) else None


@dataclass(frozen=True)
class EngineSettings:
    """Everything that an engine is built from, except the model and the tokenizer."""

    config: SchedulerConfig = _USUAL
    block_size: int = flag(16, "tokens in a block of the KV cache", at_least_one)
    kv_cache_memory: str = flag(
        AUTO,
        "memory for keys, values and a hybrid's states: a size such as 512M or 2G, a share of the free "
        "memory such as 0.5, or auto: on a Mac what macOS and an editor leave, on a CPU half of what is "
        f"free, both less what a step takes (default: auto; {RANK_MEMORY} for each of several ranks)",
        metavar="SIZE",
    )
    kv_cache_dtype: Literal["auto", "int8"] = flag("auto", "dtype of keys and values; auto is the model's")
    enable_prefix_caching: bool = flag(True, "compute the common beginning of prompts only once")
    state_cache_memory: str = flag(
        AUTO,
        "of --kv-cache-memory, what the states of a hybrid model may take: one of each running request, and "
        "the prefix cache's snapshots; auto: half of it, less if one request needs the blocks (default: "
        "auto)",
        metavar="SIZE",
    )
    state_cache_interval: int | None = flag(
        None,
        "tokens between the snapshots of a long prompt, whole blocks (default: as many as have keys and "
        "values that weigh what a snapshot does)",
        at_least_one,
    )
    prefix_cache_dir: str | None = flag(
        None,
        "keep prefixes in this folder as well, where the next process finds them (default: off)",
        metavar="DIR",
    )
    prefix_cache_disk: str = flag(
        "20G", "how large that folder may become: a size such as 512M or 20GiB", metavar="SIZE"
    )
    async_scheduling: bool | None = None
    itl_slo_ms: float | None = flag(None, "size chunks so that the inter-token latency stays below N ms")
    speculate: str = flag(
        "off",
        "draft tokens with: off, ngram (looked up in the text so far), mtp (the checkpoint's own draft "
        "layer), mtp:FOLDER (one that is shipped alone) or draft:MODEL",
        metavar="HOW",
    )
    num_speculative_tokens: int | None = flag(
        None,
        f"draft tokens of a request in a step (default: ngram {LOOKED_UP}, draft:MODEL {DRAFTED}, "
        f"mtp {PREDICTED})",
        at_least_one,
    )
    draft_gate: bool = flag(True, "skip drafts that cost more time than they save, by measurement")
    language_model_only: bool = flag(False, "read text only: a tower that reads pictures is not loaded")
    form_timeout_s: float = flag(
        FORM_TIMEOUT_S,
        "CPU time that compiling a JSON schema, expression or grammar of an answer may take",
        above_zero,
        metavar="S",
    )
    num_blocks: int | None = None  # exactly this many; None: as many as kv_cache_memory holds
    fits_length: bool = False  # a request may be as long as fits, whatever config says

    def __post_init__(self) -> None:
        """Raise UserError for a value that no engine can use."""
        if self.speculate not in _WITHOUT_MODEL and not (self.draft_model or self.draft_layer):
            ways = "off, ngram, mtp, mtp:FOLDER or draft:MODEL"
            raise UserError(f"speculate must be {ways}, not {self.speculate!r}")
        if self.kv_cache_dtype not in ("auto", "int8"):
            raise UserError(f"kv_cache_dtype must be auto or int8, not {self.kv_cache_dtype!r}")
        if self.prefix_cache_dir is None and self.prefix_cache_disk != type(self).prefix_cache_disk:
            raise UserError("prefix_cache_disk is the size of a folder: name it with prefix_cache_dir")
        if self.prefix_cache_dir == "":  # Path would take it for the current folder
            raise UserError("prefix_cache_dir must not be empty: name a folder, or leave it out")
        if self.prefix_cache_dir is not None:
            parse_size(self.prefix_cache_disk)
            if not self.enable_prefix_caching:
                raise UserError(
                    "prefix_cache_dir keeps what the prefix cache has: leave enable_prefix_caching on"
                )
        if self.itl_slo_ms is not None and not self.itl_slo_ms > 0:
            raise UserError(f"itl_slo_ms must be above 0, not {self.itl_slo_ms:g}")
        if not 0 < self.form_timeout_s < math.inf:
            raise UserError(f"form_timeout_s must be above 0 and finite, not {self.form_timeout_s:g}")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UserError(f"num_speculative_tokens must be 1 or more, not {self.num_speculative_tokens}")
        if (self.num_speculative_tokens or 0) >= (most := self.config.max_num_batched_tokens):
            raise UserError(
                f"num_speculative_tokens must be below max_num_batched_tokens ({most}), because a step "
                f"verifies a draft and one token, not {self.num_speculative_tokens}"
            )

    @property
    def draft_model(self) -> str | None:
        """The name of the draft model; None without one."""
        return _after(self.speculate, DRAFT)

    @property
    def draft_layer(self) -> str | None:
        """The name of the folder with a draft layer that is not in the checkpoint; None without one."""
        return _after(self.speculate, LAYER)

    @property
    def has_draft_layer(self) -> bool:
        """Whether a layer drafts, the checkpoint's own or another one."""
        return self.speculate == "mtp" or self.draft_layer is not None

    @property
    def kv_bits(self) -> int | None:
        """Bits of a stored number; None: the model's dtype."""
        return 8 if self.kv_cache_dtype == "int8" else None

    def shown(self) -> dict[str, Any]:
        """Every setting by name, the scheduler's first."""
        own = asdict(self)
        del own["num_blocks"], own["fits_length"]
        return own.pop("config") | own

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        defaults = EngineSettings().shown()
        return {name: value for name, value in self.shown().items() if value != defaults[name]}


@dataclass(frozen=True)
class ModelSettings:
    """The model and its engine; named like the flags."""

    model: str = "default"
    solution: str = "ref"
    device: str | None = None
    dtype: str | mx.Dtype | None = None
    threads: int | None = None
    activation_bits: ActivationBits = "auto"
    max_model_len: int | None = None  # None: as long as fits, up to the model's own limit
    engine: EngineSettings = EngineSettings()
    tensor_parallel_size: int = 1  # processes of a server's engine
    fits_steps: bool = False  # on Metal, as many tokens as the device computes in time, by measurement
    task: Task | Literal["auto"] = "generate"  # auto: what the checkpoint is for


def served_length(asked: int | None, limit: int) -> int:
    """The most tokens of a request to a model of `limit` positions: `asked`, None: LONGEST_DEFAULT at most.

    Raises UserError for more than the model has.
    """
    longest = min(limit, LONGEST_DEFAULT) if asked is None else asked
    if longest > limit:
        raise UserError(
            f"max_model_len must be 1 to {limit} for this model, not {longest}: for more give a copy of it "
            "rope_scaling in its config.json"
        )
    return longest


def model_settings(model: str, engine: EngineSettings, keywords: Mapping[str, Any]) -> ModelSettings:
    """`model` with `engine`, both changed by `keywords`: those of LOADING, and fields of `EngineSettings` and
    of its config.

    Without a config of its own the engine takes the model's length, and on Metal steps that are measured.
    Raises TypeError for another keyword.
    """
    scheduled = {each.name for each in fields(SchedulerConfig)} & keywords.keys()
    chosen = {name: value for name, value in keywords.items() if name in LOADING}
    changes = {name: value for name, value in keywords.items() if name not in scheduled | {*LOADING}}
    if changes.get("config", engine.config) is None:
        del changes["config"]
    engine = replace(engine, **changes)
    has_config = engine.config is not _USUAL
    longest = keywords.get("max_model_len", engine.config.max_model_len if has_config else None)
    is_free = not has_config and engine.itl_slo_ms is None and "max_num_batched_tokens" not in scheduled
    if scheduled:
        config = replace(engine.config, **{name: keywords[name] for name in scheduled})
        engine = replace(engine, config=config)
    return ModelSettings(model, **chosen, max_model_len=longest, engine=engine, fits_steps=is_free)
