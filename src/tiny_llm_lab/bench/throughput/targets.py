"""What is measured: a solution and the engines beside it, each in fresh processes."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tiny_llm_lab.bench import sample
from tiny_llm_lab.bench.child import run_module
from tiny_llm_lab.bench.peers import PEERS
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.types import UserError

from .rates import rates_of

MLX_LM: Final = "mlx-lm"
BASELINES: Final = (MLX_LM, *PEERS)
# A CPU computes two or three tokens per second with mlx-lm; its rate hardly depends on these lengths.
SLOW_PROMPT_LEN: Final = 16
SLOW_OUTPUT_LEN: Final = 8


@dataclass
class BenchTarget:
    """One engine in one variant, and what its runs have shown so far."""

    spec: Spec
    module: str = sample.MODULE
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.spec.solution} {self.spec.variant}".strip()

    def run(self, repeat: int) -> None:
        """Measure once more, in a new process. Raises what `run_module` raises."""
        # OMP_NUM_THREADS as well: no engine may start more threads than the others.
        threads = str(self.spec.threads)
        environment = {"OMP_NUM_THREADS": threads, "TINY_LLM_THREADS": threads}
        value = run_module(self.module, replace(self.spec, seed=repeat).to_json(), environment)
        kept = {key: value[key] for key in ("weights_bytes", "kv_bytes_per_token", "facts")}
        self.samples.append(asdict(rates_of(Run.from_json(value))) | kept)


def our_targets(ours: Spec) -> list[BenchTarget]:
    """The solution that is measured; if it rounds its activations, then also as it is without that."""
    if ours.activation_bits is None:
        return [BenchTarget(ours)]
    exact = replace(ours, activation_bits=None, variant="exact activations")
    return [BenchTarget(ours), BenchTarget(exact)]


def baseline_targets(name: str, ours: Spec, prompt_len: int, output_len: int) -> list[BenchTarget]:
    """Every variant of the baseline `name`; raises UserError, with the cure, when it is not installed."""
    spec = replace(
        ours,
        solution=name,
        requests=at_once(ours.batch_size, prompt_len, output_len),
        schedule=Schedule(prompt_len),
        activation_bits=None,
        async_scheduling=None,
    )
    if name == MLX_LM:
        return [BenchTarget(spec)]
    peer = PEERS[name]
    if missing := peer.missing():
        raise UserError(missing)
    return [BenchTarget(replace(spec, variant=variant), peer.module) for variant in peer.variants]
