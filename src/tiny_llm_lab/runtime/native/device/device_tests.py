"""The self-tests of a GPU: which of MLX's fused operators and of a package's kernels its models use."""

import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.native import mlx_pages
from tiny_llm_lab.runtime.native.compiling.build import kernels_folder
from tiny_llm_lab.runtime.native.device import (
    decode_checks,
    decode_kernel,
    delta_checks,
    delta_decode,
    delta_operator,
    fused_checks,
    partitioned,
)
from tiny_llm_lab.runtime.native.device.decode_kernel import Cell, DecodeKernel, Decodes, fastest
from tiny_llm_lab.runtime.native.device.delta_operator import Sizes
from tiny_llm_lab.runtime.native.device.verdict import Verdict, kept
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Clock, DeltaKernel

_OWN: Final = "paged_attention_metal"
PARTITIONED: Final = "partitioned attention"
DELTA: Final = "gated delta net"
_OPERATOR: Final = "mx.fast.gated_delta_update"
# The files that test and time a kernel, besides its own.
_CHECKS: Final = (Path(decode_checks.__file__), Path(decode_kernel.__file__), Path(mlx_pages.__file__))
_DELTA_CHECKS: Final = (*delta_decode.SOURCES, Path(delta_checks.__file__), Path(delta_operator.__file__))


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
        kernel = DecodeKernel(partial(self._fastest, package)) if mx.metal.is_available() else None
        return MlxOps(False, kernel, masks=fused_checks.CAUSAL in wrong)

    def verdicts(self, package: str) -> Sequence[Verdict]:
        """On the fused operators, and on the kernels that models of `package` may use; none on a CPU."""
        if not _is_gpu():
            return []
        found = [*self._fused(), *(verdict for verdict, _ in self._decodes(package))]
        tried = self._delta(package, _arrays(package), delta_checks.COMMON)
        return [*found, *(verdict for verdict, _ in tried)]

    def delta_kernels(self, package: str, arrays: DeltaKernel, sizes: Sizes) -> Mapping[Cell, DeltaKernel]:
        """By cell what is right and faster than `arrays` of `package`, or merely right if they are wrong."""
        tried = self._delta(package, arrays, sizes) if _is_gpu() else []
        most = 1 if all(verdict.is_right for verdict, _ in tried[:1]) else math.inf
        return fastest([(verdict.ratios, kernel) for verdict, kernel in tried], delta_checks.CELLS, most)

    def _fastest(self, package: str, dim: int) -> Mapping[Cell, Decodes]:
        return fastest([(verdict.ratios, kernel) for verdict, kernel in self._decodes(package, dim)])

    def _fused(self) -> Sequence[Verdict]:
        """On the operators that are wrong, or one on all. Each has a file: one may end its process."""
        return self._once(fused_checks.ALL, self._judge_fused)

    def _judge_fused(self) -> tuple[Sequence[Verdict], bool]:
        sources = [Path(fused_checks.__file__)]
        made = [
            kept(each.subject, sources, partial(self._judge_one, each), each.follows)
            for each in fused_checks.CHECKS
        ]
        wrong = [verdict for result, _ in made for verdict in result if not verdict.is_right]
        right = Verdict(fused_checks.ALL, True, "right for all shapes that some version of MLX got wrong")
        return wrong or [right], any(is_new for _, is_new in made)

    def _judge_one(self, check: fused_checks.Check) -> Sequence[Verdict]:
        self._announce(fused_checks.ALL)
        return [fused_checks.judged(check)]

    def _decodes(self, package: str, dim: int = 128) -> Sequence[tuple[Verdict, Decodes]]:
        """On the package's kernel, if it has one, and on the given one; empty without Metal."""
        if not mx.metal.is_available():
            return []
        folder = kernels_folder(package) or Path("kernels")
        own = [folder / name for name in ("metal.py", "paged_attention.metal")]
        kernels: list[tuple[str, Sequence[Path], Decodes]] = []
        if all(path.exists() for path in own):
            kernels.append((f"{_OWN} of {package}", own, _own(package)))
        kernels.append((PARTITIONED, partitioned.SOURCES, partitioned.partitioned_attention))
        wide = " with heads of 256" if dim > 128 else ""
        return [(self._judged(name + wide, files, kernel, dim), kernel) for name, files, kernel in kernels]

    def _delta(
        self, package: str, arrays: DeltaKernel, sizes: Sizes
    ) -> Sequence[tuple[Verdict, DeltaKernel]]:
        """On `arrays`, MLX's operator and the given kernel for nets of `sizes`; empty without Metal."""
        if not mx.metal.is_available():
            return []
        layers = (kernels_folder(package) or Path("kernels")).with_name("layers")
        files = [*_DELTA_CHECKS, *sorted(layers.glob("*delta*.py"))]

        def judged(name: str, kernel: DeltaKernel, cells: Sequence[Cell]) -> Verdict:
            subject = f"{DELTA} of {sizes[0]} and {sizes[1]} heads of {sizes[2]} and {sizes[3]} by {name}"

            def judge() -> Sequence[Verdict]:
                self._announce(DELTA)
                if name == _OPERATOR and not delta_operator.is_fused(sizes):
                    return [Verdict(subject, True, "MLX has no kernel for such heads: not used")]
                return [delta_checks.judge_delta(subject, kernel, arrays, sizes, cells, self._clock)]

            return self._once(subject, lambda: kept(subject, files, judge, "not used"))[0]

        kernels = (
            ("arrays", arrays, delta_checks.CELLS),
            (_OPERATOR, delta_operator.delta_operator, delta_checks.CELLS),
            ("delta_decode.metal", delta_decode.delta_decode, delta_checks.DECODES),
        )
        return [(judged(*each), each[1]) for each in kernels]

    def _judged(self, subject: str, files: Sequence[Path], kernel: Decodes, dim: int) -> Verdict:
        def judge() -> Sequence[Verdict]:
            self._announce(subject)
            return [decode_checks.judge_decodes(subject, kernel, self._clock, dim)]

        return self._once(subject, lambda: kept(subject, [*files, *_CHECKS], judge, "not used"))[0]

    def _announce(self, what: str) -> None:
        """Print once that a test runs, because compiling for it takes seconds."""
        if what not in self._announced:
            self._announced.add(what)
            print(f"testing {what} (once on this GPU) ...", file=sys.stderr, flush=True)

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


def _own(package: str) -> Decodes:
    """Imports at the call, so that a file that cannot be imported counts as a failing kernel."""

    def call(*arguments: mx.array | float) -> mx.array:
        result = getattr(importlib.import_module(f"{package}.kernels.metal"), _OWN)
        return cast(mx.array, result(*arguments[:-1]))  # without `longest`

    return cast(Decodes, call)


def _arrays(package: str) -> DeltaKernel:
    """As `_own`."""

    def call(*arguments: object) -> object:
        return importlib.import_module(f"{package}.models.array_ops").array_delta(*arguments)

    return cast(DeltaKernel, call)
