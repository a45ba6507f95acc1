"""Engines on one folder of prefixes, one after another, whose files somebody spoils in between.

Whatever happens, each answer is the one that its prompt gets alone.
"""

import contextlib
import errno
import itertools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fuzz_engine import CrashError
from tests.helpers.fuzz_models import FuzzTokenizer, Models

import tiny_llm_ref
from tiny_llm_lab.runtime.growing_pool import GrowingModel
from tiny_llm_lab.runtime.kv_memory import block_bytes
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.prefix_disk import PrefixDisk
from tiny_llm_lab.serving.prefix_disk.saver import Writer
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig

BLOCK = 4
_MODELS = ("qwen3", "hybrid", "bfloat16")
_SAMPLING = SamplingParams(max_tokens=9, ignore_eos=True)


def disked(model: Any, folder: Folder, root: bytes = b"model", **options: Any) -> Any:
    """The reference's engine of a toy, with its prefixes in `folder`."""
    disk = PrefixDisk(folder, root)
    config = options.pop("config", SchedulerConfig(max_model_len=200, max_num_seqs=4))
    settings = {"num_blocks": 60, "block_size": BLOCK, "num_states": 12, "snapshot_every": 16} | options
    engine = tiny_llm_ref.Engine(
        model,
        FuzzTokenizer(),
        config,
        EngineOptions(**settings, on_step=disk.on_step(None), prefix_disk=disk),
    )
    disk.watch(engine, model.pools if isinstance(model, GrowingModel) else ())
    return engine


def files_in(path: Path) -> list[Path]:
    """What the folder has, in the order of names."""
    return sorted(each for each in (path / "blocks").glob("??/*") if each.is_file())


class Disk:
    """A folder, and ways to spoil it."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng

    def flip(self, file: Path) -> None:
        """One bit anywhere in the file."""
        data = bytearray(file.read_bytes() or b"x")
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        file.write_bytes(data)

    def cut(self, file: Path) -> None:
        os.truncate(file, self.rng.randrange(max(1, file.stat().st_size)))

    def grow(self, file: Path) -> None:
        file.write_bytes(file.read_bytes() + self.rng.randbytes(self.rng.randint(1, 99)))

    def swap(self, file: Path) -> None:
        """Another block under this one's name, as a whole."""
        file.write_bytes(self.rng.choice(files_in(self.path)).read_bytes())

    def lose(self, file: Path) -> None:
        file.unlink()

    def block(self, file: Path) -> None:
        """A folder where the file should be."""
        file.unlink()
        file.mkdir()

    def zero(self, file: Path) -> None:
        """The right length, and no contents: what a crash of the machine may leave."""
        file.write_bytes(bytes(file.stat().st_size))


FAULTS: dict[str, Callable[[Disk, Path], None]] = {
    name: getattr(Disk, name) for name in ("flip", "cut", "grow", "swap", "lose", "block", "zero")
}


class DiskRun:
    """Prompts with common beginnings, and their answers alone; engines that serve them from one folder."""

    def __init__(self, models: Models, seed: int, path: Path) -> None:
        """Sets counts: what has happened, by name."""
        self.rng = rng = random.Random(seed)
        self.path, self.counts, self.numbers = path, Counter[str](), itertools.count()
        self.model = models.of(rng.choice(_MODELS), "cpp")
        self.kv_bits = rng.choice((None, None, 8))
        starts = [self._tokens(rng.randint(10, 60)) for _ in range(3)]
        self.prompts = [
            (*rng.choice(starts)[: rng.randint(8, 60)], *self._tokens(rng.randint(1, 12))) for _ in range(8)
        ]
        options = EngineOptions(60, BLOCK, self.kv_bits, enable_prefix_caching=False)
        engine = tiny_llm_ref.Engine(self.model, FuzzTokenizer(), SchedulerConfig(max_num_seqs=1), options)
        asked = [Prompt(prompt, _SAMPLING) for prompt in self.prompts]
        self.alone = [answer.token_ids for answer in engine.generate(asked)]
        engine.release()

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(97, 123) for _ in range(count))

    def limit(self) -> int:
        """Mostly too much to reach; else room for few more than 16 files."""
        largest = max(block_bytes(self.model.config, mx.float32, BLOCK), self.model.config.state_bytes)
        return self.rng.choice((1 << 30, 1 << 30, self.rng.randint(17, 40) * (largest + 99)))

    def engines(self, count: int, **options: Any) -> list[Any]:
        """So many engines on the folder, which know nothing of each other."""
        limit, rng = self.limit(), self.rng
        config = SchedulerConfig(
            max_model_len=200, max_num_seqs=rng.randint(1, 4), max_num_batched_tokens=rng.randint(4, 80)
        )
        shape = {
            "config": config,
            "kv_bits": self.kv_bits,
            "num_blocks": rng.choice((30, 60, 200)),
            "num_states": rng.choice((2, 3, 8, 30)),
            "async_scheduling": rng.random() < 0.3,
        }
        return [disked(self.model, Folder(self.path, limit), **shape | options) for _ in range(count)]

    def serve(self, engines: Sequence[Any]) -> None:
        """Some requests at each engine, some aborted, some lost in a step that fails; check the answers."""
        rng, live = self.rng, dict[str, tuple[Any, int]]()
        for _ in range(rng.randint(8, 20)):
            engine, chance = rng.choice(list(engines)), rng.random()
            if chance < 0.5:
                name, number = f"{next(self.numbers)}", rng.randrange(len(self.prompts))
                engine.add(name, self.prompts[number], _SAMPLING)
                live[name] = engine, number
            elif chance < 0.6 and live:
                name = rng.choice(sorted(live))
                assert live.pop(name)[0].abort(name), "an unfinished request is in its engine"
            elif chance < 0.63:
                live = {name: each for name, each in live.items() if each[0] is not engine}
                self._fail(engine)
            else:
                self._step(engine, live)
        while live:
            self._step(next(iter(live.values()))[0], live)
        for engine in engines:
            assert not engine.has_requests

    def _step(self, engine: Any, live: dict[str, tuple[Any, int]]) -> None:
        for output in engine.step():
            if output.completion is not None:
                _, number = live.pop(output.request_id)
                assert output.completion.token_ids == self.alone[number], f"prompt {number}"
                self.counts["answers"] += 1
                self.counts["cached"] += output.num_cached_tokens

    def _fail(self, engine: Any) -> None:
        """A step that computes raises, and loses all requests."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.core.kv_cache, "begin_step", _raise)
            while engine.has_requests:
                with contextlib.suppress(CrashError):
                    engine.step()

    def end(self, engines: Sequence[Any]) -> None:
        """Release the engines, and count what their folders did."""
        for engine in engines:
            engine.release()
            disk = engine.core.options.prefix_disk
            assert not disk.is_broken, "an exception was caught: see the log"
            self.counts.update(vars(disk.counts))


def fault_run(models: Models, seed: int, fault: str) -> Counter[str]:
    """Four times one or two engines, with `fault` in between, or while they write if it is "full"."""
    path = Path(tempfile.mkdtemp(prefix="prefixes-"))
    try:
        run = DiskRun(models, seed, path)
        for _ in range(4):
            with pytest.MonkeyPatch.context() as patch:
                if run.rng.random() < 0.5:  # a slow disk: what is new waits in its block
                    patch.setattr(Writer, "has_room", lambda *_: run.rng.random() < 0.1)
                if fault == "full":
                    patch.setattr(Folder, "_write", _half_full(run.rng, Folder._write))
                engines = run.engines(run.rng.choice((1, 1, 2)))
                run.serve(engines)
                run.end(engines)
            for file in files_in(path) if fault in FAULTS else ():
                if run.rng.random() < 0.3:
                    FAULTS[fault](Disk(path, run.rng), file)
                    run.counts["spoiled"] += 1
        return run.counts
    finally:
        shutil.rmtree(path)


def _raise(*_: object) -> None:
    raise CrashError


def _half_full(rng: random.Random, write: Callable[..., None]) -> Callable[..., None]:
    def failing(folder: Folder, place: Path, parts: Sequence[bytes]) -> None:
        if rng.random() < 0.5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, place, parts)

    return failing
