"""The wheel in an empty environment: built, installed, and used as a program and as a library."""

import os
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import httpx2
import pytest
from tests.helpers.processes import free_ports, is_healthy, running, wait_for

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 15 * 60.0
BARE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
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
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    python = environment(folder / "builder")
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("tiny_llm-*.whl")
    return built


def environment(folder):
    """The Python of a new, empty environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def installed(wheel, folder, extra):
    """The programs of a new environment that has the wheel with this extra, and a backend of MLX."""
    python = environment(folder)
    backend = [f"mlx[cpu]=={version('mlx')}"] if sys.platform == "linux" else []
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel), *backend)
    return python.parent


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory):
    return installed(wheel, tmp_path_factory.mktemp("base"), "")


@pytest.fixture(scope="module")
def serve(wheel, tmp_path_factory):
    return installed(wheel, tmp_path_factory.mktemp("serve"), "serve")


def run(program, *words, stdin="", code=0):
    """The program outside of the checkout, with nothing of this environment on its path."""
    done = subprocess.run(
        [str(program), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=MINUTES,
        cwd=program.parent,
        env=BARE,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_an_answer_and_a_conversation(base):
    done = run(base / "tiny-llm", "run", "--prompt", "Who are you?", "--max-tokens", "12")
    assert done.stdout.startswith("I am") and "next: tiny-llm batch-main" in done.stderr
    done = run(base / "tiny-llm", "chat", "--max-tokens", "4", stdin="Who are you?\nAnd now?\n")
    assert len(done.stdout.splitlines()) == 2


def test_what_needs_the_checkout_says_so(base):
    listed = run(base / "tiny-llm", "--help").stdout
    assert "tiny-llm serve" in listed and "pdmw" not in listed
    for name in ("test", "stubs"):
        done = run(base / "tiny-llm", name, code=2)
        assert done.stderr.startswith(f"error: {name} needs the course's files")
    for name in ("book", "check", "bench-engine"):
        assert name not in listed.split()
        assert "unknown command" in run(base / "tiny-llm", name, code=2).stderr


def test_the_library(base):
    assert "I am" in run(base / "python", "-c", LIBRARY).stdout


@pytest.fixture
def address(serve, tmp_path):
    (port,) = free_ports(1)
    with running([str(serve / "tiny-llm"), "serve", "--port", str(port)], tmp_path / "log", BARE) as process:
        wait_for(lambda: is_healthy(port), "the server's start")
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(60) in (0, -15)


def test_a_server(address):
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    done = httpx2.post(f"{address}/v1/completions", json=body, timeout=MINUTES).raise_for_status().json()
    assert done["usage"]["completion_tokens"] == 4
    assert "tiny_llm:generation_tokens_total" in httpx2.get(f"{address}/metrics").text


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["serve", "--port", "0"], "serve"),
        (["batch", "-i", "none.jsonl", "-o", "none.out"], "serve"),
        (["bench-chunked-prefill", "--help"], "measure"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(base, command, extra):
    err = run(base / "tiny-llm", *command, code=2).stderr
    assert err.startswith("error: ") and f"is not installed: run pip install 'WHEEL[{extra}]'" in err
    assert err.count("\n") == 1


def test_the_starter_is_not_in_the_wheel(base):
    find = "import importlib.util as u; print([u.find_spec(n) is None for n in ('tiny_llm', 'tiny_llm_ref')])"
    assert run(base / "python", "-c", find).stdout == "[True, False]\n"
    err = run(base / "tiny-llm", "run", "--solution", "mine", code=2).stderr
    assert err.startswith("error: ") and err.count("\n") == 1


def test_what_measures(wheel, tmp_path):
    programs = installed(wheel, tmp_path, "measure")
    assert "step" in run(programs / "tiny-llm", "trace").stdout
    sizes = ["--prefill-steps", "128", "--repeats", "1", "--out", str(tmp_path / "results")]
    run(programs / "tiny-llm", "bench-chunked-prefill", *sizes, "--json")
    assert "bench-serve" in run(programs / "tiny-llm", "bench-serve", "--help").stdout


def test_the_course_has_what_it_grades_with(wheel, tmp_path):
    programs = installed(wheel, tmp_path, "course")
    grade = ["-m", "pytest", "-p", "tiny_llm_lab.course.grading.plugin", "--version"]
    assert "pytest" in run(programs / "python", *grade).stdout


def test_ray_serves(wheel, tmp_path):
    programs = installed(wheel, tmp_path, "ray")
    assert "--num-replicas" in run(programs / "tiny-llm", "cluster", "--help").stdout
    run(programs / "python", "-c", "import tiny_llm_lab.serving.ray_cluster.deployment")
