"""What programs that serve write to stderr."""

import logging
import sys


def configure_logging(level: int = logging.INFO) -> None:
    """Lines on stderr: tiny-llm's own from `level` on, and the warnings of libraries."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger(__name__.partition("_lab")[0]).setLevel(level)
