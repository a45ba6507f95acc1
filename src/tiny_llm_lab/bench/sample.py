"""One measurement in a process of its own: `python -m tiny_llm_lab.bench.sample < spec.json`."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    Event,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    UserError,
)

from .recording import Sample, chunks_from, to_json
from .reply import reply
from .workload import Workload, build_prompts, exactly

_WARM_UP_CHUNKS: Final = 2
_WARM_UP_CHUNK_TOKENS: Final = 128


@dataclass(frozen=True)
class Spec:
    """All that decides a measurement; `arrivals` None means at once, to learn how fast the machine is."""

    model: str
    solution: str
    device: str | None
    dtype: str | None
    prefill_step: int
    batch_size: int
    repeat: int
    workload: Workload
    arrivals: tuple[float, ...] | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Spec":
        value = json.loads(text)
        arrivals = value.pop("arrivals")
        workload = Workload(**value.pop("workload"))
        return Spec(**value, workload=workload, arrivals=None if arrivals is None else tuple(arrivals))


def main() -> int:
    """Measure what stdin asks for."""
    return reply(lambda text: measure(Spec.from_json(text)))


def measure(spec: Spec) -> dict[str, Any]:
    """Load, warm up, run the workload once."""
    loaded = load(spec.model, spec.solution, spec.device, spec.dtype)
    limit = loaded.model.config.max_position_embeddings
    if spec.workload.longest > limit:
        raise UserError(f"a request of {spec.workload.longest} tokens; the model takes {limit}: shorten it")
    _warm_up(loaded, spec)
    arrivals = spec.arrivals or (0.0,) * len(spec.workload.kinds())
    prompts = build_prompts(spec.workload, arrivals, loaded.checkpoint.tokenizer.encode)
    events, completions = _serve(loaded, spec, prompts)
    _check(prompts, completions)
    device = mx.default_device()
    facts = {"device": str(device.type).split(".")[-1], "dtype": str(loaded.checkpoint.dtype).split(".")[-1]}
    return to_json(_sample(spec, prompts, events, completions)) | {"facts": facts}


def _serve(loaded: Loaded, spec: Spec, prompts: list[Prompt]) -> tuple[list[Event], list[Completion]]:
    # Token times need no extra synchronisation: a token is a Python int, so its step has been computed.
    events: list[Event] = []
    completions = loaded.solution.batch_generate(
        loaded.model,
        loaded.checkpoint.tokenizer,
        prompts,
        max_seq_len=spec.workload.longest,
        batch_size=spec.batch_size,
        prefill_step=spec.prefill_step,
        on_event=events.append,
    )
    return events, completions


def _warm_up(loaded: Loaded, spec: Spec) -> None:
    """Compile kernels and touch memory with a small run of the same kind."""
    length = min(_WARM_UP_CHUNKS * min(spec.prefill_step, _WARM_UP_CHUNK_TOKENS), spec.workload.long_tokens)
    encode, answer = loaded.checkpoint.tokenizer.encode, SamplingParams(max_tokens=4, ignore_eos=True)
    short = build_prompts(spec.workload, [0.0] * len(spec.workload.kinds()), encode)[0]
    long = exactly(encode, "Warm up. ", "artificial intelligence ", length)
    _serve(loaded, spec, [Prompt(short.content, answer), Prompt(long, answer)])


def _check(prompts: list[Prompt], completions: list[Completion]) -> None:
    """Every request did exactly the work that was asked for; otherwise runs cannot be compared."""
    if len(completions) != len(prompts):
        raise UserError(f"the solution returned {len(completions)} completions for {len(prompts)} prompts")
    for idx, (prompt, done) in enumerate(zip(prompts, completions, strict=True)):
        wanted, got = prompt.sampling.max_tokens, len(done.timing.token_s)
        if done.error or done.num_prompt_tokens != len(prompt.content) or got != wanted:
            reason = done.error or f"answered {got} tokens instead of {wanted}"
            raise UserError(f"request {idx} of the workload: {reason}")


def _sample(spec: Spec, prompts: list[Prompt], events: list[Event], completions: list[Completion]) -> Sample:
    # The run's own start: what its clock said when a request of arrival 0 arrived.
    start_s = completions[0].timing.arrival_s - prompts[0].arrival_s
    arrivals = [prompt.arrival_s for prompt in prompts]
    timed = [event for event in events if not isinstance(event, DoneEvent)]
    timings = [
        Timing(arrival_s, tuple(time_s - start_s for time_s in done.timing.token_s))
        for done, arrival_s in zip(completions, arrivals, strict=True)
    ]
    prefills = []
    for event in timed:
        if isinstance(event, PrefillEvent):
            end_s = event.time_s - start_s
            # The last chunk also computes the first token, in part after its event: MLX is lazy.
            if event.num_computed_tokens == event.num_prompt_tokens:
                end_s = max(end_s, timings[event.prompt_idx].token_s[0])
            prefills.append((event.prompt_idx, event.num_computed_tokens, event.time_s - start_s, end_s))
    return Sample(
        prefill_step=spec.prefill_step,
        repeat=spec.repeat,
        kinds=tuple(spec.workload.kinds()),
        timings=tuple(timings),
        chunks=chunks_from(prefills, [event.time_s - start_s for event in timed], arrivals),
    )


if __name__ == "__main__":
    sys.exit(main())
