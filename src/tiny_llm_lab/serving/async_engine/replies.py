"""Who waits for the engine's reply to a command."""

import asyncio


class Replies:
    """Futures by the numbers of commands. Every command has a reply, also if nobody waits for it any more."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[None]] = {}

    def expect(self, number: int) -> asyncio.Future[None]:
        """A future that is done when the command is, or has the error that refused it."""
        reply = self._open[number] = asyncio.get_running_loop().create_future()
        return reply

    def settle(self, number: int, error: BaseException | None = None) -> None:
        """The reply has come."""
        reply = self._open.pop(number)
        if reply.done():  # cancelled
            return
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(None)

    def fail(self, error: BaseException) -> None:
        """No more replies come."""
        for number in list(self._open):
            self.settle(number, error)
