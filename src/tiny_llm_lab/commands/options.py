"""Flags that several commands share, and what they stand for."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from tiny_llm_lab import load_checkpoint, load_solution, native, ranks
from tiny_llm_lab.models.loading import DTYPES
from tiny_llm_lab.models.weights import with_activation_bits
from tiny_llm_lab.solution import PACKAGES, Solution
from tiny_llm_lab.types import Checkpoint, Model, SamplingParams, UserError


@dataclass(frozen=True)
class Loaded:
    """A checkpoint and the solution's model built from it."""

    checkpoint: Checkpoint
    solution: Solution
    model: Model


def add_model_arguments(parser: ArgumentParser, random_bits: int = 16) -> None:
    """--model, --bits, --solution, --device and --dtype; `random_bits` is the default that --bits tells."""
    parser.add_argument(
        "--model",
        default="default",
        help="default (shipped, small), a name such as qwen3-0.6b, a hub id, a folder, or random:NAME",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=(4, 8, 16),
        help=f"of the weights of a random: model (default: {random_bits})",
    )
    parser.add_argument(
        "--solution", default="ref", choices=list(PACKAGES), help="whose code runs (default: %(default)s)"
    )
    parser.add_argument("--device", choices=["gpu", "cpu"], help="default: what MLX picks")
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        help="default: as stored, but float32 on a CPU without the C++ kernels, where 16 bits are slower",
    )


def add_kernel_arguments(parser: ArgumentParser) -> None:
    """--threads and --activation-bits."""
    parser.add_argument("--threads", type=int, help="of the C++ kernels on a CPU (default: one a core)")
    add_activation_bits(parser)


def add_activation_bits(parser: ArgumentParser) -> None:
    """--activation-bits."""
    parser.add_argument(
        "--activation-bits",
        type=int,
        choices=[8],
        help="round what 4-bit weights are multiplied with to 8 bits: faster with C++ kernels, less exact "
        "(default: as exact as the dtype)",
    )


def add_parallel_argument(parser: ArgumentParser) -> None:
    """--tensor-parallel-size."""
    parser.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=int,
        default=1,
        help="processes that share each layer's weights (default: %(default)s)",
    )


def run_ranks(args: Namespace, reads_stdin: bool) -> int | None:
    """Run this command once for each of --tensor-parallel-size ranks; returns the exit code of them all.

    None in the processes that are to compute: in every rank, and where there is only one.
    """
    ranks.check_size(args.tensor_parallel_size)
    if not ranks.is_first():
        # Rank 0 answers Ctrl-C, between two steps: until then the sums of its step need all ranks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if args.tensor_parallel_size == 1 or ranks.is_rank():
        return None
    command = [sys.executable, "-m", "tiny_llm_lab", args.command, *args.argv]
    stdin = sys.stdin.buffer.read() if reads_stdin else b""
    return ranks.launch(command, args.tensor_parallel_size, stdin=stdin)


def add_sampling_arguments(parser: ArgumentParser, max_tokens: int) -> None:
    """How tokens are picked and when an answer ends; the defaults are greedy."""
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this mass")
    parser.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens (0 = off)")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the best")
    parser.add_argument("--seed", type=int, default=0, help="for --temperature above 0")


def add_prefill_step(parser: ArgumentParser, default: int = 128) -> None:
    """--prefill-step."""
    parser.add_argument(
        "--prefill-step",
        type=int,
        default=default,
        help="most prompt tokens of one prefill chunk (default: %(default)s)",
    )


def sampling_from(args: Namespace) -> SamplingParams:
    """The sampling flags; raises UserError for values that make no sense."""
    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
    )


def model_name(args: Namespace) -> str:
    """--model, with --bits written into the name of a random model, where they belong."""
    name = str(args.model)
    if args.bits is None:
        return name
    if not name.startswith("random:"):
        raise UserError(f"--bits goes with a random: model; {name} has the bits it was saved with")
    return f"{name},bits={args.bits}"


def import_solution(name: str) -> Solution:
    """The solution called `name`; raises UserError when it is not there."""
    try:
        return load_solution(name)
    except ModuleNotFoundError as error:
        if error.name != PACKAGES[name]:
            raise
        raise UserError(f"there is no {error.name} in this checkout: choose another --solution") from None


def load_as_told(args: Namespace, model: str | None = None, num_ranks: int = 1) -> Loaded:
    """What the flags of `add_model_arguments` and `add_kernel_arguments` ask for, or another model."""
    return load(
        model or model_name(args),
        args.solution,
        args.device,
        args.dtype,
        args.threads,
        num_ranks,
        args.activation_bits,
    )


def load(
    model: str,
    solution: str,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    num_ranks: int = 1,
    activation_bits: int | None = None,
) -> Loaded:
    """The solution first, so that a typo there costs no download; then the checkpoint.

    With `num_ranks` the model is this process's part of one that so many ranks share. `activation_bits`
    is for every packed matrix of 4 bits, see `QuantizedWeights`.
    """
    if threads is not None:
        if threads < 1:
            raise UserError(f"--threads must be 1 or more, not {threads}")
        os.environ[native.THREADS_VARIABLE] = str(threads)
    llm = import_solution(solution)
    if solution == "mlx-lm" and dtype is None and device != "gpu" and mx.default_device() == mx.cpu:
        dtype = "float32"  # our kernels are not its own, and MLX's 16 bits on a CPU are slow and inaccurate
    checkpoint = load_checkpoint(model, device, dtype)
    if activation_bits is not None:
        checkpoint = _rounding(checkpoint, solution, activation_bits)
    if solution == "ref":
        native.kernels(PACKAGES[solution])  # compiled now, and not while the first request waits
    if num_ranks > 1:
        return Loaded(checkpoint, llm, _shared_model(llm, checkpoint, num_ranks))
    return Loaded(checkpoint, llm, llm.build_model(checkpoint))


def _rounding(checkpoint: Checkpoint, solution: str, bits: int) -> Checkpoint:
    if solution == "mlx-lm" or native.kernels(PACKAGES[solution]) is None:
        raise UserError("--activation-bits needs our C++ kernels on a CPU: leave it out")
    weights = with_activation_bits(checkpoint.weights, bits)
    if all(weights[name] is weight for name, weight in checkpoint.weights.items()):
        raise UserError(f"{checkpoint.name} has no weights of 4 bits: leave out --activation-bits")
    return replace(checkpoint, weights=weights)


def _shared_model(llm: Solution, checkpoint: Checkpoint, num_ranks: int) -> Model:
    build = getattr(llm, "build_parallel_model", None)
    if build is None:
        raise UserError("this solution has no build_parallel_model: choose another --solution")
    return cast(Model, build(checkpoint, ranks.group(num_ranks)))
