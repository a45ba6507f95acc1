"""What HTTP costs: streams of a server against the same requests to `LLM`, in turns.

`python -m recipes.measurements.server_overhead [--streams 8] [--tokens 400] [--threads 1]` prints a row. Both
engines stay in memory, in processes of their own, and only one works at a time. The client reads raw bytes.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recipes.faults.clients import request
from tests.helpers.processes import free_ports, is_healthy, running, tiny_llm, wait_for

_ENGINE = """
import sys, time
from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.types import SchedulerConfig
streams, tokens, threads = map(int, sys.argv[1:])
llm = LLM(threads=threads, config=SchedulerConfig(max_num_batched_tokens=256))
print(flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    llm.generate([[5, 6, 7 + i] for i in range(streams)], SamplingParams(max_tokens=tokens, ignore_eos=True))
    print(time.perf_counter() - begin, flush=True)
"""


async def _served_s(port: int, streams: int, tokens: int) -> tuple[float, float]:
    """Seconds until all streams have ended, and the median until their first events."""
    begin = time.perf_counter()
    firsts = []

    async def stream(number: int) -> None:
        body = {"prompt": [5, 6, 7 + number], "max_tokens": tokens, "ignore_eos": True, "stream": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(request(body))
        await reader.readuntil(b"data:")
        firsts.append(time.perf_counter() - begin)
        end = b""
        while b"[DONE]" not in end:
            end = end[-10:] + await reader.read(2**16)
        writer.close()

    await asyncio.gather(*map(stream, range(streams)))
    return time.perf_counter() - begin, statistics.median(firsts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of the kernels; leave a core for HTTP")
    args = parser.parse_args()
    [port] = free_ports(1)
    sizes = (args.streams, args.tokens)
    engine_command = [sys.executable, "-c", _ENGINE, *map(str, (*sizes, args.threads))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(tiny_llm("serve", "--port", str(port), "--threads", str(args.threads)), Path(folder) / "log"),
        subprocess.Popen(engine_command, **pipes) as engine,  # type: ignore[call-overload]
    ):
        engine.stdout.readline()
        wait_for(lambda: is_healthy(port), "the start")
        direct, served, firsts = [], [], []
        for number in range(args.rounds + 1):
            print("go", file=engine.stdin, flush=True)
            direct_s = float(engine.stdout.readline())
            served_s, first_s = asyncio.run(_served_s(port, *sizes))
            if number:  # the first warms up
                direct.append(direct_s)
                served.append(served_s)
                firsts.append(first_s)
        engine.stdin.close()
    ratios = [theirs / ours for theirs, ours in zip(served, direct, strict=True)]
    rates = {"LLM": direct, "server": served}
    row = {
        name: round(args.streams * args.tokens / statistics.median(each), 1) for name, each in rates.items()
    }
    spread = [round(min(ratios), 3), round(statistics.median(ratios), 3), round(max(ratios), 3)]
    print(
        json.dumps(
            {
                "streams": args.streams,
                "threads": args.threads,
                "tokens per second": row,
                "time / LLM's (least, median, most)": spread,
                "TTFT, ms": round(1000 * statistics.median(firsts), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
