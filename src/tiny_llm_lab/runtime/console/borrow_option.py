"""--borrow: what is not written yet comes from the reference."""

from argparse import ArgumentParser


def add_borrow(parser: ArgumentParser) -> None:
    """--borrow; `cli.main` does what it says, before the command runs."""
    parser.add_argument(
        "--borrow",
        action="append",
        metavar="FILE",
        help="the reference's file, as layers/attention.py, until yours is written; repeatable; without your "
        "C++ also TINY_LLM_KERNELS=off",
    )
