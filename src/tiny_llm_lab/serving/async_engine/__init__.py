"""The engine for asyncio: on a thread or in processes of its own, with a stream for each request."""
