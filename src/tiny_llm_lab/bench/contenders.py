"""Who is measured: our solution and its peers, one fresh process each, taking turns."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tiny_llm_lab.types import ModelConfig, UserError

from .child import run_module
from .engine_sample import EngineSpec
from .peers import PEERS, PeerSpec

ENGINE_MODULE: Final = "tiny_llm_lab.bench.engine_sample"
MLX_LM: Final = "mlx-lm"
BASELINES: Final = (MLX_LM, *PEERS)
# A CPU computes two or three tokens per second with mlx-lm; its rate hardly depends on these lengths.
SLOW_PROMPT_LEN: Final = 16
SLOW_OUTPUT_LEN: Final = 8


@dataclass
class Contender:
    """One engine in one variant, and what its runs have shown so far."""

    name: str
    variant: str
    module: str
    spec: EngineSpec | PeerSpec
    threads: int
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
        # Whatever threads an engine starts by itself, it shall start no more than the others may.
        environment = {"OMP_NUM_THREADS": str(self.threads), "TINY_LLM_THREADS": str(self.threads)}
        spec = replace(self.spec, seed=repeat)
        self.samples.append(run_module(self.module, spec.to_json(), environment))


def our_contenders(ours: EngineSpec, threads: int) -> list[Contender]:
    """The solution that is measured; if it rounds its activations, then also as it is without that."""
    first = Contender(ours.solution, "", ENGINE_MODULE, ours, threads)
    if ours.activation_bits is None:
        return [first]
    exact = replace(ours, activation_bits=None)
    return [first, Contender(ours.solution, "exact activations", ENGINE_MODULE, exact, threads)]


def peer_contenders(
    name: str, ours: EngineSpec, config: ModelConfig, threads: int, prompt_len: int, output_len: int
) -> list[Contender]:
    """Every variant of the baseline `name`; raises UserError, with the cure, when it is not installed."""
    if name == MLX_LM:
        spec = replace(
            ours, solution=MLX_LM, prompt_len=prompt_len, output_len=output_len, activation_bits=None
        )
        return [Contender(name, "", ENGINE_MODULE, replace(spec, prefill_step=prompt_len), threads)]
    peer = PEERS[name]
    if missing := peer.missing():
        raise UserError(missing)
    return [
        Contender(
            name,
            variant,
            peer.module,
            PeerSpec(config, variant, prompt_len, output_len, ours.batch, threads),
            threads,
            peer.prepare,
        )
        for variant in peer.variants
    ]


def rounds(fighters: list[Contender], repeats: int) -> Iterator[tuple[int, Contender]]:
    """(repeat, contender): every contender once per repeat, so that a machine that drifts favours nobody.

    Looks at `fighters` anew for every turn: who is taken out of the list has no turn any more.
    """
    for repeat in range(repeats):
        for fighter in list(fighters):
            if fighter in fighters:
                yield repeat, fighter
