"""The state of the C++ kernels in this process: loaded libraries, threads, and printed warnings."""

import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise
from operator import attrgetter, is_
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.native import settings
from tiny_llm_lab.runtime.native.compiling.build import (
    BuildError,
    CompileError,
    binding_library,
    build,
    damaged,
    kernel_library,
    kernels_folder,
)
from tiny_llm_lab.runtime.native.compiling.isa import ISAS, available, selected_isa
from tiny_llm_lab.runtime.native.cpp_ops import CppOps, UnevenCppOps, can_read_model
from tiny_llm_lab.runtime.native.device.delta_checks import cell_of
from tiny_llm_lab.runtime.native.device.delta_operator import Sizes, Stacked, Widened, sizes_of
from tiny_llm_lab.runtime.native.device.device_tests import DeviceTests
from tiny_llm_lab.runtime.native.device.ladder import Cell
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.ops import Binding, KernelSet
from tiny_llm_lab.runtime.native.self_test import first_wrong
from tiny_llm_lab.types import (
    Clock,
    DeltaKernel,
    DeltaState,
    DeltaWeights,
    KernelOps,
    QuantizedWeights,
    UserError,
    Weight,
)
from tiny_llm_lab.types.packages import PACKAGES


def _copies(package: str) -> list[str]:
    """The copies of a package's kernels, from the selected one on, the best first."""
    runs, is_own = available(), package == PACKAGES["mine"]
    runs = runs[runs.index(selected_isa()) :]
    return [isa.name for isa in runs if not (is_own and isa.has_given_tile)]


class DeltaLayer:
    """One layer's weights, and the states of several requests that its last call returned as one array."""

    def __init__(self, weights: DeltaWeights, sizes: Sizes) -> None:
        self.given, self.weights = weights, Widened(weights, sizes[2])
        self.last: Sequence[DeltaState] = ()
        self._left: list[DeltaState] = []

    def begin(self, states: Sequence[DeltaState]) -> None:
        """Give those of the last states that are not among `states` memory of their own.

        Who holds one of them would else keep all. The copies are computed with the step or by the next call.
        """
        mx.async_eval(self._left)
        going_on = set(map(id, states))
        self._left = [state for state in self.last if id(state) not in going_on]
        for part in (part for state in self._left for part in state):
            part[:] = mx.contiguous(part)  # the same array for everyone who has it

    def whole(self, states: Sequence[DeltaState]) -> Sequence[DeltaState]:
        """`states`; as the last ones, which are one array, if they are these."""
        return self.last if len(states) == len(self.last) and all(map(is_, states, self.last)) else states


class MlxDelta:
    """A `DeltaKernel`: one call for neighbouring requests that have as many rows each.

    Several states of a call are one array, until a call has others.
    """

    def __init__(self, arrays: DeltaKernel, find: Callable[[Sizes], Mapping[Cell, DeltaKernel]]) -> None:
        """Compute each such call by what `find` returns for its cell, else by `arrays`.

        `find` is called when a step first has a net of those sizes.
        """
        self._arrays, self._found, self._layers = arrays, cache(find), dict[int, DeltaLayer]()

    def __call__(
        self,
        rows: Sequence[mx.array],
        weights: DeltaWeights,
        states: Sequence[DeltaState],
        starts: Sequence[int],
    ) -> tuple[mx.array, list[DeltaState]]:
        """See `DeltaKernel`."""
        sizes, outs, after = sizes_of(weights, states[0]), list[mx.array](), list[DeltaState]()
        net = self.layer(weights, sizes)
        net.begin(states)
        made: Sequence[DeltaState] = ()
        for length, group in groupby(end - start for start, end in pairwise(starts)):
            first, count = len(after), len(list(group))
            part = [row[starts[first] : starts[first + count]] for row in rows]
            before = net.whole(states[first : first + count])
            kernel = self._found(sizes).get(cell_of(count, length), self._arrays)
            out, new = kernel(part, net.weights, before, range(0, (count + 1) * length, length))
            outs.append(out)
            if kernel is self._arrays:
                # Parts of one array become arrays of their own; a state that is alone stays where it is.
                new = [(mx.contiguous(tail), mx.contiguous(state)) for tail, state in new]
            made = new if isinstance(new, Stacked) and count > 1 else made
            after += new
        net.last = made
        return mx.concatenate(outs), after

    def layer(self, weights: DeltaWeights, sizes: Sizes) -> DeltaLayer:
        """What the last call with these `weights` left."""
        if id(weights) not in self._layers:
            self._layers[id(weights)] = DeltaLayer(weights, sizes)
        return self._layers[id(weights)]


_STUB = 'raise NotImplementedError("task '


def is_unwritten(package: str, file: str, symbol: str) -> bool:
    """Whether a symbol of a module that `package` has imported, such as models.model, has the body of a stub.

    `build_model` is given in its final form as soon as a day after it is begun, and imports what later days
    write. Until then a model computes without it.
    """
    module = sys.modules.get(f"{package.partition('.')[0]}.{file}")
    return module is not None and _STUB in inspect.getsource(attrgetter(symbol)(module))


_GROUP: Final = 64  # numbers of a dense row that the kernels add up at a time


def in_blocks(binding: Binding, weights: Sequence[Weight]) -> list[QuantizedWeights]:
    """Returns matrices in blocks, as `QuantizedWeights` says, in one piece of memory. Their rows may be
    computed by this.

    The rows of a dense one have a multiple of 64 numbers.
    """
    parts: list[mx.array] = []
    for w in weights:
        arrays = (w.weight, w.scales, w.biases) if isinstance(w, QuantizedWeights) else (w.view(mx.uint32),)
        parts += [part for part in arrays if part is not None]
    made = iter(binding.in_blocks(parts))
    return [_from_blocks(w, made) for w in weights]


def _from_blocks(w: Weight, made: Iterator[mx.array]) -> QuantizedWeights:
    if isinstance(w, QuantizedWeights):
        words, scales = next(made), next(made)
        biases = None if w.biases is None else next(made)
        return replace(w, weight=words, scales=scales, biases=biases, in_blocks=w.weight.shape[-2])
    nothing = mx.zeros((*w.shape[:-2], 0), w.dtype)
    return QuantizedWeights(next(made).view(w.dtype), nothing, nothing, 0, 0, in_blocks=w.shape[-2])


_TOGETHER: Final = 64 << 20  # bytes: a piece of memory that large is mapped by itself, and gets large pages


def all_in_blocks(binding: Binding, weights: dict[str, Weight]) -> dict[str, Weight]:
    """Returns `weights` with all matrices in blocks that the operators multiply.

    They are taken out of their dict a few at a time, so that memory does not hold all of them twice.
    """
    made: dict[str, Weight] = {}
    while weights:
        taken: dict[str, Weight] = {}
        while weights and sum(w.nbytes for w in taken.values()) < _TOGETHER:
            name = next(iter(weights))
            taken[name] = weights.pop(name)
        names = [name for name, w in taken.items() if _is_multiplied(name, w)]
        made |= taken | dict(zip(names, in_blocks(binding, [taken[name] for name in names]), strict=True))
    return made


def _is_multiplied(name: str, w: Weight) -> bool:
    if isinstance(w, QuantizedWeights):
        return not w.in_blocks
    is_matrix = w.ndim >= 2 and name.endswith(".weight") and not name.endswith("conv1d.weight")
    return is_matrix and w.shape[-1] % _GROUP == 0


class Runtime:
    """One per process, `RUNTIME`, because MLX's scheduler, the thread pool and libraries are one per process.

    Holds the C++ of each package, None where it cannot be built; the bridge to MLX, once it is
    loaded, or why it could not be built; the number of threads asked for; and the warnings already printed.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        """`clock` times what a self-test compares."""
        self._device = DeviceTests(clock)
        self._sets: dict[str, KernelSet | None] = {}
        self._binding: Binding | None = None
        self._failure: BuildError | None = None
        self._num_threads: int | None = None
        self._warnings: set[str] = set()
        self._is_forked = False

    def kernels(self, package: str, weights: Mapping[str, Weight]) -> KernelOps | None:
        """The operators of a model of `package` with these `weights`; None: plain arrays.

        By TINY_LLM_KERNELS: "cpp", the package's C++, None if it cannot be built; "mlx", MLX's fused
        operators; "off", None; "auto" is cpp on a CPU and mlx on a GPU. With auto also None if a self-test
        finds it wrong or the package's `Qwen` is unwritten, and no `LayerStack` if its `stacked` is. A
        subpackage names its package. Raises UserError for a setting that does not exist or has no meaning
        here, in a forked child of a process that has computed, and with the compiler's words if the learner's
        C++ does not compile.
        """
        mode = settings.kernels_mode()
        on_cpu = mx.default_device() == mx.cpu
        if mode == "off" or (mode == "auto" and is_unwritten(package, "models.model", "Qwen.__init__")):
            return None
        if mode == "mlx" or (mode == "auto" and not on_cpu):
            name, asked_for = package.partition(".")[0], mode == "mlx"
            return MlxOps(widens=True) if on_cpu else self._device.ops(name, asked_for)
        if not on_cpu:
            raise UserError(f"{settings.VARIABLE}=cpp needs a CPU: add --device cpu, or choose auto or mlx")
        made = self._kernel_set(package.partition(".")[0])
        if made is None:
            return None
        if not can_read_model(weights):
            return UnevenCppOps(made, MlxOps(widens=True))
        return CppOps(made, has_stack=mode == "cpp" or not is_unwritten(package, "models.stack", "stacked"))

    def laid_out(self, ops: KernelOps | None, weights: dict[str, Weight]) -> dict[str, Weight]:
        """What a model's operators read fastest in place of its `weights`, which the dict loses: matrices in
        blocks, if C++ reads all of them.
        """
        is_read = isinstance(ops, CppOps) and not isinstance(ops, UnevenCppOps)
        return all_in_blocks(self.binding(), weights) if is_read else weights

    def in_blocks(self, w: Weight) -> QuantizedWeights:
        """A matrix in blocks, see `QuantizedWeights`."""
        if isinstance(w, QuantizedWeights) and w.in_blocks:
            return w
        return in_blocks(self.binding(), [w])[0]

    def delta_kernel(self, package: str, arrays: DeltaKernel) -> DeltaKernel | None:
        """What computes a gated delta net, by the rules of `kernels`; None: the recurrence in arrays.

        The C++ of `package` on a CPU, else an `MlxDelta`: `arrays` compute requests that have as many rows.
        """
        if settings.kernels_mode() == "off":
            return None
        if settings.kernels_mode() == "mlx" or mx.default_device() != mx.cpu:
            name = package.partition(".")[0]
            return MlxDelta(arrays, lambda sizes: self._device.delta_kernels(name, arrays, sizes))
        made = self._kernel_set(package.partition(".")[0])
        return None if made is None else made.gated_delta

    def verdicts(self, package: str = PACKAGES["ref"]) -> Sequence[Verdict]:
        """What the self-tests on this GPU found, made now if they were not yet; none on a CPU."""
        return self._device.verdicts(package)

    def _kernel_set(self, name: str) -> KernelSet | None:
        if name not in self._sets:
            self._sets[name] = self._checked(name)
        return self._sets[name]

    def can_run(self) -> bool:
        """Whether C++ kernels are wanted here and can be built: what decides a model's dtype on a CPU."""
        is_wanted = mx.default_device() == mx.cpu and settings.kernels_mode() not in ("mlx", "off")
        return is_wanted and self._has_binding()

    def set_num_threads(self, count: int) -> None:
        """Use `count` threads, now and whenever kernels are loaded. Raises UserError."""
        if not 1 <= count <= settings.MAX_THREADS:
            raise UserError(f"threads must be 1 to {settings.MAX_THREADS}, not {count}")
        if self._binding is not None:
            _start_threads(self._binding, count)
        self._num_threads = count

    def binding(self) -> Binding:
        """The bridge to MLX, compiled and loaded on first use, with its threads started."""
        if self._is_forked:
            raise UserError(
                "this process was forked after its parent had computed, and lacks the parent's threads: "
                'use spawn, such as multiprocessing.get_context("spawn")'
            )
        if self._binding is None:
            count = self._num_threads or settings.num_threads_wanted() or settings.usable_cores()
            made = _imported(self._bridge())
            _start_threads(made, count)
            self._binding = made
        return self._binding

    def _has_binding(self) -> bool:
        try:
            self.binding()
        except BuildError as error:
            self._warn(error)
            return False
        return True

    def _bridge(self) -> Path:
        """The compiled bridge; a build that failed is not tried again."""
        if self._failure is not None:
            raise self._failure
        try:
            return build(binding_library())
        except BuildError as error:
            self._failure = error
            raise

    def load(self, package: str, isa_name: str | None = None) -> KernelSet:
        """A package's kernels for an instruction set, by default the selected one; not tested first."""
        return self._built(package, isa_name or _copies(package)[0])[1]

    def _checked(self, name: str) -> KernelSet | None:
        if not self._has_binding():  # first: it has no learner's code, so a failure is the compiler's
            return None
        try:
            return self._first_right(name)
        except BuildError as error:
            if isinstance(error, CompileError) and name == PACKAGES["mine"]:
                raise
            self._warn(error)
            return None

    def _first_right(self, package: str) -> KernelSet | None:
        """The kernels for the selected instruction set, or for the next one that gives right results."""
        made_by_isa = (self._tested(package, name) for name in _copies(package))
        return next((made for made in made_by_isa if made is not None), None)

    def _tested(self, package: str, isa_name: str) -> KernelSet | None:
        """The kernels, if they give right results on this machine; the verdict is kept next to them."""
        path, made = self._built(package, isa_name)
        verdict = path.with_suffix(".tested")
        if not verdict.exists():
            wrong = first_wrong(made)
            if wrong is not None:
                print(
                    f"{package}: {wrong} of the {isa_name} kernels is wrong, so we use others",
                    file=sys.stderr,
                )
                return None
            with contextlib.suppress(OSError):  # if the cache is read-only we test again next time
                verdict.touch()
        return made

    def _built(self, package: str, isa_name: str) -> tuple[Path, KernelSet]:
        isa = next(isa for isa in ISAS if isa.name == isa_name)
        path, binding = build(kernel_library(_folder(package), isa)), self.binding()
        try:
            return path, binding.KernelSet(str(path))
        except ValueError as error:
            raise damaged(path, error) from None

    def _warn(self, error: BuildError) -> None:
        message = error.in_one_line()
        if message not in self._warnings:
            self._warnings.add(message)
            print(f"{message}; until then we use plain MLX, which is slow on a CPU", file=sys.stderr)

    def after_fork(self) -> None:
        """Call this in the child of a fork; it then refuses to compute if the parent has computed."""
        self._is_forked = self._is_forked or self._binding is not None or bool(self._sets)
        self._sets.clear()


def _folder(package: str) -> Path:
    folder = kernels_folder(package)
    if folder is None:
        raise UserError(f"{package} has no folder kernels: add one, or set TINY_LLM_KERNELS=off")
    return folder


def _imported(path: Path) -> Binding:
    loader = importlib.machinery.ExtensionFileLoader("_binding", str(path))
    spec = importlib.util.spec_from_file_location("_binding", path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise damaged(path, error) from None
    return cast(Binding, module)


def _start_threads(binding: Binding, count: int) -> None:
    try:
        binding.set_num_threads(count)
    except RuntimeError as error:
        raise UserError(f"{error}: ask for fewer with --threads or TINY_LLM_THREADS") from None


if os.environ.get(settings.DEVICE_VARIABLE) == "cpu":  # in every process that a command or a test starts
    mx.set_default_device(mx.cpu)
RUNTIME: Final = Runtime()
os.register_at_fork(after_in_child=RUNTIME.after_fork)
