"""What programs that serve write to stderr."""

import logging
import sys

from tiny_llm_lab.runtime.console.talk import harmless


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line, without what a terminal would obey."""
        return harmless(super().format(record))


def configure_logging(level: int = logging.INFO) -> None:
    """Lines on stderr: tiny-llm's own from `level` on, and the warnings of libraries."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Harmless("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.getLogger(__name__.partition("_lab")[0]).setLevel(level)
