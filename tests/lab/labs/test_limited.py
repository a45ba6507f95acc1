"""A prompt that fits in chunks and not in one piece."""

import sys

import pytest

from tiny_llm_lab.measure.labs.experiments import limited


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not hold a process to RLIMIT_AS")
def test_one_piece_fails_under_a_limit_and_chunks_do_not():
    assert limited.out_of_memory_line().endswith("fails in one piece and succeeds in chunks of 256.")


def test_what_macos_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "not tried, because macOS" in limited.out_of_memory_line()


def test_a_child_that_fails_without_a_limit_proves_nothing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(limited, "_succeeds", lambda chunk, room: room > 0)
    assert "fails without a limit, too" in limited.out_of_memory_line()
