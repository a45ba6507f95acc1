"""`batch-main`: serve many prompts at once with the solution's `batch_generate`, or with its engine."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tiny_llm_lab import types
from tiny_llm_lab.cli.batch_report import as_json, live_view, print_report
from tiny_llm_lab.cli.progress import BatchProgress
from tiny_llm_lab.measure.corpus.mixed import mixed_prompts
from tiny_llm_lab.runtime import ranks
from tiny_llm_lab.runtime.console.tables import print_parts
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, EXIT_INTERRUPTED, log, plural, program
from tiny_llm_lab.runtime.kv_memory import require_dense_fit
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.llm import LLM
from tiny_llm_lab.serving.options import engine_options, loop_options, model_options
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.engine_settings import LONGEST_DEFAULT, EngineSettings
from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.serving.options.sampling_options import add_sampling_arguments, sampling_from_args

if TYPE_CHECKING:
    from tiny_llm_ref import Engine


class EngineStats:
    """Counts steps, prompt tokens and preemptions, as the `on_step` of an engine."""

    def __init__(self) -> None:
        self.num_steps = self.num_prompt_tokens = self.num_preemptions = 0

    def __call__(self, plan: types.StepPlan, stats: types.StepStats) -> None:
        self.num_steps += 1
        self.num_prompt_tokens += stats.num_prompt_tokens
        self.num_preemptions += len(plan.preempted)

    def as_json(self, engine: Engine) -> dict[str, Any]:
        """The counters, together with `engine`'s; a share of nothing is None."""
        cache, spec = engine.core.prefix_cache, engine.core.spec_stats
        asked = cache.num_query_tokens if cache is not None else 0
        return {
            "num_steps": self.num_steps,
            "num_computed_prompt_tokens": self.num_prompt_tokens,
            "prefix_hit_rate": cache.num_hit_tokens / asked if cache is not None and asked else None,
            "num_preemptions": self.num_preemptions,
            "acceptance_rate": None if spec is None else spec.acceptance_rate,
        }

    def line(self, engine: Engine) -> str:
        """The same for people."""
        values = self.as_json(engine)
        shares = (values["prefix_hit_rate"], values["acceptance_rate"])
        hits, accepted = map(_percent, shares, (engine.core.prefix_cache, engine.core.spec_stats))
        return (
            f"{self.num_steps} steps · {self.num_prompt_tokens} prompt tokens computed · "
            f"prefix cache hit rate {hits} · preemptions {self.num_preemptions} · acceptance rate {accepted}"
        )


def _percent(share: float | None, source: object) -> str:
    if share is None:
        return "off" if source is None else "-"
    return f"{share:.1%}"


HELP = "Answer many prompts at once, with a live view and a table of latencies at the end."
EXAMPLES = (
    ("--prefill-step 999999", "compute prompts in one piece, and watch the gaps between tokens grow"),
    ("--engine --max-num-batched-tokens 256 --prompts FILE", "your prompts, with at most 256 tokens a step"),
)


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_kernel_arguments(parser)
    model_options.add_parallel_argument(parser)
    about = "prompts: one a line, a .json list or .jsonl; - reads stdin (default: a mixed set)"
    parser.add_argument("--prompts", metavar="FILE", help=about)
    parser.add_argument("--raw", action="store_true", help="send prompts as they are, without chat template")
    model_options.add_prefill_step(parser)
    loop_options.add_loop_arguments(parser)
    add_sampling_arguments(parser, max_tokens=128)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    engine_options.add_engine_arguments(parser)


def run(args: Namespace) -> int:
    sampling = sampling_from_args(args)
    engine_options.check_engine_flags(args)
    loop_options.check_loop_flags(args)
    model_options.async_scheduling(args)
    if args.engine:
        if loop_options.has_prefill_step(args):
            raise types.UserError("--prefill-step does not work with --engine: leave one of them out")
        model_options.import_solution(args.solution)
        load_serving(args.solution)  # before anything is downloaded: a solution may have no engine
    num_ranks = args.tensor_parallel_size
    if (code := model_options.run_ranks(args, reads_stdin=args.prompts == "-")) is not None:
        return code
    prompts = _read(args, sampling) if args.prompts else None
    loaded = model_options.load_from_args(args, num_ranks=num_ranks)
    tokenizer, limit = loaded.checkpoint.tokenizer, loaded.model.config.max_position_embeddings
    served = engine_options.engine_settings(args, limit)
    prompts = _in_template(tokenizer, prompts or mixed_prompts(tokenizer, limit, sampling), args.raw)
    loop_options.require_packable(args, loaded.model.config)
    loop = loop_options.loop_settings(args) if served is None else loop_options.LoopSettings({}, {})
    settings = _loop_settings(args, limit, loop) if served is None else served.shown()
    told = settings if served is None else {"engine": ""} | served.changed()
    first = [model_options.model_name(args), args.solution, plural(len(prompts), "prompt")]
    log(" · ".join([*first, *(f"{name} {value}".rstrip() for name, value in told.items())]))
    if served is None:
        done = serve(loaded, prompts, settings, loop)
    else:
        draft = (
            model_options.load_from_args(args, served.draft_model, is_draft=True).model
            if served.draft_model
            else None
        )
        done = serve_with_engine(loaded, args.solution, prompts, served, draft)
    _tell(args, done, loop, {"activation_bits": loaded.activation_bits} | settings | done.settings)
    if done.is_interrupted:
        return EXIT_INTERRUPTED
    failed = any(request.status == "error" for request in done.progress.requests)
    log(f"next: {program()} bench-chunked-prefill")
    # If another rank fails it ends the first one, which may still be printing.
    return EXIT_FAILED if failed and ranks.is_first() else 0


def _tell(args: Namespace, done: Served, loop: loop_options.LoopSettings, settings: dict[str, Any]) -> None:
    """The closing lines, or the JSON document, on stdout."""
    if args.json:
        named = {
            "model": model_options.model_name(args),
            "solution": args.solution,
            "tensor_parallel_size": args.tensor_parallel_size,
        }
        document = as_json(done.progress, done.total_s, named | settings)
        counted = {"prefill": loop.as_json(), "engine": done.counts}
        print(json.dumps(document | {name: each for name, each in counted.items() if each}, indent=1))
    else:
        print_report(done.progress, done.total_s)
        for line in filter(None, (loop.line(), done.counts_line)):
            print_parts(line)


@dataclass(frozen=True)
class Served:
    """How every request ended, also after Ctrl-C, and an engine's counters, as JSON and as a line."""

    progress: BatchProgress
    total_s: float
    is_interrupted: bool
    counts: dict[str, Any] | None = None
    counts_line: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # that the engine chose itself


def serve(
    loaded: model_options.Loaded,
    prompts: list[types.Prompt],
    settings: dict[str, Any],
    loop: loop_options.LoopSettings,
) -> Served:
    """Run the solution's loop under a view."""
    # An empty cache row costs memory too, so we make no more rows than there are requests.
    num_rows = min(settings["batch_size"], len(prompts))
    checkpoint, limit = loaded.checkpoint, settings["max_seq_len"]
    require_dense_fit(
        loaded.model.config,
        checkpoint.dtype,
        num_rows,
        max((_num_stored(each, checkpoint.tokenizer, limit) for each in prompts), default=0),
        "choose a smaller --batch-size or --max-seq-len, or use --engine, whose cache fits the memory",
    )
    chosen = {name: value for name, value in settings.items() if name not in loop.shown} | loop.arguments
    chosen |= {"batch_size": num_rows, "clock": time.perf_counter}
    generate = partial(loaded.solution.batch_generate, loaded.model, checkpoint.tokenizer, prompts, **chosen)
    return _watch(prompts, num_rows, lambda on_event: generate(on_event=on_event))


def _num_stored(prompt: types.Prompt, tokenizer: types.Tokenizer, limit: int) -> int:
    """The most tokens whose keys and values a request stores; a prompt that is too long is refused later."""
    max_tokens = prompt.sampling.max_tokens
    length = len(tokenizer.encode(cast(str, prompt.content)))
    return limit if max_tokens is None else min(limit, length + max_tokens)


def serve_with_engine(
    loaded: model_options.Loaded,
    solution: str,
    prompts: list[types.Prompt],
    settings: EngineSettings,
    draft: types.Model | None = None,
) -> Served:
    """The same through the solution's engine, with what it counted."""
    config, stats = settings.config, EngineStats()
    engine = build_engine(
        load_serving(solution), loaded, settings, num_requests=len(prompts), draft=draft, on_step=stats
    )
    if config.enable_chunked_prefill:
        log(f"Chunked prefill is enabled with max_num_batched_tokens={config.max_num_batched_tokens}.")
    with LLM.of(loaded, engine) as llm:
        num_slots = min(config.max_num_seqs, len(prompts))
        served = _watch(prompts, num_slots, lambda on_event: llm.generate(prompts, on_event=on_event))
        chosen = {"max_model_len": engine.core.config.max_model_len}
        return replace(served, counts=stats.as_json(engine), counts_line=stats.line(engine), settings=chosen)


def _watch(
    prompts: list[types.Prompt], num_slots: int, generate: Callable[[types.EventCallback], object]
) -> Served:
    progress = BatchProgress(prompts, num_slots, time.perf_counter())
    is_interrupted = False
    with live_view(progress) as show:
        try:
            generate(lambda event: show(event, progress.update(event)))
        except KeyboardInterrupt:
            is_interrupted = True
    return Served(progress, time.perf_counter() - progress.start_s, is_interrupted)


def _loop_settings(args: Namespace, limit: int, loop: loop_options.LoopSettings) -> dict[str, Any]:
    chosen = model_options.async_scheduling(args)
    return {
        "max_seq_len": getattr(args, "max_model_len", min(limit, LONGEST_DEFAULT)),
        "batch_size": getattr(args, "max_num_seqs", engine_options.LOOP_NUM_SEQS),
        "prefill_step": loop.arguments["prefill_step"],
        **loop.shown,
    } | ({} if chosen is None else {"async_scheduling": chosen})


def _read(args: Namespace, sampling: types.SamplingParams) -> list[types.Prompt]:
    prompts = read_prompts(args.prompts, sampling, args.raw)
    if args.tensor_parallel_size > 1 and any(prompt.arrival_s > 0 for prompt in prompts):
        raise types.UserError(
            "arrival_s follows a clock, and each rank has its own: leave it out with --tensor-parallel-size"
        )
    return prompts


def _in_template(
    tokenizer: types.Tokenizer, prompts: Sequence[types.Prompt], raw: bool
) -> list[types.Prompt]:
    return [replace(each, content=as_chat(tokenizer, cast(str, each.content), raw)) for each in prompts]
