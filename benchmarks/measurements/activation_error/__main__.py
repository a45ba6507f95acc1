"""What rounding costs a model's logits, here and in other engines, all with the same weights in 4 bits.

python -m benchmarks.measurements.activation_error --models qwen3-0.6b default --outliers 0 1024 256

TINY_LLM_OPENVINO_PYTHON names a Python with optimum-intel and transformers. What is not there is left out.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measurements.activation_error import peers
from benchmarks.measurements.activation_error.checkpoint import (
    packed_default,
    perplexity,
    recall,
    story_tokens,
    write_packed,
)
from benchmarks.measurements.activation_error.figures import Array, entropy, figures
from benchmarks.measurements.activation_error.sides import EXACT, LLAMA, MLX_LM, OWN, logits_of, write_dense
from benchmarks.measurements.show import show
from benchmarks.peers.registry import OPENVINO
from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.console.talk import log

_PROMPTS, _LENGTH, _SEED = 4, 64, 0
_OWN: Final = [sys.executable, "-m", "benchmarks.measurements.activation_error.sides"]
_FIGURES: Final = (
    Column("rms", "RMS, relative", ".4f"),
    Column("kl", "KL, nats", ".5f"),
    Column("equal", "equal argmax", ".3f"),
)
_DEFAULT: Final = (
    *_FIGURES,
    Column("perplexity", "perplexity", ".4f"),
    Column("recall_512", "recall, 512", ".2f"),
    Column("recall_2048", "recall, 2,048", ".2f"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measurements.activation_error", description=__doc__
    )
    parser.add_argument("--models", nargs="+", default=["qwen3-0.6b"], help="shapes, or default")
    parser.add_argument(
        "--outliers",
        type=int,
        nargs="+",
        default=[0, 1024, 256],
        help="N: enlarge one channel in N; 0: none (default: %(default)s)",
    )
    parser.add_argument("--questions", type=int, default=100, help="of recall, to the default model")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args()
    if (python := os.environ.get(OPENVINO.variable)) and not shutil.which(python):
        parser.error(f"{OPENVINO.variable} is {python!r}, which can't be run: name a Python")
    show("activation-error", _sections(args))


def _sections(args: argparse.Namespace) -> Iterator[Section]:
    for model in args.models:
        for every in [0] if model == "default" else args.outliers:
            with tempfile.TemporaryDirectory() as folder:
                packed, about = (
                    Path(folder) / "packed",
                    model + f", one channel in {every:,} large" * bool(every),
                )
                if model == "default":
                    packed_default(packed)
                    tokens = story_tokens(packed)
                    yield _default_section(packed, tokens, args.questions)
                else:
                    write_packed(model, every, packed)
                    tokens = _random_tokens(packed)
                    yield _section(about, packed, tokens)


def _random_tokens(packed: Path) -> Array:
    vocab = load_checkpoint(packed).config.vocab_size
    return np.random.default_rng(_SEED).integers(0, vocab, (_PROMPTS, _LENGTH)).astype(np.int32)


def _section(about: str, packed: Path, tokens: Array) -> Section:
    exact, rows = np.zeros(0, np.float32), []
    for side, command, folder in _commands(packed):
        # A CPU takes seconds a token in mlx-lm, in bfloat16.
        logits = _logits([*command, side], folder, tokens[:1, :16] if side in MLX_LM else tokens)
        exact = logits if side == EXACT else exact
        rows.append(Row.of_runs(side, [figures(exact[: len(logits)], logits)]))
        log(f"{about}: {side}: {rows[-1].samples}")
    notes = (f"entropy of the exact distribution: {entropy(exact):.2f} nats; positions: {len(exact)}",)
    return Section("error", about, _FIGURES, rows, notes=notes)


def _commands(packed: Path) -> Iterator[tuple[str, list[str], Path]]:
    """Sides, the command that finds the logits of each, and the checkpoint that it reads."""
    yield from ((side, _OWN, packed) for side in OWN | MLX_LM)
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        yield LLAMA, _OWN, packed
    else:
        log("llama.cpp is left out: CONTRIBUTING.md says how to install it")
    if python := os.environ.get(OPENVINO.variable):
        dense = packed.with_name("dense")
        write_dense(packed, dense)
        yield from ((side, [python, peers.__file__], dense) for side in peers.SIDES)
    else:
        log(f"transformers and OpenVINO are left out: set {OPENVINO.variable}")


def _logits(command: list[str], folder: Path, tokens: Array) -> Array:
    given, found = folder.with_name("tokens.npy"), folder.with_name("logits.npy")
    np.save(given, tokens)
    subprocess.run([*command, folder, given, found], check=True, stdout=sys.stderr)
    logits: Array = np.load(found)
    return logits


def _default_section(packed: Path, tokens: Array, questions: int) -> Section:
    exact, rows = np.zeros(0, np.float32), []
    before = load_checkpoint("default", dtype="float32").path
    for name, folder, side in (*((side, packed, side) for side in OWN), ("before packing", before, EXACT)):
        logits = logits_of(side, folder, tokens)
        exact = logits if name == EXACT else exact
        found = figures(exact, logits) | {"perplexity": perplexity(logits, tokens)}
        found |= {f"recall_{n}": recall(OWN[side], folder, n, questions) for n in (512, 2048)}
        rows.append(Row.of_runs(name, [found]))
        log(f"default: {name}: {rows[-1].samples}")
    notes = (
        "its weights packed to 4 bits in groups of 64; its own are float32",
        f"perplexity: {tokens.size:,} tokens of new stories; recall: right, of {questions}",
        f"entropy of the exact distribution: {entropy(exact):.2f} nats",
    )
    return Section("error", "default model", _DEFAULT, rows, notes=notes)


if __name__ == "__main__":
    main()
