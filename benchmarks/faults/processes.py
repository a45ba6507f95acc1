"""Faults of a whole process: a step that raises, signals, a disk that is full, a port that is taken."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from statistics import median

from tests.helpers.fake_engine import http_server
from tests.helpers.processes import is_healthy, running, tiny_llm, wait_for

from benchmarks.faults.clients import LONG, SHORT, Outcome, answer, is_whole, request
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app


async def failing_step() -> Outcome:
    """In this process: a step of the real engine raises while 8 streams run; the next requests are served."""
    outcome, app = Outcome(note="8 under way, then 4"), create_app(lambda: start_model(ModelSettings()))
    with http_server(app) as port:
        answers = [asyncio.ensure_future(answer(port, request({**LONG, "stream": True}))) for _ in range(8)]
        await asyncio.sleep(0.3)

        engine = app.state.served.engine._link.built.engine

        def fail() -> None:
            del engine.step
            raise MemoryError("injected")

        engine.step = fail
        for _, content in await asyncio.gather(*answers):
            outcome.add("engine_error" if b'"code":"engine_error"' in content else "200")
        for _ in range(4):
            status, content = await answer(port, request(SHORT))
            outcome.add(status, not is_whole(content))
    return outcome


def ended(port: int, log: Path, signals: int) -> Outcome:
    """SIGTERM under load, `signals` times."""
    outcome = Outcome()

    async def load(process: subprocess.Popen[bytes]) -> None:
        async def client(number: int) -> None:
            await asyncio.sleep(number * 0.02)
            status, content = await answer(port, request({**LONG, "stream": bool(number & 1)}))
            is_cut = status == "200" and not is_whole(content)
            outcome.add(f"{status} cut" if is_cut else status, is_cut and signals == 1)

        clients = [asyncio.ensure_future(client(number)) for number in range(100)]
        await asyncio.sleep(1)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
        await asyncio.gather(*clients)

    with running(tiny_llm("serve", "--port", str(port)), log) as process:
        wait_for(lambda: is_healthy(port), "the start")
        asyncio.run(load(process))
        outcome.note = f"exit code {process.wait(60)}"
    return outcome


def killed_engine(port: int, log: Path, times: int = 50) -> Outcome:
    """SIGKILL to the engine under 8 streams, `times` times; then requests until one is answered."""
    outcome, waits = Outcome(), []

    async def load(engine: int) -> None:
        streams = [answer(port, request({**LONG, "stream": True})) for _ in range(8)]
        running = [asyncio.ensure_future(each) for each in streams]
        await asyncio.sleep(0.2)
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        for status, content in await asyncio.gather(*running):
            told = b"engine" in content and not is_whole(content)
            outcome.add(f"{status} with an error" if told else status, not told and not is_whole(content))
        while (await answer(port, request(SHORT)))[0] != "200":
            await asyncio.sleep(0.05)
        waits.append(time.monotonic() - killed)

    with running(tiny_llm("serve", "--port", str(port)), log) as server:
        wait_for(lambda: is_healthy(port), "the start")
        for _ in range(times):
            found = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, check=True)
            asyncio.run(load(int(found.stdout)))
    outcome.note = f"served again after {median(waits):.1f} s, at most {max(waits):.1f}"
    return outcome


def full_disk(port: int, folder: Path, shell: str) -> Outcome:
    """Ten requests to a server that `shell` starts, with nowhere to write to."""
    outcome = Outcome(note=shell)
    command = ["bash", "-c", shell, "-", *tiny_llm("serve", "--port", str(port), "--enable-log-requests")]
    with running(command, folder / "log"):
        wait_for(lambda: is_healthy(port), "the start")
        for _ in range(10):
            status, content = asyncio.run(answer(port, request(SHORT)))
            outcome.add(status, not is_whole(content))
    return outcome


def second_server(port: int) -> Outcome:
    done = subprocess.run(tiny_llm("serve", "--port", str(port)), capture_output=True, text=True, timeout=120)
    return Outcome(
        1, lost=int(done.returncode != 2), note=f"exit code {done.returncode}: {done.stderr.strip()}"
    )
