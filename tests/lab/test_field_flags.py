"""Flags made from the fields of a dataclass: how each kind of field is read, and what its help tells."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Literal

import pytest

from tiny_llm_lab.runtime.console.field_flags import (
    Flag,
    add_field_flags,
    at_least_one,
    flag_name,
    given_fields,
)


@dataclass(frozen=True)
class Settings:
    """One field of each kind."""

    num_rows: int = 3
    share: float | None = None
    order: Literal["up", "down"] = "up"
    is_on: bool = True
    words: tuple[str, ...] = ()
    other: int = 0


FLAGS = [
    Flag("num_rows", "rows", kind=at_least_one, alias="--rows"),
    Flag("share", "a share", "S"),
    Flag("order", "which way"),
    Flag("is_on", "a switch"),
    Flag("words", "some words", "TEXT"),
]


@pytest.fixture
def parser():
    made = ArgumentParser()
    add_field_flags(made, Settings, FLAGS)
    return made


GIVEN = [
    ([], {}),
    (["--rows", "2"], {"num_rows": 2}),
    (["--share", "0.5", "--order", "down"], {"share": 0.5, "order": "down"}),
    (["--no-is-on"], {"is_on": False}),
    (["--words", "a", "--words", "b"], {"words": ("a", "b")}),
]


@pytest.mark.parametrize(("argv", "given"), GIVEN)
def test_only_what_was_given_becomes_a_field(parser, argv, given):
    assert given_fields(parser.parse_args(argv), Settings) == given


WRONG = [["--num-rows", "0"], ["--share", "much"], ["--order", "left"], ["--other", "1"]]


@pytest.mark.parametrize("argv", WRONG)
def test_the_annotation_decides_what_is_read(parser, argv):
    with pytest.raises(SystemExit):
        parser.parse_args(argv, Namespace())


def test_the_help_has_the_default_of_the_field(parser):
    told = " ".join(parser.format_help().split())
    for line in ("rows (default: 3)", "a share (default: off)", "which way (default: up)",
                 "a switch (default: on)", "some words (default: none)"):  # fmt: skip
        assert line in told


def test_a_switch_that_is_off_is_named_by_its_no_form():
    assert (flag_name("is_on"), flag_name("is_on", False)) == ("--is-on", "--no-is-on")
