"""What is measured: a solution and the engines beside it, each in fresh processes."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tiny_llm_lab.bench import sample
from tiny_llm_lab.bench.child import run_module
from tiny_llm_lab.bench.peers import PEERS, PeerSpec
from tiny_llm_lab.bench.run import Request, Run
from tiny_llm_lab.bench.sample import Schedule, Spec
from tiny_llm_lab.types import ModelConfig, UserError

from .rates import rates_of

MLX_LM: Final = "mlx-lm"
BASELINES: Final = (MLX_LM, *PEERS)
# A CPU computes two or three tokens per second with mlx-lm; its rate hardly depends on these lengths.
SLOW_PROMPT_LEN: Final = 16
SLOW_OUTPUT_LEN: Final = 8


@dataclass
class BenchTarget:
    """One engine in one variant, and what its runs have shown so far."""

    name: str
    variant: str
    module: str
    spec: Spec | PeerSpec
    threads: int
    prompt_len: int
    output_len: int
    prepare: str | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} {self.variant}".strip()

    def prepare_files(self) -> None:
        """Make what the runs read, so that no run is timed while it is being made."""
        if self.prepare is not None:
            run_module(self.prepare, self.spec.to_json())

    def run(self, repeat: int) -> None:
        """Measure once more, in a new process. Raises what `run_module` raises."""
        # OMP_NUM_THREADS as well: no engine may start more threads than the others.
        environment = {"OMP_NUM_THREADS": str(self.threads), "TINY_LLM_THREADS": str(self.threads)}
        value = run_module(self.module, replace(self.spec, seed=repeat).to_json(), environment)
        if "requests" in value:
            rates = asdict(rates_of(Run.from_json(value)))
            value = rates | {key: value[key] for key in ("weights_bytes", "kv_bytes_per_token", "facts")}
        self.samples.append(value)


def at_once(batch: int, prompt_len: int, output_len: int) -> tuple[Request, ...]:
    """Equal requests that are all there from the start."""
    return (Request("early", prompt_len, output_len),) * batch


def our_targets(ours: Spec, threads: int) -> list[BenchTarget]:
    """The solution that is measured; if it rounds its activations, then also as it is without that."""
    first = _solution(ours, "", threads)
    if ours.activation_bits is None:
        return [first]
    return [first, _solution(replace(ours, activation_bits=None), "exact activations", threads)]


def baseline_targets(
    name: str, ours: Spec, config: ModelConfig, threads: int, prompt_len: int, output_len: int
) -> list[BenchTarget]:
    """Every variant of the baseline `name`; raises UserError, with the cure, when it is not installed."""
    batch = ours.batch_size
    if name == MLX_LM:
        requests = at_once(batch, prompt_len, output_len)
        spec = replace(ours, solution=MLX_LM, requests=requests, activation_bits=None)
        return [_solution(replace(spec, schedule=Schedule(prompt_len)), "", threads)]
    peer = PEERS[name]
    if missing := peer.missing():
        raise UserError(missing)
    return [
        BenchTarget(
            name,
            variant,
            peer.module,
            PeerSpec(config, variant, prompt_len, output_len, batch, threads),
            threads,
            prompt_len,
            output_len,
            peer.prepare,
        )
        for variant in peer.variants
    ]


def _solution(spec: Spec, variant: str, threads: int) -> BenchTarget:
    request = spec.requests[0]
    return BenchTarget(
        spec.solution, variant, sample.MODULE, spec, threads, request.prompt_len, request.max_tokens
    )
