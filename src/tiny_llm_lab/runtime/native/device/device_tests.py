"""The self-tests of a GPU: which of MLX's fused operators and of a package's kernels its models use."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.native import mlx_pages
from tiny_llm_lab.runtime.native.compiling.build import kernels_folder
from tiny_llm_lab.runtime.native.device import decode_checks, fused_checks
from tiny_llm_lab.runtime.native.device.decode_kernel import DecodeKernel, PagedRows
from tiny_llm_lab.runtime.native.device.verdict import Verdict, kept
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Clock

_NAME: Final = "paged_attention_metal"


class DeviceTests:
    """What this process knows of its GPU: each test is made on first use, and once for a device."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Sequence[Verdict]] = {}

    def ops(self, package: str, is_asked_for: bool) -> MlxOps | None:
        """The fused operators for models of `package`.

        None if one that every model needs is wrong, unless they were asked for.
        """
        if not _is_gpu():
            return MlxOps(widens=False)
        wrong = {verdict.subject for verdict in self._fused() if not verdict.is_right}
        if not is_asked_for and not wrong.isdisjoint(fused_checks.NEEDED):
            return None
        return MlxOps(False, self._decode_kernel(package), masks=fused_checks.CAUSAL in wrong)

    def verdicts(self, package: str) -> Sequence[Verdict]:
        """On the fused operators, and on the kernels that models of `package` may use; none on a CPU."""
        return [*self._fused(), *self._decodes(package)] if _is_gpu() else []

    def _decode_kernel(self, package: str) -> DecodeKernel | None:
        found = self._decodes(package)
        return (
            DecodeKernel(_kernel(package), found[0].faster_with) if found and found[0].faster_with else None
        )

    def _fused(self) -> Sequence[Verdict]:
        return self._once(fused_checks.ALL, [Path(fused_checks.__file__)], fused_checks.judge_fused)

    def _decodes(self, package: str) -> Sequence[Verdict]:
        """One verdict, or none where there is no Metal or no kernel."""
        folder = kernels_folder(package) or Path("kernels")
        sources = [folder / name for name in ("metal.py", "paged_attention.metal")]
        if not mx.metal.is_available() or not all(path.exists() for path in sources):
            return []
        subject = f"{_NAME} of {package}"
        sources += [Path(decode_checks.__file__), Path(mlx_pages.__file__)]
        return self._once(
            subject, sources, lambda: [decode_checks.judge_decodes(subject, _kernel(package), self._clock)]
        )

    def _once(
        self, subject: str, sources: Sequence[Path], judge: Callable[[], Sequence[Verdict]]
    ) -> Sequence[Verdict]:
        """The verdicts: new ones are said, and wrong operators of MLX in every process."""
        if subject not in self._known:
            self._known[subject], is_new = kept(subject, sources, judge)
            for verdict in self._known[subject]:
                if is_new or (subject == fused_checks.ALL and not verdict.is_right):
                    print(verdict, file=sys.stderr)
        return self._known[subject]


def _is_gpu() -> bool:
    return mx.default_device() != mx.cpu and (mx.metal.is_available() or mx.cuda.is_available())


def _kernel(package: str) -> PagedRows:
    """Imports at a call, so that a file that cannot be imported is a kernel that fails."""

    def call(*arrays: mx.array | float | None) -> mx.array:
        found = getattr(importlib.import_module(f"{package}.kernels.metal"), _NAME)
        return cast(mx.array, found(*arrays))

    return cast(PagedRows, call)
