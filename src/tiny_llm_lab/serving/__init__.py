"""Room 3 of 6, `serving`: from a loaded model to answers, for a program, a terminal or an HTTP client.

It imports `runtime` and `types`.

- `llm.py` and `async_llm.py`: the engine behind one name, blocking and for asyncio
- `options/`: flags become settings; `building.py`: settings become an engine, for everyone who needs one
- `memory_keeper.py`: what an engine gives back when it is idle or the machine is short of memory
- `prefix_disk/`: prefixes in a folder, for the next process
- `async_engine/`: the engine on a thread or in processes of its own, with a stream for each request
- `server/`: OpenAI's routes, the live page, metrics
- `offline/`: a file of requests becomes a file of answers
- `terminal/`: `chat`; `ray_cluster/`: replicas on Ray Serve
"""
