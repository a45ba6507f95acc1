"""The self-tests of a GPU: which of MLX's fused operators and of a package's kernels its models use."""

import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import mlx.core as mx

from tiny_llm_lab.runtime.native import mlx_pages
from tiny_llm_lab.runtime.native.compiling.build import kernels_folder
from tiny_llm_lab.runtime.native.device import (
    chunk_ways,
    decode_checks,
    decode_kernel,
    delta_checks,
    delta_decode,
    delta_operator,
    fused_checks,
    ladder,
    partitioned,
)
from tiny_llm_lab.runtime.native.device.chunk_ways import Attend, ChunkWays
from tiny_llm_lab.runtime.native.device.decode_kernel import DecodeKernel, Decodes
from tiny_llm_lab.runtime.native.device.delta_operator import Sizes
from tiny_llm_lab.runtime.native.device.ladder import Cell, fastest
from tiny_llm_lab.runtime.native.device.verdict import Verdict, kept
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Clock, DeltaKernel

_OWN: Final = "paged_attention_metal"
PARTITIONED: Final = "partitioned attention"
DELTA: Final = "gated delta net"
CHUNKS: Final = "attention of chunks with heads of 256"
# The files that test and time ways, besides those of a package.
_CHECKS: Final = (*sorted(Path(ladder.__file__).parent.glob("*.*")), Path(mlx_pages.__file__))

K = TypeVar("K")
Judge = Callable[[str, K, Clock], Verdict]
Way = tuple[str, Sequence[Path], Judge[K], K]  # in words; a package's files; its test


class DeviceTests:
    """What this process knows of its GPU: each test is made on first use, and once for a device."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Sequence[Verdict]] = {}
        self._announced: set[str] = set()

    def ops(self, package: str, is_asked_for: bool) -> MlxOps | None:
        """The fused operators for models of `package`.

        None if one that every model needs is wrong, unless they were asked for. Kernels for decodes are
        tested when a step first asks for one: a model without blocks never does.
        """
        if not _is_gpu():
            return MlxOps(widens=False)
        wrong = {verdict.subject for verdict in self._fused() if not verdict.is_right}
        if not is_asked_for and not wrong.isdisjoint(fused_checks.NEEDED):
            return None
        masks = fused_checks.CAUSAL in wrong
        if not mx.metal.is_available():
            return MlxOps(False, masks=masks)
        # With arrays as masks there is one way for chunks.
        chunks = ChunkWays(list if masks else self._chunks)
        kernel = DecodeKernel(lambda dim: fastest(self._decodes(package, dim), decode_kernel.CELLS))
        return MlxOps(False, kernel, masks=masks, chunks=chunks)

    def verdicts(self, package: str) -> Sequence[Verdict]:
        """On the fused operators, and on the kernels that models of `package` may use; none on a CPU."""
        if not _is_gpu():
            return []
        arrays = _imported(f"{package}.models.array_ops", "array_delta")
        fused, decodes = self._fused(), self._decodes(package)
        tried = decodes, self._delta(package, arrays, delta_checks.COMMON), self._chunks()
        return [*fused, *(each for found in tried for each, _ in found)]

    def delta_kernels(self, package: str, arrays: DeltaKernel, sizes: Sizes) -> Mapping[Cell, DeltaKernel]:
        """By cell what is right and faster than `arrays` of `package`, or merely right if they are wrong."""
        tried = self._delta(package, arrays, sizes) if _is_gpu() else []
        most = 1 if all(verdict.is_right for verdict, _ in tried[:1]) else math.inf
        return fastest(tried, delta_checks.CELLS, most)

    def _fused(self) -> Sequence[Verdict]:
        """On the operators that are wrong, or one on all. Each has a file: one may end its process."""
        return self._once(fused_checks.ALL, self._judge_fused)

    def _judge_fused(self) -> tuple[Sequence[Verdict], bool]:
        sources = [Path(fused_checks.__file__)]
        made = [
            self._kept(each.subject, sources, partial(fused_checks.judged, each), each.follows)
            for each in fused_checks.CHECKS
        ]
        wrong = [verdict for result, _ in made for verdict in result if not verdict.is_right]
        right = Verdict(fused_checks.ALL, True, "right for all shapes that some version of MLX got wrong")
        return wrong or [right], any(is_new for _, is_new in made)

    def _decodes(self, package: str, dim: int = 128) -> Sequence[tuple[Verdict, Decodes]]:
        """On the package's kernel, if it has one, and on the given one; empty without Metal."""
        folder = kernels_folder(package) or Path("kernels")
        own = [folder / name for name in ("metal.py", "paged_attention.metal")]
        judge, wide = partial(decode_checks.judge_decodes, dim=dim), " with heads of 256" if dim > 128 else ""
        ways: list[Way[Decodes]] = [(PARTITIONED + wide, [], judge, partitioned.partitioned_attention)]
        if all(path.exists() for path in own):
            ways.insert(
                0, (f"{_OWN} of {package}{wide}", own, judge, _imported(f"{package}.kernels.metal", _OWN, -1))
            )  # not told `longest`
        return self._tried(ways)

    def _chunks(self) -> Sequence[tuple[Verdict, Attend]]:
        """On the ways to compute attention of chunks with heads of 256; empty without Metal."""
        judge, ways = chunk_ways.judge_chunks, chunk_ways.WAYS.items()
        return self._tried([(f"{CHUNKS} by {name}", [], judge, way) for name, way in ways])

    def _delta(
        self, package: str, arrays: DeltaKernel, sizes: Sizes
    ) -> Sequence[tuple[Verdict, DeltaKernel]]:
        """On `arrays`, MLX's operator and the given kernel for nets of `sizes`; empty without Metal."""
        layers = (kernels_folder(package) or Path("kernels")).with_name("layers")
        net = f"{DELTA} of {sizes[0]} and {sizes[1]} heads of {sizes[2]} and {sizes[3]}"
        judge = partial(delta_checks.judge_delta, arrays=arrays, sizes=sizes)
        files = sorted(layers.glob("*delta*.py"))
        kernels: dict[str, DeltaKernel] = {
            "arrays": arrays,
            delta_checks.OPERATOR: delta_operator.delta_operator,
            delta_checks.OWN: delta_decode.delta_decode,
        }
        return self._tried([(f"{net} by {name}", files, judge, kernel) for name, kernel in kernels.items()])

    def _tried(self, ways: Sequence[Way[K]]) -> Sequence[tuple[Verdict, K]]:
        """The verdict on each way; empty without Metal."""

        def judged(subject: str, files: Sequence[Path], judge: Judge[K], way: K) -> Verdict:
            now = partial(judge, subject, way, self._clock)
            return self._once(subject, partial(self._kept, subject, [*files, *_CHECKS], now))[0]

        return [(judged(*each), each[-1]) for each in ways if mx.metal.is_available()]

    def _kept(
        self, subject: str, files: Sequence[Path], judge: Callable[[], Verdict], follows: str = ""
    ) -> tuple[Sequence[Verdict], bool]:
        """`kept`; without `follows` of a way that isn't used if it is wrong."""

        def judge_now() -> Sequence[Verdict]:
            what = fused_checks.ALL if follows else subject.partition(" by ")[0]
            if what not in self._announced:  # once, because compiling for it takes seconds
                self._announced.add(what)
                print(f"testing {what} (once on this GPU) ...", file=sys.stderr, flush=True)
            return [judge()]

        return kept(subject, files, judge_now, follows or "not used")

    def _once(self, subject: str, judge: Callable[[], tuple[Sequence[Verdict], bool]]) -> Sequence[Verdict]:
        """The verdicts; prints new ones, and wrong operators of MLX in every process."""
        if subject not in self._known:
            self._known[subject], is_new = judge()
            for verdict in self._known[subject]:
                if is_new or (subject == fused_checks.ALL and not verdict.is_right):
                    print(verdict, file=sys.stderr)
        return self._known[subject]


def _is_gpu() -> bool:
    return mx.default_device() != mx.cpu and (mx.metal.is_available() or mx.cuda.is_available())


def _imported(module: str, name: str, end: int | None = None) -> Any:
    """A function. It is imported at the call, so that one that cannot be imported counts as a failing way."""
    return lambda *given, **named: getattr(importlib.import_module(module), name)(*given[:end], **named)
