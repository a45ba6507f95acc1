"""Trains the default model: `python -m recipes.default_model.train --out DIR [--hybrid] [--resume]`."""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tiny_llm_lab.runtime.models.registry import DEFAULT, SHIPPED

from .data import REPEATED, Batch, Mix, make_batch
from .encoding import CorpusEncoder
from .hybrid import HYBRID_SHAPE, Hybrid, start_from_default
from .induction_init import init_induction_heads
from .model import DEFAULT_SHAPE, Qwen3
from .tokenizer import train_tokenizer

SEED: Final = 2026
THREADS: Final = 2
SHARPNESS_LR_SCALE: Final = 4.0  # the gains of QK norm go from 1.5 to about 3; the others hardly move
SAVE_EVERY_S: Final = 180.0
LOG_EVERY: Final = 50


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum; the rate goes in a straight line from `rate` to `end_rate`."""

    name: str
    steps: int
    rows: int
    length: int
    rate: float
    end_rate: float
    mix: Mix


# Words of no list, in questions as people type them, many of them without a name.
FRESH_SHORT: Final = Mix(0.05, 0.85, 0.03, fresh_facts=0.9, nameless=0.75, position_gaps=0.2)
FRESH_MIDDLE: Final = Mix(0.08, 0.80, 0.04, fresh_facts=0.8, nameless=0.7, position_gaps=0.2)
FRESH_LONG: Final = Mix(0.15, 0.68, 0.05, fresh_facts=0.4, position_gaps=0.5)
FRESH_FULL: Final = Mix(0.10, 0.72, 0.05, fresh_facts=0.4)
# Answers that have a form: JSON, calls of functions.
FORMS_SHORT: Final = Mix(0.10, 0.75, 0.04, fresh_facts=0.6, nameless=0.7, position_gaps=0.2, forms=0.7)
FORMS_MIDDLE: Final = Mix(0.10, 0.78, 0.05, fresh_facts=0.4, position_gaps=0.3, forms=0.65)
FORMS_FULL: Final = Mix(0.10, 0.72, 0.05, fresh_facts=0.4, forms=0.3)
FORMS_LAST: Final = Mix(0.10, 0.72, 0.05, fresh_facts=0.5, forms=0.4)

STAGES: Final = (
    Stage("warm up", 150, 24, 96, 1e-5, 1.5e-3, Mix(0.40, 0.42)),
    Stage("short", 900, 24, 96, 1.5e-3, 1.5e-3, Mix(0.35, 0.47)),
    Stage("middle", 1140, 16, 256, 1.5e-3, 1.5e-3, Mix(0.25, 0.55, 0.03, position_gaps=0.3)),
    Stage("long", 393, 10, 512, 1.5e-3, 1.38e-3, Mix(0.20, 0.60, 0.05, position_gaps=0.4)),
    Stage("full", 800, 4, 2048, 1.2e-3, 1e-4, Mix(0.12, 0.68, 0.05)),
    Stage("fresh, warm up", 150, 24, 128, 1e-5, 1.5e-3, FRESH_SHORT),
    Stage("fresh, short", 1600, 24, 128, 1.5e-3, 1.5e-3, FRESH_SHORT),
    Stage("fresh, middle", 2200, 16, 256, 1.5e-3, 4e-4, FRESH_MIDDLE),
    Stage("fresh, full", 400, 3, 2048, 4e-4, 3e-5, FRESH_FULL),
    Stage("fresh, short again", 1600, 24, 128, 7e-4, 2e-4, FRESH_SHORT),
    Stage("fresh, full again", 250, 3, 2048, 2e-4, 2e-5, FRESH_FULL),
    Stage("fresh, third short", 2600, 24, 128, 1e-3, 1e-4, FRESH_SHORT),
    Stage("fresh, third full", 200, 3, 2048, 1e-4, 1e-5, FRESH_FULL),
    Stage("fresh, last short", 2400, 32, 128, 1e-3, 1e-4, FRESH_SHORT),
    Stage("fresh, fourth full", 250, 3, 2048, 1e-4, 1e-5, FRESH_FULL),
    Stage("fresh, long", 150, 10, 512, 1e-4, 5e-4, FRESH_LONG),
    Stage("fresh, last", 480, 4, 2048, 5e-4, 2e-5, FRESH_FULL),
    Stage("forms, warm up", 100, 24, 192, 1e-5, 1e-3, FORMS_SHORT),
    Stage("forms, short", 1000, 24, 192, 1e-3, 5e-4, FORMS_SHORT),
    Stage("forms, middle", 1499, 8, 512, 7e-4, 2e-4, FORMS_MIDDLE),
    Stage("forms, full", 180, 3, 2048, 3e-4, 1e-5, FORMS_FULL),
    Stage("forms, full again", 100, 3, 2048, 2e-4, 1e-5, FORMS_LAST),
    Stage("forms, last", 70, 3, 2048, 2e-4, 1e-5, FORMS_LAST),
)

# What the hybrid has from the default model is there already; its delta nets have to grow into it.
HYBRID_STAGES: Final = (
    Stage("warm up", 40, 8, 256, 1e-5, 1e-3, Mix(0.25, 0.60, 0.03, fresh_facts=0.3)),
    Stage("middle", 300, 8, 256, 1e-3, 5e-4, Mix(0.15, 0.65, 0.04, fresh_facts=0.3, position_gaps=0.2)),
    Stage("long", 150, 4, 512, 5e-4, 5e-5, Mix(0.10, 0.72, 0.05, fresh_facts=0.3, position_gaps=0.2)),
    Stage("middle again", 600, 8, 256, 7e-4, 3e-4, Mix(0.10, 0.75, 0.04, fresh_facts=0.5, position_gaps=0.2)),
    Stage("long again", 350, 4, 512, 3e-4, 3e-5, Mix(0.10, 0.75, 0.05, fresh_facts=0.3, position_gaps=0.4)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the default model of tiny-llm.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    parser.add_argument(
        "--hybrid", action="store_true", help="train the hybrid, from the shipped default model on"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument(
        "--start-at",
        choices=[stage.name for stage in STAGES],
        metavar="STAGE",
        help="train this stage and those after it, from the shipped default model on",
    )
    arguments = parser.parse_args()
    if arguments.start_at and (arguments.hybrid or arguments.resume):
        parser.error("--start-at begins a run of the default model: leave out --hybrid and --resume")
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    model, stages = (
        (Hybrid(HYBRID_SHAPE), HYBRID_STAGES) if arguments.hybrid else (Qwen3(DEFAULT_SHAPE), STAGES)
    )
    trainer = Trainer(arguments.out, model, stages, arguments.resume)
    if arguments.start_at:
        trainer.start_at(arguments.start_at)
    trainer.run()


class Trainer:
    """The model, its optimiser, and how far the training has come."""

    def __init__(self, out: Path, model: Qwen3, stages: Sequence[Stage], resume: bool) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.model, self.stages = out, model, stages
        # A quarter to a half faster on a CPU: eager norms and rotations cost more than the matrix products.
        # Not the hybrid: its loop over chunks takes minutes to compile.
        self.hidden = (
            model.hidden if isinstance(model, Hybrid) else torch.compile(model.hidden, dynamic=False)
        )
        named = list(self.model.named_parameters())
        matrices = [p for _, p in named if p.ndim > 1]
        sharpness = [p for name, p in named if name.endswith(("q_norm.weight", "k_norm.weight"))]
        gains = [
            p for name, p in named if p.ndim == 1 and not name.endswith(("q_norm.weight", "k_norm.weight"))
        ]
        groups = [
            {"params": matrices, "weight_decay": 0.01, "lr_scale": 1.0},
            {"params": gains, "weight_decay": 0.0, "lr_scale": 1.0},
            {"params": sharpness, "weight_decay": 0.0, "lr_scale": SHARPNESS_LR_SCALE},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        if resume:
            self._load()
        elif isinstance(model, Hybrid):
            start_from_default(model, load_file(SHIPPED[DEFAULT] / "model.safetensors"))
            shutil.copy(SHIPPED[DEFAULT] / "tokenizer.json", out)
        else:
            init_induction_heads(self.model, SEED)
            train_tokenizer(SEED).save(str(out / "tokenizer.json"))
        self.encoder = CorpusEncoder(Tokenizer.from_file(str(out / "tokenizer.json")))

    def start_at(self, name: str) -> None:
        """Takes the shipped weights for those that the stages before `name` trained, and its tokenizer."""
        first = [stage.name for stage in self.stages].index(name)
        self.step = sum(stage.steps for stage in self.stages[:first])
        self.model.load_state_dict(load_file(SHIPPED[DEFAULT] / "model.safetensors"))
        shutil.copy(SHIPPED[DEFAULT] / "tokenizer.json", self.out)

    def run(self) -> None:
        """Runs what is left of the curriculum."""
        first = 0
        saved = time.monotonic()
        for stage in self.stages:
            while self.step < first + stage.steps:
                progress = (self.step - first) / stage.steps
                self._train_step(stage, stage.rate + (stage.end_rate - stage.rate) * progress)
                if time.monotonic() - saved > SAVE_EVERY_S:
                    self._save()
                    saved = time.monotonic()
            first += stage.steps
            self._save()

    def _train_step(self, stage: Stage, rate: float) -> None:
        start = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        batch = make_batch(f"train {SEED} {self.step}", stage.rows, stage.length, stage.mix, self.encoder)
        loss, losses, hits, weights = self._loss(batch)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.tokens += batch.tokens.numel()
        self.seconds += time.monotonic() - start
        if self.step % LOG_EVERY == 0:
            self._log(stage, rate, float(loss.detach()), losses, hits, weights)

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The weighted loss; then losses, hits and weights of the tokens that count."""
        counted = batch.weights > 0
        targets, weights = batch.targets[counted], batch.weights[counted]
        with torch.autocast("cpu", torch.bfloat16):
            states = self.hidden(batch.tokens, batch.positions)[counted]
            logits = self.model.head(states).float()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        hits = logits.detach().argmax(-1) == targets
        return (losses * weights).sum() / weights.sum(), losses.detach(), hits, weights

    def _log(
        self, stage: Stage, rate: float, loss: float, losses: Tensor, hits: Tensor, weights: Tensor
    ) -> None:
        retrieved = weights > 1.0
        line = {
            "step": self.step,
            "stage": stage.name,
            "rate": round(rate, 6),
            "tokens": self.tokens,
            "seconds": round(self.seconds),
            "loss": round(loss, 4),
            "retrieved_loss": round(float(losses[retrieved].mean()), 4),
            "retrieved_right": round(float(hits[retrieved].float().mean()), 4),
            "repeated_right": round(float(hits[weights == REPEATED].float().mean()), 4),
        }
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": {"step": self.step, "tokens": self.tokens, "seconds": self.seconds},
        }
        # Written beside and then renamed: a stop in the middle must not cost the last good checkpoint.
        beside = self.out / "checkpoint.tmp"
        torch.save(state, beside)
        beside.rename(self.out / "checkpoint.pt")

    def _load(self) -> None:
        state: dict[str, Any] = torch.load(self.out / "checkpoint.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        progress = state["progress"]
        self.step, self.tokens, self.seconds = progress["step"], progress["tokens"], progress["seconds"]


if __name__ == "__main__":
    main()
