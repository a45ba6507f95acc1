"""The input of every experiment: an engine's package, a model, sizes and numbers of rounds."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from benchmarks.harness import Variant, time_variants
from tiny_llm_lab.measure.bench.flags import random_bits
from tiny_llm_lab.measure.bench.spec import Spec, at_once, prompts_of
from tiny_llm_lab.runtime.console.field_flags import at_least, at_least_one, flag, given_fields
from tiny_llm_lab.runtime.steps.runner import Step, StepRunner
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.model_options import load_from_args, model_name
from tiny_llm_lab.serving.options.sampling_options import shown_sampling
from tiny_llm_lab.types import Checkpoint, EngineOptions, Prompt, SchedulerConfig, UserError

BLOCK_SIZE: Final = 16
_NEEDED: Final = ("Engine", "BatchGenerator", "Scheduler", "PrefixCache", "StepLayout", "StepTimeModel")


@dataclass(frozen=True)
class BenchConfig:
    """`llm` is the solution's package, `model` what it built of `checkpoint`; the rest are flags.

    `spec` names the same model for the experiments that run in fresh processes.
    """

    llm: Any
    model: Any
    checkpoint: Checkpoint
    spec: Spec
    rounds: int = flag(9, "number of rounds of interleaved steps", at_least_one)
    repeats: int = flag(1, "number of rounds of interleaved runs under load", at_least_one)
    context: int = flag(512, "stored tokens of a request that decodes", at_least_one)
    streams: int = flag(8, "number of requests that decode", at_least_one)
    chunk: int = flag(128, "tokens in a chunk", at_least_one)
    memory_tokens: int = flag(
        16_384, "tokens in the prompt for the memory experiment; fewer if they don't fit", at_least_one
    )
    seed: int = flag(0, "seed of tokens and arrivals", at_least(0))

    @classmethod
    def from_args(cls, args: Namespace) -> "BenchConfig":
        """Loads the model; raises UserError for a solution without an engine."""
        if args.solution == "mlx-lm":
            raise UserError(
                "mlx-lm has no Engine: choose --solution ref or mine, or compare with --experiment peers"
            )
        name = random_bits(model_name(args))
        loaded = load_from_args(args, name)
        llm = TaskNames(cast(ModuleType, loaded.solution))  # not every part is exported
        missing = [name for name in _NEEDED if not hasattr(llm, name)]
        if missing:
            raise UserError(f"solution {args.solution!r} has no {missing[0]}: choose --solution ref")
        sizes = given_fields(args, cls)
        own = {"threads": args.threads or 0, "seed": sizes.get("seed", 0)}
        spec = Spec.from_args(args, name, activation_bits=loaded.activation_bits, **own).drawn(args)
        return cls(llm, loaded.model, loaded.checkpoint, spec, **sizes)

    @property
    def sampling(self) -> str:
        """How engines draw, for titles; a step without an engine takes the likeliest tokens."""
        return shown_sampling(self.spec.sampling)

    @property
    def limit(self) -> int:
        """The most tokens of one request."""
        return int(self.model.config.max_position_embeddings)

    def asked(self, streams: int, length: int) -> list[Prompt]:
        """`streams` prompts of `context` tokens, with answers up to `length`, drawn as the model asks for."""
        requests = at_once(streams, self.context, length - self.context)
        return prompts_of(requests, self.model.config.vocab_size, self.seed, self.spec.sampling)

    def runner(self, steps: Sequence[Step]) -> StepRunner:
        """Repeats `steps` of this model; a context manager."""
        return StepRunner(self.llm, self.model, steps, self.seed, block_size=BLOCK_SIZE)

    def time_steps(self, steps: Mapping[str, Sequence[Step]]) -> dict[str, tuple[float, ...]]:
        """Seconds of each variant, which is a few steps one after another."""
        with self.runner([step for each in steps.values() for step in each]) as runner:
            variants = [
                Variant(name, partial(lambda each: [runner.run(step) for step in each], each))
                for name, each in steps.items()
            ]
            return time_variants(variants, self.rounds)

    def decoding_engine(self, streams: int, length: int, **others: Any) -> Any:
        """An engine with `streams` requests that all decode at `context`, up to `length` tokens."""
        self.require_room(length, "--context and --rounds")
        config = SchedulerConfig(
            max_num_batched_tokens=streams * self.context, max_num_seqs=streams, max_model_len=length
        )
        num_blocks = streams * -(-length // BLOCK_SIZE)
        options = EngineOptions(num_blocks, BLOCK_SIZE, enable_prefix_caching=False, **others)
        engine = self.llm.Engine(self.model, self.checkpoint.tokenizer, config, options)
        for number, prompt in enumerate(self.asked(streams, length)):
            engine.add(str(number), prompt.content, prompt.sampling)
        engine.step()  # all prompts in one step, so that all requests have equally many tokens
        return engine

    def require_room(self, num_tokens: int, what: str) -> None:
        """Raise UserError unless a request of `num_tokens` tokens fits."""
        if num_tokens > self.limit:
            raise UserError(f"{what}: {num_tokens} tokens are more than the model's {self.limit}: lower it")
