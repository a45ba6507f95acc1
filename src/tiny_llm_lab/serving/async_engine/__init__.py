"""The engine for asyncio: on a thread of its own, with a stream for each request."""
