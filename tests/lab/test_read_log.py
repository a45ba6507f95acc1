"""`read-log`: lines of vLLM and of ours, and the excerpts of the book's page."""

import re
from pathlib import Path

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.read_log.command import explained

PAGE = (Path(__file__).resolve().parents[2] / "book" / "src" / "server-log.md").read_text("utf-8")
EXCERPTS = [" ".join(each.split()) for each in re.findall(r"```plain\n(.*?)```", PAGE, re.DOTALL)]
STATS = "Avg prompt throughput: 9.0 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%"


LINES = [
    ("INFO Chunked prefill is enabled with max_num_batched_tokens=2048.", ["at most 2048 tokens"]),
    ("INFO GPU KV cache size: 109,936 tokens", ["109,936 tokens fit"]),
    ("INFO Maximum concurrency for 40,960 tokens per request: 2.68x", ["2.68 requests of 40,960 tokens"]),
    ("rank 1 in world size 4 is assigned as DP rank 0", ["rank 1 of 4"]),
    ("rank 0 in world size 1 is assigned as DP rank 0", []),
    ("Using Flash Attention backend on V1 engine.", ["Flash Attention's"]),
    (STATS.format(4, 0, 1.6), ["4 run and nobody waits"]),
    (STATS.format(4, 20, 6.0), ["20 wait though blocks are free"]),
    (STATS.format(3, 9, 93.8), ["9 wait for blocks"]),
    (STATS.format(3, 9, 100.0), ["9 wait for blocks"]),
    (STATS.format(0, 0, 0.0), ["nobody is served"]),
    ("INFO: Application startup complete.", []),
]


@pytest.mark.parametrize(("line", "said"), LINES)
def test_what_is_said_of_a_line(line, said):
    found = explained(line)
    assert len(found) == len(said) and all(part in each for part, each in zip(said, found, strict=True))


def test_every_excerpt_of_the_page_is_explained():
    start, *stats = EXCERPTS
    assert [each.split()[0] for each in explained(start)] == ["chunked", "the", "64", "the"]
    assert len(stats) == 4 and all(map(explained, stats))


def test_lines_that_say_the_same_are_counted(tmp_path, capsys):
    log = tmp_path / "server.log"
    log.write_text("\n".join([*[STATS.format(4, 20, 6.0)] * 3, "something else"]))
    assert cli.main(["read-log", str(log)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("    3 × 20 wait") and "4 lines, 1 that we don't know" in said.err
    log.write_text("nothing\n")
    assert cli.main(["read-log", str(log)]) == 1
    assert cli.main(["read-log", str(tmp_path / "missing")]) == 2
