"""OpenVINO GenAI, in a python of its own, because it pins other versions of our packages."""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.random_file import find_or_write
from benchmarks.peers.torch_cpu import model_fields, text_model
from tiny_llm_lab.measure.bench.peer import WARM_UP_TOKENS, PeerTimes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import ModelConfig, UserError

PYTHON_VARIABLE: Final = "TINY_LLM_OPENVINO_PYTHON"
_PROGRAM: Final = Path(__file__).with_name("openvino_program.py")
_KV_BYTES: Final = 1  # it keeps keys and values in 8 bits unless told not to
# How far the times that OpenVINO reports may be from what the clock says. Its mean times per token would be
# further away: with several streams they are per token of all of them.
_SLACK: Final = 0.1
_SLACK_S: Final = 0.05
# Reports to other hosts are off in what it takes for CI, and there is nothing to download.
_ENVIRONMENT: Final = {"CI": "true", "HF_HUB_OFFLINE": "1"}


def formats(bits: int) -> tuple[str, ...]:
    """Its weights for a model of `bits`; packed ones as they come, with 8-bit activations, and without."""
    if bits == 16:
        return ("bf16",)
    packed = "int4" if bits <= 4 else "int8"
    return (packed, f"{packed} bfloat16")


def measure(spec: Spec, config: ModelConfig) -> PeerTimes:
    """All prompts in one forward pass, then all of them a token at a time, by `LLMPipeline`."""
    weights, *options = spec.variant.split()
    shape = {"model_type": text_model(config), **model_fields(config)}
    folder = find_or_write(
        "openvino",
        config,
        weights,
        lambda path: _ask("make", folder=str(path), shape=shape, weights=weights),
    )
    settings = {"INFERENCE_NUM_THREADS": spec.threads}
    if "bfloat16" in options:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # activations stay what they are
    request = spec.requests[0]
    prompt_len = request.prompt_len
    answer = _ask(
        "measure",
        folder=str(folder),
        lengths=[min(prompt_len, WARM_UP_TOKENS), prompt_len, request.max_tokens],
        streams=len(spec.requests),
        vocab_size=config.vocab_size,
        seed=spec.seed,
        options=settings,
    )
    num_numbers = sum(math.prod(shape) for _, shape in parameter_shapes(config))
    bytes_per_weight = (folder / "openvino_model.bin").stat().st_size / num_numbers
    return _times_of(answer, request.max_tokens - 1, bytes_per_weight)


def _ask(do: str, **asked: object) -> Any:
    """The program's answer; raises UserError with its last line if it fails."""
    python = Path(os.environ[PYTHON_VARIABLE]).expanduser()
    command = [str(python), "-I", str(_PROGRAM)]  # -I: without our PYTHONPATH
    question, environment = json.dumps({"do": do, **asked}), os.environ | _ENVIRONMENT
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise UserError(f"cannot run {python} ({error.strerror}): set {PYTHON_VARIABLE} again") from None
    if done.returncode:
        said = (done.stderr.strip() or "it says nothing").splitlines()[-1]
        raise UserError(f"{python} ended with {done.returncode}: {said} (CONTRIBUTING.md says what it needs)")
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise UserError(f"{python} answers no JSON: set {PYTHON_VARIABLE} to a python") from None


def _times_of(answer: Any, num_steps: int, bytes_per_weight: float) -> PeerTimes:
    """The times, if they are complete and add up to what the clock says."""
    try:
        took_s, prefill_s = float(answer["took_s"]), float(answer["prefill_s"])
        steps_s = [float(step_s) for step_s in answer["steps_s"]]
        version = str(answer["version"])
    except (KeyError, TypeError, ValueError):
        raise UserError("OpenVINO answers without its times: install another version") from None
    told_s = prefill_s + sum(steps_s)
    if len(steps_s) != num_steps or not math.isclose(told_s, took_s, rel_tol=_SLACK, abs_tol=_SLACK_S):
        told, was = f"{len(steps_s)} steps in {told_s:.3f} s", f"{num_steps} in {took_s:.3f} s"
        raise UserError(f"OpenVINO reports {told} where it computed {was}: install another version")
    return PeerTimes([prefill_s], steps_s, bytes_per_weight, _KV_BYTES, version)
