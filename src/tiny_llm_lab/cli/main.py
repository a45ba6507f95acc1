"""`main`: stream one answer."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from tiny_llm_lab.measure.corpus.question import QUESTION
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.console.answer_writer import AnswerWriter
from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, log, plural, program
from tiny_llm_lab.runtime.kv_memory import require_dense_fit
from tiny_llm_lab.runtime.metrics import decode_rate, e2e_s
from tiny_llm_lab.runtime.native.compiling.limits import measure
from tiny_llm_lab.runtime.native.ops import Note
from tiny_llm_lab.runtime.native.profile import profile, table
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.prompts_file import cleaned
from tiny_llm_lab.serving.options.sampling_options import add_sampling_arguments, sampling_from_args
from tiny_llm_lab.types import Event, SamplingParams, Timing, TokenEvent, UserError

HELP = "Stream one answer."
EXAMPLES = (
    ('"Who are you?" --temperature 0.7 --seed 1', "sample an answer; the same seed gives the same one"),
    ("--model qwen3-0.6b --prompt -", "answer stdin with a model from the hub, downloaded once"),
)
# In the order in which you build them: no cache, a cache, then the prompt in chunks.
LOOPS = {"simple": "simple_generate", "cached": "simple_generate_with_kv_cache", "chunked": "stream_generate"}


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_kernel_arguments(parser)
    model_options.add_parallel_argument(parser)
    about = "what to ask; - reads stdin (default: a question about some notes)"
    where = parser.add_mutually_exclusive_group()
    where.add_argument("text", nargs="?", metavar="TEXT", help=about)
    where.add_argument("--prompt", metavar="TEXT", help="the same as a flag")
    parser.add_argument("--raw", action="store_true", help="send the prompt as it is, without chat template")
    about = "no KV cache, a cache, or a cache and the prompt in chunks (default: %(default)s)"
    parser.add_argument("--loop", choices=list(LOOPS), default="chunked", help=about)
    add_sampling_arguments(parser, max_tokens=256)
    model_options.add_prefill_step(parser)
    model_options.add_async_scheduling(parser)
    parser.add_argument("--profile", action="store_true", help="print each operator's time at the end")


def run(args: Namespace) -> int:
    sampling, settings = sampling_from_args(args), _loop_settings(args)
    args.prompt = args.prompt if args.text is None else args.text
    if (code := model_options.run_ranks(args, reads_stdin=args.prompt == "-")) is not None:
        return code
    question = _question(args.prompt, args.raw)
    loaded = model_options.load_from_args(args, num_ranks=args.tensor_parallel_size)
    prompt = as_chat(loaded.checkpoint.tokenizer, question, args.raw)
    num_prompt_tokens = _checked_length(loaded, prompt, sampling.max_tokens)
    if args.prompt is None:
        log(f"> {question}\n")
    start_s, token_s = time.perf_counter(), list[float]()
    try:
        with _profiled(args) as notes:
            _print_stream(start_loop(loaded, args.loop, prompt, sampling, settings), token_s)
    except KeyboardInterrupt:
        print(flush=True)
        log(f"interrupted · {_latencies(num_prompt_tokens, Timing(start_s, tuple(token_s)))}")
        return EXIT_INTERRUPTED
    timing = Timing(start_s, tuple(token_s))
    log(f"\n{model_options.model_name(args)} · {args.solution} · {_latencies(num_prompt_tokens, timing)}")
    if len(token_s) == sampling.max_tokens:
        log(f"cut at --max-tokens {sampling.max_tokens}")
    if args.profile:
        limits = measure(native.binding().num_threads())
        log("\n" + "\n".join(table(notes, e2e_s(timing) or 0.0, limits)))
    log(f"next: {program()} batch-main")
    return 0


def _profiled(args: Namespace) -> AbstractContextManager[list[Note]]:
    if not args.profile:
        return nullcontext([])
    if not native.can_run():
        raise UserError("--profile times C++ kernels, and this run uses none: use a CPU and a C++ compiler")
    return profile()


def start_loop(
    loaded: model_options.Loaded, loop: str, prompt: str, sampling: SamplingParams, settings: dict[str, Any]
) -> Iterator[Event]:
    """The events of one of the solution's three loops; `settings` belong to the chunked one."""
    tokenizer, llm = loaded.checkpoint.tokenizer, cast(Any, loaded.solution)
    if not hasattr(llm, LOOPS[loop]):
        raise UserError(f"this solution has no {LOOPS[loop]}: choose another --loop or --solution")
    generate = getattr(llm, LOOPS[loop])
    if loop == "chunked":
        events = generate(loaded.model, tokenizer, prompt, sampling, **settings)
        return cast(Iterator[Event], events)
    if sampling.stop or sampling.ignore_eos:
        raise UserError(f"--stop and --ignore-eos do not work with --loop {loop}: choose --loop chunked")
    sampler = llm.Sampler(sampling)
    # The last token of an answer is sampled but never computed, so it needs no position.
    room = loaded.model.config.max_position_embeddings - len(tokenizer.encode(prompt)) + 1
    max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    return cast(Iterator[Event], generate(loaded.model, tokenizer, prompt, sampler, max_tokens=max_tokens))


def _loop_settings(args: Namespace) -> dict[str, Any]:
    chosen = model_options.async_scheduling(args)
    if chosen is not None and args.loop != "chunked":
        raise UserError(f"--async-scheduling does not work with --loop {args.loop}: choose --loop chunked")
    return {"prefill_step": args.prefill_step} | ({} if chosen is None else {"async_scheduling": chosen})


def _latencies(num_prompt_tokens: int, timing: Timing) -> str:
    """How long the answer took, counted from the start of the prompt."""
    if timing.ttft_s is None:
        return f"prompt {plural(num_prompt_tokens)} · no answer"
    parts = [f"prompt {plural(num_prompt_tokens)}", f"answer {plural(len(timing.token_s))}"]
    parts += [f"TTFT {timing.ttft_s * 1000:.0f} ms"]
    rate = decode_rate(timing)
    return " · ".join([*parts, f"then {rate:.1f} tok/s"] if rate else parts)


def _print_stream(events: Iterable[Event], token_s: list[float]) -> None:
    """Print the answer as it comes; `token_s` gets the time of each token."""
    writer = AnswerWriter(sys.stdout)
    for event in events:
        if isinstance(event, TokenEvent):
            if event.token_id is not None:
                token_s.append(time.perf_counter())
            writer.write(event.text)
    writer.end()


def _question(prompt: str | None, raw: bool) -> str:
    if prompt is None:
        return QUESTION
    source = "stdin" if prompt == "-" else "the prompt"
    text = cleaned(read_text("-") if prompt == "-" else prompt, raw, source)
    if not text:
        raise UserError("the prompt is empty: ask something with --prompt TEXT")
    return text


def _checked_length(loaded: model_options.Loaded, prompt: str, max_tokens: int | None) -> int:
    # Loops without a request object don't check the limit, and the model was not trained past it.
    length = len(loaded.checkpoint.tokenizer.encode(prompt))
    limit = loaded.model.config.max_position_embeddings
    if length > limit:
        raise UserError(f"the prompt has {length} tokens and the model takes {limit}: shorten it")
    most = limit if max_tokens is None else min(limit, length + max_tokens)
    cure = "choose a smaller --max-tokens, or shorten the prompt"
    require_dense_fit(loaded.model.config, loaded.checkpoint.dtype, 1, most, cure)
    return length
