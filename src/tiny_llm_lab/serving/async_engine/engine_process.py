"""An engine's own process: `python -m tiny_llm_lab.serving.async_engine.engine_process DESCRIPTOR`."""

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tiny_llm_lab.runtime.console.talk import configure_logging
from tiny_llm_lab.serving.async_engine.loop import MOST_FAILED, BuiltEngine, EngineLoop, built_from
from tiny_llm_lab.serving.async_engine.messages import EngineEvent, Left, Refused
from tiny_llm_lab.serving.async_engine.process_group import StartEngine
from tiny_llm_lab.serving.async_engine.wire import FollowingInbox, Inbox, LeadingInbox, Wire, portable
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import OnStep


def main() -> int:
    """Serve until the other end says so or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server drains first, whoever else is told to end
        signal.signal(number, signal.SIG_IGN)
    line = _wire(int(sys.argv[1]))
    first: StartEngine = line.receive()
    configure_logging(first.log_level)
    inbox = _inbox(first)
    threading.Thread(target=_read, args=(line, inbox), name="commands", daemon=True).start()
    send = partial(_send, line) if first.leader is None else _drop
    status = EngineLoop(partial(_built, first.settings), send, inbox, MOST_FAILED).run()
    line.flush()
    return status


def _built(settings: ModelSettings, on_step: OnStep) -> BuiltEngine:
    built = built_from(settings, on_step)
    gc.freeze()  # or steps wait 50 ms now and then while all of this is looked at
    return built


def _wire(descriptor: int) -> Wire:
    return Wire(socket.socket(fileno=descriptor))


def _inbox(first: StartEngine) -> Inbox:
    if first.leader is not None:
        return FollowingInbox(_wire(first.leader))
    return LeadingInbox([_wire(each) for each in first.followers]) if first.followers else Inbox()


def _read(line: Wire, inbox: Inbox) -> None:
    try:
        while True:
            inbox.put(line.receive())
    except EOFError:
        os._exit(0)  # at once, as a step may take long and a rank may wait for one that has died


def _send(line: Wire, events: Sequence[EngineEvent]) -> None:
    line.send([_portable(event) for event in events])


def _portable(event: EngineEvent) -> EngineEvent:
    match event:
        case Refused(_, error):
            return replace(event, error=portable(error))
        case Left(error=error) if error is not None:
            return replace(event, error=portable(error))
    return event


def _drop(events: Sequence[EngineEvent]) -> None:
    """Rank 0 speaks for all."""


if __name__ == "__main__":
    sys.exit(main())
