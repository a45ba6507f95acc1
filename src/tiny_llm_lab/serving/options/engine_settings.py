"""All that an engine is built from, in one record, whoever asks for it."""

from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypedDict

import mlx.core as mx

from tiny_llm_lab.runtime.console.field_flags import at_least_one, flag
from tiny_llm_lab.runtime.kv_memory import AUTO
from tiny_llm_lab.types import SchedulerConfig, UserError

LONGEST_DEFAULT: Final = SchedulerConfig.max_model_len
DRAFT: Final = "draft:"
# A lookup takes no time of the model's, and its drafts after one token only are short anyway.
LOOKED_UP: Final = 8
DRAFTED: Final = 4


RANK_MEMORY: Final = "1G"  # ranks must have equally many blocks, and each has its own free memory


def _speculation(text: str) -> str:
    if text in ("off", "ngram") or text.removeprefix(DRAFT) not in ("", text):
        return text
    raise ArgumentTypeError(f"must be off, ngram or draft:MODEL, not {text!r}")


@dataclass(frozen=True)
class EngineSettings:
    """All that an engine is built from, besides model and tokenizer."""

    config: SchedulerConfig = SchedulerConfig()
    block_size: int = flag(16, "tokens of one block of the KV cache", at_least_one)
    kv_cache_memory: str = flag(
        AUTO,
        "a rank's keys and values: 512M, 2G, 0.5 of what is free, or auto: half of it, on a CPU 1G at most, "
        f"on Metal 4G and 65,536 tokens (default: auto; {RANK_MEMORY} of several ranks)",
        metavar="SIZE",
    )
    kv_cache_dtype: Literal["auto", "int8"] = flag("auto", "of keys and values; auto is the model's")
    enable_prefix_caching: bool = flag(True, "prompts that begin alike are computed once")
    async_scheduling: bool | None = None
    itl_slo_ms: float | None = flag(None, "chunks are sized to keep gaps between tokens below this")
    speculate: str = flag(
        "off",
        "how tokens are drafted: off, ngram (looked up in the text) or draft:MODEL",
        _speculation,
        metavar="HOW",
    )
    num_speculative_tokens: int | None = flag(
        None,
        f"draft tokens of one step, with --speculate (default: ngram {LOOKED_UP}, draft:MODEL {DRAFTED})",
        at_least_one,
    )
    draft_gate: bool = flag(True, "drafts that do not pay, by measured times, are not verified")
    num_blocks: int | None = None  # exactly so many; None: as many as kv_cache_memory holds

    def __post_init__(self) -> None:
        """Raise UserError for a value that no engine has."""
        if self.speculate not in ("off", "ngram") and not self.draft_model:
            raise UserError(f"speculate must be off, ngram or draft:MODEL, not {self.speculate!r}")
        if self.kv_cache_dtype not in ("auto", "int8"):
            raise UserError(f"kv_cache_dtype must be auto or int8, not {self.kv_cache_dtype!r}")
        if self.itl_slo_ms is not None and not self.itl_slo_ms > 0:
            raise UserError(f"itl_slo_ms must be above 0, not {self.itl_slo_ms:g}")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UserError(f"num_speculative_tokens must be 1 or more, not {self.num_speculative_tokens}")

    @property
    def draft_model(self) -> str | None:
        """The name of the model that drafts; None when none does."""
        return self.speculate.removeprefix(DRAFT) if self.speculate.startswith(DRAFT) else None

    @property
    def kv_bits(self) -> int | None:
        """Of a stored number; None: those of the model's dtype."""
        return 8 if self.kv_cache_dtype == "int8" else None

    def shown(self) -> dict[str, Any]:
        """Every setting by name, those of the scheduler first."""
        own = asdict(self)
        del own["num_blocks"]
        return own.pop("config") | own

    def changed(self) -> dict[str, Any]:
        """Those that are not the defaults."""
        defaults = EngineSettings().shown()
        return {name: value for name, value in self.shown().items() if value != defaults[name]}


class EngineKeywords(TypedDict, total=False):
    """The keywords of `LLM` and `AsyncLLM` that are fields of `EngineSettings`."""

    block_size: int
    kv_cache_memory: str
    kv_cache_dtype: Literal["auto", "int8"]
    enable_prefix_caching: bool
    async_scheduling: bool | None
    itl_slo_ms: float | None
    speculate: str
    num_speculative_tokens: int | None
    draft_gate: bool


@dataclass(frozen=True)
class ModelSettings:
    """Which model is served, by which engine; the names are those of the flags."""

    model: str = "default"
    solution: str = "ref"
    device: str | None = None
    dtype: str | mx.Dtype | None = None
    threads: int | None = None
    max_model_len: int | None = None  # None: the model's, LONGEST_DEFAULT at most
    engine: EngineSettings = EngineSettings()
    fits_steps: bool = False  # on Metal a step has as many tokens as the device is measured to take in time


def served_length(asked: int | None, limit: int) -> int:
    """The most tokens of a request to a model of `limit` positions: `asked`, None: LONGEST_DEFAULT at most.

    Raises UserError for more than the model has.
    """
    longest = min(limit, LONGEST_DEFAULT) if asked is None else asked
    if longest > limit:
        raise UserError(f"max_model_len must be 1 to {limit} for this model, not {longest}")
    return longest


def model_settings(
    chosen: ModelSettings, config: SchedulerConfig | None, engine: EngineKeywords
) -> ModelSettings:
    """`chosen` with an engine of these keywords; `config` None: the default, at the model's length."""
    longest = None if config is None else config.max_model_len
    settings = EngineSettings(config or SchedulerConfig(), **engine)
    is_free = config is None and settings.itl_slo_ms is None
    return replace(chosen, max_model_len=longest, engine=settings, fits_steps=is_free)
