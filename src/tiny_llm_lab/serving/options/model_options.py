"""Flags that several commands share, and their meaning."""

import os
import signal
import sys
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime import native, ranks
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.models.config.fields import AGAIN
from tiny_llm_lab.runtime.models.loading import DTYPES, config_of
from tiny_llm_lab.runtime.models.weights.activation_bits import (
    AUTO,
    AUTO_BITS,
    require_kernels,
    require_rounding,
    used_bits,
    with_activation_bits,
)
from tiny_llm_lab.runtime.native.settings import MAX_THREADS
from tiny_llm_lab.runtime.solution import Solution
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.types import Checkpoint, Model, ModelConfig, UserError
from tiny_llm_lab.types.packages import PACKAGES


def add_parallel_argument(parser: ArgumentParser) -> None:
    """--tensor-parallel-size."""
    about = "processes that split each layer's weights between them (default: %(default)s)"
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1, metavar="N", help=about)


def run_ranks(args: Namespace, reads_stdin: bool) -> int | None:
    """Run this command once for each of --tensor-parallel-size ranks; returns the exit code of them all.

    None in the processes that are to compute: in every rank, and where there is only one. Raises UserError,
    before a process is started, for a size that this machine or the model's heads do not allow.
    """
    size: int = args.tensor_parallel_size
    if size < 1:
        check_ranks(args)
    if not ranks.is_first():
        # Rank 0 handles Ctrl-C between two steps; until then the sums of its step need all ranks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if size == 1 or ranks.is_rank():
        return None
    check_ranks(args)
    command = [sys.executable, "-m", "tiny_llm_lab", args.command, *args.argv]
    stdin = sys.stdin.buffer.read() if reads_stdin else b""
    return ranks.launch(command, size, stdin=stdin)


def check_ranks(args: Namespace) -> None:
    """Raise UserError if this machine or the model cannot have --tensor-parallel-size ranks."""
    size: int = args.tensor_parallel_size
    if size < 1:
        raise UserError(f"--tensor-parallel-size must be 1 or more, not {size}")
    if size > (cores := os.cpu_count() or 1):
        raise UserError(f"--tensor-parallel-size {size} is more than the {cores} cores here: choose fewer")
    check_heads(config_of(model_name(args)), size, model_name(args))
    if _engine(args).has_draft_layer:
        raise UserError("--speculate mtp drafts on one rank only: leave out --tensor-parallel-size")


def check_heads(config: ModelConfig, size: int, name: str) -> None:
    """Raise UserError unless the heads of `name` can be split over `size` ranks; the cure lists sizes."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sizes = [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
    if config.hybrid:
        key_heads = config.hybrid.delta_net.num_key_heads
        sizes = [n for n in sizes if key_heads % n == 0]
        name += f", whose delta nets have {key_heads} key heads,"
    if size not in sizes:
        raise UserError(
            f"--tensor-parallel-size {size} cannot split {name} of {heads} query and {kv_heads} kv heads: "
            f"choose one of {', '.join(map(str, sizes))}"
        )


def require_numbers(model: Model, checkpoint: Checkpoint, solution: str) -> None:
    """Raise UserError if a logit after one token is NaN or infinite. Computes one step.

    A model has its largest activations at a text's first token, whichever it is.
    """
    if mx.all(mx.isfinite(model(mx.array([[0]], mx.int32)))).item():
        return
    is_mine = solution == "mine"
    cure = "try --solution ref" if is_mine else f"choose another --dtype, or {AGAIN}"
    dtype = str(checkpoint.dtype).rpartition(".")[2]
    raise UserError(f"{checkpoint.name}: its logits in {dtype} are NaN or infinite: {cure}")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint and the solution's model built from it."""

    checkpoint: Checkpoint
    solution: Solution
    model: Model
    activation_bits: int = 16  # that it computes with


def add_model_arguments(
    parser: ArgumentParser, random_bits: int = 16, model_action: type[Action] | None = None
) -> None:
    """--model, --bits, --solution, --device and --dtype; `random_bits` is the default in --bits's help."""
    about = "default or default-hybrid (shipped), a name such as qwen3-0.6b, a hub id, a folder, random:NAME"
    parser.add_argument("--model", default="default", action=model_action or "store", help=about)
    about = f"bits of the weights of a random: model (default: {random_bits})"
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), help=about)
    about = "whose code to run: yours, the reference's or mlx-lm's (default: %(default)s)"
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help=about)
    about = "where to compute (default: the GPU if MLX has one)"
    parser.add_argument("--device", choices=["gpu", "cpu"], help=about)
    about = "dtype to compute in (default: as stored; float32 on a CPU without the C++ kernels)"
    parser.add_argument("--dtype", choices=list(DTYPES), help=about)


def add_kernel_arguments(parser: ArgumentParser) -> None:
    """--threads and --activation-bits."""
    about = "threads of the C++ kernels on a CPU (default: one per core)"
    parser.add_argument("--threads", type=int, metavar="N", help=about)
    add_activation_bits(parser)


def add_activation_bits(parser: ArgumentParser) -> None:
    """--activation-bits."""
    about = (
        "what 4- and 8-bit weights are multiplied with in the C++ kernels: 16 is as exact as the dtype, "
        "8 is rounded to 8 bits: faster prompts, less exact answers (default: %(default)s)"
    )
    parser.add_argument("--activation-bits", type=_bits, choices=(16, 8, AUTO), default=AUTO, help=about)


def _bits(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def add_prefill_step(parser: ArgumentParser, default: int = 128) -> None:
    """--prefill-step."""
    about = "most prompt tokens in a prefill chunk (default: %(default)s)"
    parser.add_argument("--prefill-step", type=at_least_one, default=default, metavar="N", help=about)


def add_async_scheduling(parser: ArgumentParser) -> None:
    """--async-scheduling and --no-async-scheduling; not given, they leave no attribute."""
    about = "launch a decode step before reading the tokens of the last one (default: on with a GPU)"
    parser.add_argument("--async-scheduling", action=BooleanOptionalAction, default=SUPPRESS, help=about)


def async_scheduling(args: Namespace) -> bool | None:
    """The value of --async-scheduling, None if it was not given; raises UserError for mlx-lm."""
    chosen: bool | None = getattr(args, "async_scheduling", None)
    if chosen is not None and args.solution == "mlx-lm":
        raise UserError("mlx-lm always launches a step ahead: leave out --async-scheduling")
    return chosen


def model_name(args: Namespace) -> str:
    """The name in --model, with --bits written into it if the model is random."""
    name = str(args.model)
    if args.bits is None:
        return name
    if not name.startswith("random:"):
        raise UserError(f"--bits is for a random: model, and {name} has its own: leave it out")
    return f"{name},bits={args.bits}"


def import_solution(name: str) -> Solution:
    """The solution called `name`; raises UserError when it is not there."""
    try:
        return load_solution(name)
    except ModuleNotFoundError as error:
        if error.name != PACKAGES[name]:
            raise
        raise UserError(f"{error.name} is not in this checkout: choose another --solution") from None


def load_from_args(
    args: Namespace,
    model: str | None = None,
    num_ranks: int = 1,
    is_draft: bool = False,
    has_pictures: bool = False,
) -> Loaded:
    """What the flags of `add_model_arguments` and `add_kernel_arguments` ask for, or another `model`."""
    engine = EngineSettings() if is_draft else _engine(args)
    settings = replace(chosen_model(args, model), tensor_parallel_size=num_ranks, engine=engine)
    return load(settings, is_draft, has_pictures)


def chosen_model(args: Namespace, model: str | None = None) -> ModelSettings:
    """What the same flags say of a model, without its engine."""
    chosen = (args.solution, args.device, args.dtype, args.threads, args.activation_bits)
    return ModelSettings(model or model_name(args), *chosen)


def _engine(args: Namespace) -> EngineSettings:
    """As far as it says what is loaded."""
    return EngineSettings(speculate=getattr(args, "speculate", "off"))


def load(settings: ModelSettings, is_draft: bool = False, has_pictures: bool = False) -> Loaded:
    """The solution first, so that a typo there costs no download; then the checkpoint, and one token.

    With several ranks the model is the shard of this one. A draft model may be one that 8-bit activations do
    not reach. `has_pictures`: with the tower that reads pictures, on one rank, if the checkpoint has one.
    """
    num_ranks = settings.tensor_parallel_size
    solution, dtype, threads = settings.solution, settings.dtype, settings.threads
    if threads is not None:
        if not 1 <= threads <= MAX_THREADS:
            raise UserError(f"--threads must be 1 to {MAX_THREADS}, not {threads}")
        native.set_num_threads(threads)
    require_kernels(settings.activation_bits, solution, settings.device)
    llm = import_solution(solution)
    if solution == "mlx-lm" and dtype is None and settings.device != "gpu" and mx.default_device() == mx.cpu:
        dtype = "float32"  # it does not run our kernels, and MLX's 16 bits on a CPU are slow and inaccurate
    has_tower = has_pictures and num_ranks == 1 and solution != "mlx-lm"
    name, task, layer = settings.model, settings.task, settings.engine.draft_layer
    checkpoint = load_checkpoint(name, settings.device, dtype, task, has_tower, layer)
    bits = AUTO_BITS if settings.activation_bits == AUTO else settings.activation_bits
    weights = with_activation_bits(checkpoint.weights, bits)
    checkpoint = replace(checkpoint, weights=weights)
    built = _shared_model(llm, checkpoint, num_ranks) if num_ranks > 1 else llm.build_model(checkpoint)
    if num_ranks == 1 and built.ops is not None and built.ops.name == "cpp":
        ops = built.ops
        checkpoint = replace(checkpoint, weights={})
        del built  # nothing but the dict may hold weights while they are laid out
        checkpoint = replace(checkpoint, weights=native.laid_out(ops, weights))
        built = llm.build_model(checkpoint)
    if settings.activation_bits == 8 and not is_draft:
        require_rounding(checkpoint.name, checkpoint.weights, built.ops)
    require_numbers(built, checkpoint, solution)
    return Loaded(checkpoint, llm, built, used_bits(checkpoint.weights, built.ops))


def _shared_model(llm: Solution, checkpoint: Checkpoint, num_ranks: int) -> Model:
    build = getattr(llm, "build_parallel_model", None)
    if build is None:
        raise UserError("this solution does not define build_parallel_model: choose another --solution")
    return cast(Model, build(checkpoint, ranks.group(num_ranks)))
