"""`python -m tiny_llm_lab COMMAND`: what every `pdm run` script calls."""

import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType

_INTERRUPTED = 130


def _main() -> int:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII gets a ?, not a traceback
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell has it ignored, as in the background
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `./pdmw` has blocked it
    from tiny_llm_lab.cli import main  # here, because it brings MLX: half a second in which Ctrl-C may come

    signal.signal(signal.SIGINT, before)
    return main()


def _open_closed_streams() -> None:
    """Give the command all three streams: Python has None for one that the caller has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Lowest first, so that each gets its own number and no other file takes it.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _leave(number: int, frame: FrameType | None) -> None:
    # At once: an exception inside an import may come out as another one, and there is nothing to clean up.
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(_main())
