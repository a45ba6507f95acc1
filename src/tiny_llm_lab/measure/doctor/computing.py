"""The examinations that load kernels and compute; to be made in a process that may crash."""

from collections.abc import Iterator
from typing import Final

import mlx.core as mx

from tiny_llm_lab.measure.corpus.question import ANSWER, QUESTION
from tiny_llm_lab.measure.doctor.finding import Finding, findings_of
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling.isa import selected_isa
from tiny_llm_lab.runtime.native.self_test import first_wrong
from tiny_llm_lab.runtime.native.settings import kernels_mode
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.types import SamplingParams, TokenEvent
from tiny_llm_lab.types.packages import PACKAGES

_SETS: Final = {"cpp": "C++ kernels", "mlx": "MLX's fused operators", "off": "plain MLX operators"}
_EXACT: Final = "bit for bit: no answer depends on chunks, on the batch or on the schedule"
_ROUNDED: Final = (
    "within rounding: MLX has other kernels for other numbers of rows, so nearly tied tokens may swap when "
    "chunks, batch or schedule change"
)
_GRID: Final = {
    True: "--chunk-grid changes no answer; the lengths of chunks repeat",
    False: "--chunk-grid makes the lengths of chunks repeat, and with them MLX's choice of kernels; the last "
    "chunk of a prompt and the size of a decode batch still vary, so answers stay equal within rounding only",
}


def examine(_: None) -> list[Finding]:
    """Whether the kernels are right, which of them run, what the default model answers, what is promised."""
    named = {"C++ self-test": _cpp_self_test, "GPU self-test": _gpu_self_tests, "kernels": _model}
    return [finding for name, examination in named.items() for finding in findings_of(name, examination)]


def _cpp_self_test() -> Iterator[Finding]:
    """Made again, whatever an earlier one has found."""
    name, mode = "C++ self-test", kernels_mode()
    if mx.default_device() != mx.cpu or mode in ("mlx", "off"):
        yield Finding(name, True, "not made: the C++ kernels are not used here")
        return
    wrong = first_wrong(native.load(PACKAGES["ref"]))
    says = "every operator computes what MLX computes" if wrong is None else f"{wrong} is wrong"
    yield Finding(name, wrong is None, says, "choose another TINY_LLM_ISA, and open an issue with this page")


def _gpu_self_tests() -> Iterator[Finding]:
    """Of MLX's fused operators and of our Metal kernels: kept, or made now."""
    if mx.default_device() == mx.gpu and kernels_mode() != "off":
        for verdict in native.verdicts():
            cure = "nothing to do, others are used instead; open an issue with this page"
            yield Finding("GPU self-test", verdict.is_right, f"{verdict.subject}: {verdict.says}", cure)


def _model() -> Iterator[Finding]:
    loaded, mode = load(ModelSettings()), kernels_mode()
    used = "off" if loaded.model.ops is None else loaded.model.ops.name
    on_cpu, isa = mx.default_device() == mx.cpu, f" for {selected_isa().name}" if used == "cpp" else ""
    why = f"{native.VARIABLE}={mode}" + (f", on a {'CPU' if on_cpu else 'GPU'}" if mode == "auto" else "")
    is_wanted = used == mode or (mode == "auto" and used != "off")
    says = f"{_SETS[used]}{isa} ({why})"
    yield Finding("kernels", is_wanted, says, "mend what else has a ✗, then run this again")
    yield _answer(loaded)
    is_exact = used == "cpp"
    yield Finding("equality", True, _EXACT if is_exact else _ROUNDED)
    yield Finding("chunk grid", True, _GRID[is_exact])


def _answer(loaded: Loaded) -> Finding:
    tokenizer, sampling = loaded.checkpoint.tokenizer, SamplingParams(max_tokens=32)
    prompt = as_chat(tokenizer, QUESTION)
    events = loaded.solution.stream_generate(loaded.model, tokenizer, prompt, sampling)
    said = "".join(event.text for event in events if isinstance(event, TokenEvent))
    is_known = said == ANSWER
    says = "the default model gives its known answer" if is_known else f"{said!r} is not {ANSWER!r}"
    cure = f"try {native.VARIABLE}=off; if that helps, open an issue with this page"
    return Finding("answer", is_known, says, cure)
