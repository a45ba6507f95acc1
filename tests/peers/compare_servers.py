"""Compare OpenAI-compatible servers of one checkpoint by one client, in turns: `--help` says how.

python -m tests.peers.compare_servers --server ours=http://127.0.0.1:8000 --server mlx-lm=http://127.0.0.1:8001
"""

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import httpx2

from tiny_llm_lab.measure.load.client import LoadOptions, run_load
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl

VOCABULARY = range(300, 2000)  # token ids that are neither control tokens nor single bytes
_LEAD_S = 0.5
EOS = (0, 2)  # of the default model: banned, so that answers have the length that was asked for


@dataclass(frozen=True)
class Server:
    """A server that runs; `pid` tells the processor time it takes."""

    name: str
    url: str
    model: str = "default"  # that requests name
    pid: int | None = None

    @classmethod
    def of(cls, text):
        """NAME=URL[,model=M][,pid=N]."""
        first, *rest = text.split(",")
        name, _, url = first.partition("=")
        given = dict(each.split("=", 1) for each in rest)
        pid = int(given["pid"]) if "pid" in given else None
        return cls(name, url, given.get("model", "default"), pid)

    def cpu_s(self):
        """Processor seconds of the process and all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


class Prompts:
    """Texts that no server has seen before, by number of tokens."""

    def __init__(self, seed, decode):
        self._draw, self._decode = random.Random(seed), decode

    def request(self, num_tokens, max_tokens, kind="", arrival_s=0.0):
        text = self._decode(self._draw.choices(VOCABULARY, k=num_tokens))
        return LoadRequest(text, num_tokens, max_tokens, arrival_s=arrival_s)


def options(**body):
    """Greedy, and no end of the text before max_tokens."""
    banned = {str(token): -100 for token in EOS}
    return LoadOptions(body={"temperature": 0, "logit_bias": banned} | body, timeout_s=120)


async def load(server, requests, **body):
    """All requests answered; raises RuntimeError when one fails."""
    run = await run_load(server.url, server.model, requests, options(**body))
    if run.failed:
        raise RuntimeError(f"{server.name}: {run.failed[0].error}")
    return run


async def ttft_idle(server, prompts):
    ttfts = [(await load(server, [prompts.request(32, 8)])).records[0].timing.ttft_s for _ in range(10)]
    return {"ttft_idle_ms": 1e3 * median(each for each in ttfts if each is not None)}


async def beside_streams(server, prompts, requests):
    """`requests` beside four streams that begin 0.5 s before and end with the last of them."""
    streams = []
    running = asyncio.gather(
        run_load(
            server.url,
            server.model,
            [prompts.request(32, 3000) for _ in range(4)],
            options(),
            on_record=streams.append,
        )
    )
    await asyncio.sleep(_LEAD_S)
    try:
        run = await load(server, requests)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0.5)  # servers notice at different speeds that clients have left
    return run, streams


async def ttft_busy(server, prompts):
    """Short requests one after another beside four streams; also in steps of these streams."""
    short = [prompts.request(32, 4, arrival_s=0.15 * i) for i in range(8)]
    run, streams = await beside_streams(server, prompts, short)
    gaps = _gaps_between(streams, _LEAD_S, _LEAD_S + run.total_s)
    ttft_s = median(each.timing.ttft_s or 0.0 for each in run.records)
    return {"ttft_busy_ms": 1e3 * ttft_s, "ttft_busy_steps": ttft_s / median(gaps)}


async def long_prompt(server, prompts):
    """Gaps of four streams while a prompt of 3,000 tokens is computed."""
    run, streams = await beside_streams(server, prompts, [prompts.request(3000, 4)])
    gaps = _gaps_between(streams, _LEAD_S, _LEAD_S + run.total_s)
    return {
        "itl_p99_ms": 1e3 * percentile(gaps, 99),
        "itl_max_ms": 1e3 * max(gaps),
        "ttft_long_ms": 1e3 * (run.records[0].timing.ttft_s or 0.0),
    }


def throughput(num_streams):
    async def measure(server, prompts):
        requests = [prompts.request(64, 128) for _ in range(num_streams)]
        run = await load(server, requests)
        num_tokens = sum(len(each.token_s) for each in run.records)
        return {f"tok_per_s_{num_streams}": num_tokens / run.total_s}

    return measure


async def seeded(server, prompts):
    """A bystander's wait behind a request with a seed, which arrives beside a running stream."""
    stream = prompts.request(32, 600)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load(server, [stream]))
        await asyncio.sleep(0.3)
        tasks.create_task(load(server, [prompts.request(32, 8)], seed=7, temperature=0.8))
        await asyncio.sleep(0.05)
        run = await load(server, [prompts.request(32, 8)])
    return {"bystander_ms": 1e3 * (run.records[0].timing.ttft_s or 0.0)}


async def continued(server, prompts):
    """A prompt, then the prompt with its own answer: requests that are answered, and still after that."""
    first = prompts.request(64, 32)
    run = await load(server, [first])
    text = f"{first.prompt}{run.records[0].text}"
    again = await run_load(server.url, server.model, [replace(first, prompt=text)], options())
    after = await run_load(server.url, server.model, [prompts.request(16, 4)], options())
    return {"continued_answered": float(len(again.completed) + len(after.completed))}


async def client_left(server, prompts):
    """Processor time in the two seconds after a client left that had asked for 3,000 tokens, not streamed."""
    if server.pid is None:
        return {}
    prompt = prompts.request(32, 3000)
    body = {"model": server.model, "prompt": prompt.prompt, "max_tokens": 3000, **options().body}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(0.3)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    before, start = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(2)
    return {"cpu_after_leaving": (server.cpu_s() - before) / (time.perf_counter() - start)}


EXPERIMENTS = {
    "idle": ttft_idle,
    "busy": ttft_busy,
    "long": long_prompt,
    **{f"throughput-{n}": throughput(n) for n in (1, 4, 8, 32)},
    "seeded": seeded,
    "left": client_left,
    "continued": continued,  # last: some servers do not live through it
}


def _gaps_between(records, start_s, end_s):
    """Gaps of all records that overlap with the time from `start_s` to `end_s`."""
    gaps = []
    for record in records:
        timing = record.timing
        ends = timing.distinct_s[1:]
        pairs = zip(ends, pooled_itl([timing]), strict=True)
        gaps += [gap for end, gap in pairs if end > start_s and end - gap < end_s]
    return gaps


async def compare(servers, rounds, decode):
    found = {server.name: {} for server in servers}
    for title, experiment in EXPERIMENTS.items():
        for number, server in interleave(servers, rounds, warm_ups=1):
            try:
                values = await experiment(server, Prompts(hash((title, number)) % 2**32, decode))
            except (RuntimeError, httpx2.HTTPError, ValueError, ExceptionGroup) as error:
                values = {f"failed_{title}": 1.0}
                print(f"{server.name} · {title}: {error}", flush=True)
            for key, value in values.items() if number >= 0 else ():
                found[server.name].setdefault(key, []).append(value)
        print(title, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description="Compare servers of the default model.")
    parser.add_argument(
        "--server", action="append", required=True, metavar="NAME=URL,…", help=Server.of.__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    servers = [Server.of(text) for text in args.server]
    from tiny_llm_lab import load_checkpoint

    tokenizer = load_checkpoint("default").tokenizer
    found = asyncio.run(compare(servers, args.rounds, tokenizer.decode))
    keys = list(dict.fromkeys(key for each in found.values() for key in each))
    print(f"{'':22}" + "".join(f"{server.name:>28}" for server in servers))
    for key in keys:
        cells = []
        for server in servers:
            values = [each for each in found[server.name].get(key, []) if each is not None]
            cells.append(f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-")
        print(f"{key:22}" + "".join(f"{cell:>28}" for cell in cells))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
