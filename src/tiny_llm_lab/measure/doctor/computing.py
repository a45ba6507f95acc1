"""The checks that load kernels and compute; run them in a process that may crash."""

from collections.abc import Iterator
from typing import Final

import mlx.core as mx

from tiny_llm_lab.measure.corpus.question import ANSWER, QUESTION
from tiny_llm_lab.measure.doctor.finding import Finding, findings_of
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO_BITS
from tiny_llm_lab.runtime.native.compiling.isa import selected_isa
from tiny_llm_lab.runtime.native.self_test import first_wrong
from tiny_llm_lab.runtime.native.settings import kernels_mode
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.types import SamplingParams, TokenEvent
from tiny_llm_lab.types.packages import PACKAGES

_SETS: Final = {"cpp": "C++ kernels", "mlx": "MLX's fused operators", "off": "plain MLX operators"}
_EXACT: Final = (
    "bit for bit: answers never depend on chunks, the batch or the schedule, nor do a hybrid model's states"
)
_ROUNDED: Final = (
    "within rounding: MLX picks its kernels by the number of rows, so nearly tied tokens may swap if "
    "chunks, batch or schedule change; a hybrid model's prompts round by where a block of 64 tokens begins"
)
_GRID: Final = {
    True: "--chunk-grid does not change answers; chunk lengths repeat",
    False: "--chunk-grid makes chunk lengths repeat, and with them MLX's choice of kernels; a prompt's last "
    "chunk and the size of a decode batch still vary, so answers are equal only within rounding",
}


def examine(_: None) -> list[Finding]:
    """Whether the kernels are right, which of them run, the default model's answer, and what we promise."""
    named = {"C++ self-test": _cpp_self_test, "GPU self-test": _gpu_self_tests, "kernels": _model}
    return [finding for name, examination in named.items() for finding in findings_of(name, examination)]


def _cpp_self_test() -> Iterator[Finding]:
    """Run again, whatever the last one found."""
    name, mode = "C++ self-test", kernels_mode()
    if mx.default_device() != mx.cpu or mode in ("mlx", "off"):
        yield Finding(name, True, "skipped, because this machine does not use the C++ kernels")
        return
    wrong = first_wrong(native.load(PACKAGES["ref"]))
    says = "every operator agrees with MLX" if wrong is None else f"{wrong} is wrong"
    yield Finding(name, wrong is None, says, "set another TINY_LLM_ISA, and open an issue with this page")


def _gpu_self_tests() -> Iterator[Finding]:
    """Of MLX's fused operators and of our Metal kernels: kept, or made now."""
    if mx.default_device() == mx.gpu and kernels_mode() != "off":
        for verdict in native.verdicts():
            cure = "nothing to do, we use others instead; open an issue with this page"
            yield Finding("GPU self-test", verdict.is_right, f"{verdict.subject}: {verdict.says}", cure)


def _model() -> Iterator[Finding]:
    loaded, mode = load(ModelSettings()), kernels_mode()
    used = "off" if loaded.model.ops is None else loaded.model.ops.name
    on_cpu, isa = mx.default_device() == mx.cpu, f" for {selected_isa().name}" if used == "cpp" else ""
    why = f"{native.VARIABLE}={mode}" + (f", on a {'CPU' if on_cpu else 'GPU'}" if mode == "auto" else "")
    is_wanted = used == mode or (mode == "auto" and used != "off")
    says = f"{_SETS[used]}{isa} ({why})"
    yield Finding("kernels", is_wanted, says, "fix the other lines with a ✗, then run this again")
    yield _answer(loaded)
    if isinstance(tokenizer := loaded.checkpoint.tokenizer, CheckpointTokenizer):
        facts = tokenizer.template_facts
        yield Finding("chat template", not facts.complaint, facts.line(), "fetch the checkpoint again")
    is_exact = used == "cpp"
    yield Finding("equality", True, _EXACT if is_exact else _ROUNDED)
    yield Finding("chunk grid", True, _GRID[is_exact])
    other = "; with 8 prompts are faster and answers less exact" if is_exact else ""
    yield Finding("activations", True, f"of {AUTO_BITS} bits for 4- and 8-bit weights{other}")


def _answer(loaded: Loaded) -> Finding:
    tokenizer, sampling = loaded.checkpoint.tokenizer, SamplingParams(max_tokens=32)
    prompt = as_chat(tokenizer, QUESTION)
    events = loaded.solution.stream_generate(loaded.model, tokenizer, prompt, sampling)
    answer = "".join(event.text for event in events if isinstance(event, TokenEvent))
    is_known = answer == ANSWER
    says = "the default model gives its known answer" if is_known else f"{answer!r} is not {ANSWER!r}"
    cure = f"try {native.VARIABLE}=off; if that helps, open an issue with this page"
    return Finding("answer", is_known, says, cure)
