"""Engines that have a python of their own, because they pin other versions of our packages."""

import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.random_file import find_or_write
from benchmarks.peers.torch_cpu import model_fields, text_model
from tiny_llm_lab.measure.bench.peer import WARM_UP_TOKENS, Peer, PeerTimes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import ModelConfig, UserError

_PROGRAM: Final = Path(__file__).with_name("program.py")
# How far the times that an engine reports may be from what the clock says. OpenVINO's mean times per token
# would be further away: with several streams they are per token of all of them.
_SLACK: Final = 0.1
_SLACK_S: Final = 0.05
# Reports to other hosts are off in what it takes for CI, and there is nothing to download.
_ENVIRONMENT: Final = {"CI": "true", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class OtherPython:
    """An engine whose functions `make` and `measure` are in `ENGINE_program.py`.

    `formats` returns its variants for a number of bits: the format of the weights, then options. `kv_bytes`
    is the size of a stored key's or value's number by default. `weights` is the model's file of weights.
    `write` makes the model in this process, with gguf; without it the engine's program makes it.
    """

    name: str
    packages: str
    formats: Callable[[int], tuple[str, ...]]
    kv_bytes: int
    weights: str = ""
    write: Callable[[ModelConfig, str], Path] | None = None

    @property
    def engine(self) -> str:
        return self.name.removesuffix(".cpp")

    @property
    def variable(self) -> str:
        """The environment variable that names the python."""
        return f"TINY_LLM_{self.engine.upper()}_PYTHON"

    @property
    def peer(self) -> Peer:
        requires = ("gguf",) if self.write else ()
        return Peer(self.measure, requires, self.packages, self.formats, self.variable)

    def measure(self, spec: Spec, config: ModelConfig) -> PeerTimes:
        """All prompts, together or one by one, then all of them a token at a time."""
        weights, *options = spec.variant.split()
        path = self.write(config, weights) if self.write else self._made(spec, config, weights)
        request = spec.requests[0]
        answer = self._ask(
            "measure",
            path=str(path),
            lengths=[min(request.prompt_len, WARM_UP_TOKENS), request.prompt_len, request.max_tokens],
            streams=len(spec.requests),
            vocab_size=config.vocab_size,
            seed=spec.seed,
            threads=spec.threads,
            options=options,
        )
        num_numbers = sum(math.prod(shape) for _, shape in parameter_shapes(config))
        return self._times(answer, request.max_tokens - 1, (path / self.weights).stat().st_size / num_numbers)

    def _made(self, spec: Spec, config: ModelConfig, weights: str) -> Path:
        shape = {"model_type": text_model(config), **model_fields(config)}
        tokenizer = str(find_folder(spec.model))

        def make(path: Path) -> None:
            self._ask("make", folder=str(path), shape=shape, weights=weights, tokenizer=tokenizer)

        return find_or_write(self.engine, config, weights, make)

    def _ask(self, do: str, **asked: object) -> Any:
        """The program's answer; raises UserError with its last line if it fails."""
        python = Path(os.environ[self.variable]).expanduser()
        command = [str(python), "-I", str(_PROGRAM)]  # -I: without our PYTHONPATH
        question = json.dumps({"engine": self.engine, "do": do, **asked})
        environment = os.environ | _ENVIRONMENT
        try:
            done = subprocess.run(command, input=question, capture_output=True, text=True, env=environment)
        except OSError as error:
            raise UserError(f"cannot run {python} ({error.strerror}): set {self.variable} again") from None
        if done.returncode:
            said = (done.stderr.strip() or "it says nothing").splitlines()[-1]
            raise UserError(
                f"{python} ended with {done.returncode}: {said} (CONTRIBUTING.md says what it needs)"
            )
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise UserError(f"{python} answers no JSON: set {self.variable} to a python") from None

    def _times(self, answer: Any, num_steps: int, bytes_per_weight: float) -> PeerTimes:
        """The times, if they are complete and add up to what the clock says."""
        try:
            took_s, version = float(answer["took_s"]), str(answer["version"])
            prefill_s, steps_s = (
                [float(each_s) for each_s in answer[key]] for key in ("prefill_s", "steps_s")
            )
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{self.name} answers without its times: install another version") from None
        told_s = sum(prefill_s + steps_s)
        if len(steps_s) != num_steps or not math.isclose(told_s, took_s, rel_tol=_SLACK, abs_tol=_SLACK_S):
            told, was = f"{len(steps_s)} steps in {told_s:.3f} s", f"{num_steps} in {took_s:.3f} s"
            raise UserError(f"{self.name} reports {told} where it computed {was}: install another version")
        return PeerTimes(prefill_s, steps_s, bytes_per_weight, self.kv_bytes, version)
