"""The flags of week 2's loop for chunk sizes and the order of prompts, and the policies they build."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tiny_llm_lab.runtime.console.field_flags import at_least_one, flag_name
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.solution import LoopPolicies, load_loop_policies
from tiny_llm_lab.types import ModelConfig, UserError

if TYPE_CHECKING:
    from tiny_llm_ref import ChunkedPrefillMetrics, PrefillScheduler

CHUNK_POLICIES: Final = ("fixed", "table", "adaptive")
TARGET_MS: Final = 50.0
_LONG_TOKENS: Final = 256
# Each flag with its default; if the value differs, the flag was given.
_PRIORITY_ONLY: Final = {
    "reserved_slots": 0,
    "preempt_prefill": None,
    "paused_kv_bits": None,
    "paused_kv_limit": None,
}
_PAUSED_ONLY: Final = ("paused_kv_bits", "paused_kv_limit")


def add_loop_arguments(parser: ArgumentParser) -> None:
    """--chunk-policy, --scheduling and the flags that go with them."""
    group = parser.add_argument_group("week 2's loop")
    about = "chunk size: --prefill-step, by a rule of thumb (table), or by recent chunk times (adaptive)"
    group.add_argument(
        "--chunk-policy", choices=CHUNK_POLICIES, default="fixed", help=f"{about} (default: fixed)"
    )
    about = "most ms of a chunk, with --chunk-policy adaptive (default: %(default)g)"
    group.add_argument("--chunk-target-ms", type=float, default=TARGET_MS, metavar="MS", help=about)
    about = "next prompt: in order of arrival, or interactive before batch (day 2.8; default: fifo)"
    group.add_argument("--scheduling", choices=("fifo", "priority"), default="fifo", help=about)
    about = "rows kept free for interactive prompts, with --scheduling priority (default: 0)"
    group.add_argument("--reserved-slots", type=int, default=0, metavar="N", help=about)
    about = f"let interactive prompts pause one with more than N tokens left (default N: {_LONG_TOKENS})"
    group.add_argument(
        "--preempt-prefill", type=at_least_one, nargs="?", const=_LONG_TOKENS, metavar="N", help=about
    )
    group.add_argument("--paused-kv-bits", type=int, choices=(8,), help="store paused caches in 8 bits")
    about = "most bytes of paused caches; more are dropped and computed again (default: no limit)"
    group.add_argument("--paused-kv-limit", type=int, metavar="BYTES", help=about)


@dataclass(frozen=True)
class LoopSettings:
    """The arguments of `batch_generate`, how we print them, and the counters of the run."""

    arguments: dict[str, Any]
    shown: dict[str, Any]
    counts: ChunkedPrefillMetrics | None = None
    scheduler: PrefillScheduler | None = None

    def as_json(self) -> dict[str, Any] | None:
        """The counters; None if there was no chunk."""
        counts = self.counts
        if counts is None or counts.prefill_chunks_processed == 0:
            return None
        paused = self.scheduler.paused if self.scheduler is not None else None
        names = ("num_pauses", "num_evictions", "peak_bytes")
        return {
            "num_chunks": counts.prefill_chunks_processed,
            "num_prompt_tokens": counts.prefill_tokens_processed,
            "avg_chunk_s": counts.avg_chunk_time,
            "num_decode_steps": counts.decode_requests_served,
            "avg_decode_s": counts.avg_decode_time,
            "prompt_tokens_per_decode_step": counts.prefill_to_decode_ratio,
        } | ({} if paused is None else {name: getattr(paused, name) for name in names})

    def line(self) -> str:
        """The same in one line; empty if there was no chunk."""
        if (counts := self.as_json()) is None:
            return ""
        parts = [f"{plural(counts['num_chunks'], 'chunk')}, {1e3 * counts['avg_chunk_s']:.1f} ms each lately"]
        if counts["num_decode_steps"]:
            steps, seconds = plural(counts["num_decode_steps"], "decode step"), counts["avg_decode_s"]
            parts += [f"{steps}, {1e3 * seconds:.1f} ms each lately"]
            parts += [f"{counts['prompt_tokens_per_decode_step']:.1f} prompt tokens per decode step"]
        if "num_pauses" in counts:
            evicted = plural(counts["num_evictions"], "cache") + " dropped"
            parts += [
                f"{plural(counts['num_pauses'], 'pause')}, {counts['peak_bytes'] / 1e6:.1f} MB at the peak, "
                f"{evicted}"
            ]
        return " · ".join(parts)


def check_loop_flags(args: Namespace) -> None:
    """Raise UserError for flags that do not fit together, before anything is loaded."""
    given = [name for name, default in _PRIORITY_ONLY.items() if getattr(args, name) != default]
    if args.engine:
        if args.chunk_policy != "fixed" or args.scheduling != "fifo" or given:
            raise UserError("--chunk-policy and --scheduling belong to week 2's loop: leave out --engine")
        return
    if given and args.scheduling != "priority":
        raise UserError(f"{flag_name(given[0])} needs --scheduling priority: add it")
    if args.preempt_prefill is None and (paused := [name for name in given if name in _PAUSED_ONLY]):
        raise UserError(f"{flag_name(paused[0])} needs --preempt-prefill: add it")
    if not args.chunk_target_ms > 0:
        raise UserError(f"--chunk-target-ms must be above 0, not {args.chunk_target_ms:g}")
    if args.chunk_policy == "table" and has_prefill_step(args):
        raise UserError("--chunk-policy table sets the chunk size itself: leave out --prefill-step")
    if args.tensor_parallel_size > 1 and (args.chunk_policy == "adaptive" or args.scheduling == "priority"):
        raise UserError(
            "--chunk-policy adaptive and --scheduling priority need one clock, and each rank has its own"
        )


def require_packable(args: Namespace, config: ModelConfig) -> None:
    """Raise UserError for a flag that packs keys and values where a model of `config` has states too."""
    if args.paused_kv_bits is not None and config.hybrid:
        raise UserError(
            "--paused-kv-bits packs keys and values, and a hybrid model has states too: leave it out"
        )


def loop_settings(args: Namespace) -> LoopSettings:
    """The policies that the flags of `add_loop_arguments` ask for, from the chosen solution."""
    if args.solution == "mlx-lm":
        if args.chunk_policy != "fixed" or args.scheduling != "fifo":
            raise UserError("mlx-lm cannot use these policies: choose --solution ref or mine")
        return LoopSettings({"prefill_step": args.prefill_step}, {})
    llm = load_loop_policies(args.solution)
    arguments = chunk_arguments(llm, args.chunk_policy, args.prefill_step, args.chunk_target_ms / 1e3)
    counts, scheduler = llm.ChunkedPrefillMetrics(), None
    if args.scheduling == "priority":
        scheduler = llm.PrefillScheduler(
            reserved_rows=args.reserved_slots,
            long_tokens=args.preempt_prefill,
            kv_bits=args.paused_kv_bits,
            kv_limit_bytes=args.paused_kv_limit,
        )
        arguments["prefill_policy"] = scheduler
    defaults = {"chunk_policy": "fixed", "scheduling": "fifo"} | _PRIORITY_ONLY
    shown = {name: getattr(args, name) for name, value in defaults.items() if getattr(args, name) != value}
    return LoopSettings(arguments | {"metrics": counts}, shown, counts, scheduler)


def chunk_arguments(llm: LoopPolicies, policy: str, prefill_step: int, target_s: float) -> dict[str, Any]:
    """A chunk policy's arguments of `batch_generate`: a size, and what may change it before every chunk."""
    if policy == "adaptive":
        return {"prefill_step": prefill_step, "chunk_policy": llm.AdaptiveChunker(target_s)}
    return {"prefill_step": None if policy == "table" else prefill_step}


def has_prefill_step(args: Namespace) -> bool:
    """Whether --prefill-step was given, not only its default."""
    return any(arg.split("=")[0] == "--prefill-step" for arg in args.argv)
