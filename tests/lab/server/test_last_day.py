"""The agent of the book's last day, as it is printed there, with the shipped model."""

import contextlib
import io
import re
from itertools import pairwise

from tiny_llm_lab.runtime.checkout import repository

PAGE = (repository() / "book/src/last-day.md").read_text(encoding="utf-8")
AGENT, BREAK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIRST = "def ask(messages):\n"


def run(client, monkeypatch, program):
    """What it prints: its answers, and of each request the tokens of the prompt and those that were found."""
    monkeypatch.setenv("AGENT_URL", f"{client.base_url}chat/completions")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "agent.py", "exec"), {})
    counts = re.findall(r"prompt (\d+), cached (\d+)", printed.getvalue())
    return printed.getvalue(), [(int(prompt), int(cached)) for prompt, cached in counts]


def test_the_loop_calls_and_finds_its_prompts_until_their_beginning_changes(client, monkeypatch):
    said, found = run(client, monkeypatch, AGENT)
    told = {city for city in ("Tokyo", "Paris", "Berlin", "Oslo") if f"The weather in {city} is" in said}
    assert len(told) >= 3, said
    assert all(cached >= before - 16 for (before, _), (_, cached) in pairwise(found))
    broken, missed = run(client, monkeypatch, AGENT.replace(FIRST, f"{FIRST}    {BREAK}"))
    assert "in the system prompt" in broken
    assert all(cached <= 48 for _, cached in missed)
    newest = 'messages[-1]["content"] += f" (request {len(messages)})"\n'
    _, mended = run(client, monkeypatch, AGENT.replace(FIRST, f"{FIRST}    {newest}"))
    assert sum(cached for _, cached in mended) > 0.6 * sum(prompt for prompt, _ in mended)


def test_the_program_is_short():
    lines = [line for line in AGENT.splitlines() if line.strip()]
    assert len(lines) <= 45
