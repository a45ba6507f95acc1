"""The wheel in an empty environment: built, installed, and used as a program and as a library."""

import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 15 * 60.0
LIBRARY = """
import asyncio
from tiny_llm_lab import LLM, AsyncLLM, SamplingParams

async def main():
    async with AsyncLLM("default") as llm:
        async for output in llm.chat("Who are you?", SamplingParams(max_tokens=8)):
            print(output.text, end="")

print(LLM("default").generate("Once", SamplingParams(max_tokens=4))[0].text)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that has the wheel, its dependencies and a backend of MLX."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    extras = [f"mlx[cpu]=={version('mlx')}"] if sys.platform == "linux" else []
    run(programs / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("tiny_llm-*.whl")
    run(programs / "pip", "install", "--quiet", str(wheel), *extras)
    return programs


def run(program: Path, *words: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """The program outside of the checkout, with nothing of this environment on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(program), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=MINUTES,
        cwd=program.parent,
        env=environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_an_answer_and_a_conversation(bin_folder: Path) -> None:
    done = run(bin_folder / "tiny-llm", "run", "--prompt", "Who are you?", "--max-tokens", "12")
    assert done.stdout.startswith("I am") and "next: tiny-llm batch-main" in done.stderr
    done = run(bin_folder / "tiny-llm", "chat", "--max-tokens", "4", stdin="Who are you?\nAnd now?\n")
    assert len(done.stdout.splitlines()) == 2


def test_what_needs_the_checkout_says_so(bin_folder: Path) -> None:
    listed = run(bin_folder / "tiny-llm", "--help").stdout
    assert "tiny-llm serve" in listed and "pdmw" not in listed
    for name in ("test", "book", "check", "stubs"):
        done = run(bin_folder / "tiny-llm", name, code=2)
        assert done.stderr.startswith(f"error: {name} works on the course's files")


def test_the_library(bin_folder: Path) -> None:
    assert "I am" in run(bin_folder / "python", "-c", LIBRARY).stdout


@pytest.fixture
def address(bin_folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([bin_folder / "tiny-llm", "serve", "--port", str(port)])
    address, end_s = f"http://127.0.0.1:{port}", time.monotonic() + MINUTES
    try:
        while not answers(f"{address}/health"):
            assert process.poll() is None and time.monotonic() < end_s
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        assert process.wait(60) in (0, -15)


def answers(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.TransportError:
        return False


def test_a_server(address: str) -> None:
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    done = httpx2.post(f"{address}/v1/completions", json=body, timeout=MINUTES).raise_for_status().json()
    assert done["usage"]["completion_tokens"] == 4
    assert "tiny_llm:generation_tokens_total" in httpx2.get(f"{address}/metrics").text
