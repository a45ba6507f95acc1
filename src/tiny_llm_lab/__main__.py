"""`python -m tiny_llm_lab COMMAND`, which most scripts of `pdm run` call, and the command `tiny-llm`."""

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

_INTERRUPTED = 130
# On Linux `mlx` alone is the bindings; which library they need is a choice that pip does not make.
_NO_BACKEND = "error: MLX has no backend: pip install 'mlx[cpu]=={0}', or 'mlx[cuda13]=={0}' on an NVIDIA GPU"


def main(commands: str = "tiny_llm_lab.cli.commands") -> int:
    """Run the command of sys.argv, one of COMMANDS in the module `commands`; returns its exit code.

    Nothing of ours is imported before, because until then Ctrl-C is not one line.
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII gets a ?, not a traceback
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell has it ignored, as in the background
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `./pdmw` has blocked it
    try:
        from tiny_llm_lab.cli import dispatch as cli

        catalogue = import_module(commands).COMMANDS
    except ImportError as error:
        if "libmlx" not in str(error):
            raise
        from importlib.metadata import version

        print(_NO_BACKEND.format(version("mlx")), file=sys.stderr)
        return 1

    signal.signal(signal.SIGINT, before)
    return cli.main(catalogue=catalogue)


def _open_closed_streams() -> None:
    """Give the command all three streams: Python has None for one that the caller has closed.

    A write to stdout then fails, as to a full disk: it would be lost without a word.
    """
    streams = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for name, mode, access in streams:
        if getattr(sys, name) is None:
            # Lowest first, so that each gets its own number and no other file takes it.
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))


def _leave(number: int, frame: FrameType | None) -> None:
    # At once: an exception inside an import may come out as another one, and there is nothing to clean up.
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
