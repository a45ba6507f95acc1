"""--tensor-parallel-size: one command as several ranks on this machine."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace

from tiny_llm_lab.runtime import ranks
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.serving.options.model_options import model_name
from tiny_llm_lab.types import ModelConfig, UserError


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
    _check_cores(size)
    config, _ = read_config(find_folder(model_name(args)) / "config.json")
    check_heads(config, size, model_name(args))
    if getattr(args, "speculate", "off") == "mtp":
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


def _check_cores(size: int) -> None:
    cores = os.cpu_count() or 1
    if size > cores:
        raise UserError(f"--tensor-parallel-size {size} is more than the {cores} cores here: choose fewer")
