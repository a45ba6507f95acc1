"""--borrow: take files that are not written yet from the reference."""

from argparse import ArgumentParser


def add_borrow(parser: ArgumentParser) -> None:
    """--borrow; `cli.main` applies it before the command runs."""
    parser.add_argument(
        "--borrow",
        action="append",
        metavar="FILE",
        help=(
            "use the reference's file, such as layers/attention.py, until you have written yours; may be "
            "repeated; if your C++ is missing too, set TINY_LLM_KERNELS=off"
        ),
    )
