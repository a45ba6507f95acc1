"""A server under faults: `python -m benchmarks.faults [--port 8292] [NAME ...]` prints a table.

A line says how many requests a fault made, what they were answered with, how many that should have been
answered were not, the server's resident memory before and after, and whether it still serves.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
from tests.helpers.processes import is_healthy, running, tiny_llm, wait_for
from tests.helpers.wrong_bodies import is_well_formed, wrong_bodies

from benchmarks.faults import clients
from benchmarks.faults.processes import ended, failing_step, full_disk, killed_engine, second_server


async def vanishing(port: int) -> clients.Outcome:
    """200 clients at once, streaming or not; half of each kind leave."""
    outcome = clients.Outcome()

    async def client(number: int) -> None:
        body = {**clients.LONG, "stream": bool(number & 1)}
        if number & 2:
            outcome.add(await clients.vanish(port, body))
        else:
            status, content = await clients.answer(port, clients.request(body))
            outcome.add(status, status != "200" or not clients.is_whole(content))

    await asyncio.gather(*map(client, range(200)))
    return outcome


async def slow_reader(port: int) -> clients.Outcome:
    slow = {**clients.LONG, "max_tokens": 3500, "n": 4}
    note = await clients.beside_streams(port, clients.read_slowly(port, slow, 4))
    return clients.Outcome(17, note=note)


async def bodies(port: int) -> clients.Outcome:
    outcome = clients.Outcome()
    big = json.dumps({"prompt": "x" * 10_000_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(big), big)
    deep = b'{"prompt": "x", "response_format": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001
    sent = [
        clients.request(each)
        for each in (b"\xff\xfe", b'{"prompt": "\xc3"}', big, b"[" * 10_000, deep, b"NaN")
    ]
    late = head + b"Content-Length: 900000000\r\n\r\n{"
    for each in (*sent, chunked, late, head + b"Content-Length: -1\r\n\r\n", b"\x16\x03\x01\0\xff" * 9):
        status, _ = await clients.answer(port, each)
        outcome.add(status, status in ("none", "200") or status[0] == "5")
    return outcome


async def wrong_types(port: int) -> clients.Outcome:
    outcome, waiting = clients.Outcome(), iter(list(wrong_bodies()))

    async def client(http: httpx2.AsyncClient) -> None:
        for path, body, place in waiting:
            reply = await http.post(
                path, content=json.dumps(body), headers={"Content-Type": "application/json"}
            )
            is_bad = not is_well_formed(reply)
            outcome.add(str(reply.status_code), is_bad)
            if is_bad:
                print(path, place, reply.text[:200])

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        await asyncio.gather(*(client(http) for _ in range(4)))
    return outcome


async def slowloris(port: int) -> clients.Outcome:
    """1,000 idle connections and 200 whose heads come a byte at a time, while requests are answered."""
    outcome, byte_s = clients.Outcome(note="1,000 idle, 200 slow heads"), 1.0
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1200)]
    for number in range(4):
        for _, writer in opened[:200]:
            writer.write(b"GET "[number : number + 1])
        status, content = await clients.answer(port, clients.request(clients.SHORT))
        outcome.add(status, not clients.is_whole(content))
        await asyncio.sleep(byte_s)
    async with asyncio.timeout(60):  # the server closes all of them
        await asyncio.gather(*(reader.read() for reader, _ in opened), return_exceptions=True)
    for _, writer in opened:
        writer.close()
    return outcome


async def pipelined(port: int) -> clients.Outcome:
    outcome = clients.Outcome(note="on one connection, sent at once")
    one = clients.request(clients.SHORT).replace(b"Connection: close\r\n", b"")
    _, content = await clients.answer(port, one * 49 + clients.request(clients.SHORT))
    for _ in range(50):
        outcome.add("200")
    outcome.lost = 50 - content.count(b"HTTP/1.1 200 ")
    return outcome


_ENUMS = {f"k{i}": {"enum": [f"{i}{j}" for j in range(50)]} for i in range(500)}
_MANY = [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(2000)]
_RULES = "".join(f'\nr{i}: "a" r{i} "b" | "c"' for i in range(500))
SLOW_FORMS: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": _ENUMS}},
    {"json": {"type": "string", "pattern": "^(([a-z]{1,40}[0-9]{1,40}){1,40}x?){1,40}$"}},
    {"json": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 40}}, "$ref": "#/$defs/a"}},
    {"json": {"anyOf": _MANY}},
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"regex": "(.*a){60}b"},
    {"regex": "((a+)+)+((a|aa)+)+$"},
    {"regex": "(" * 2000 + ")" * 2000},
    {"regex": "[a-z]{100000}"},
    {"regex": "(x|y(?=z))"},
    {"grammar": "start: " + " | ".join(f"r{i}" for i in range(500)) + _RULES},
    {"choice": [f"{i} word" for i in range(1000)]},
]


async def slow_forms(port: int) -> clients.Outcome:
    outcome = clients.Outcome()

    async def ask() -> None:
        async def one(form: dict[str, Any]) -> None:
            status, content = await clients.answer(
                port, clients.request({"prompt": "x", "max_tokens": 40, "structured_outputs": form})
            )
            outcome.add(
                status, status not in ("200", "400") or (status == "200" and not clients.is_whole(content))
            )

        await asyncio.gather(*map(one, SLOW_FORMS))

    outcome.note = await clients.beside_streams(port, ask())
    return outcome


async def many_of_a_kind(port: int) -> clients.Outcome:
    outcome = clients.Outcome()
    for extra, expected in (
        ({"logit_bias": {str(i): i % 7 for i in range(1024)}}, "200"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "400"),
        ({"stop": [f"{i}stop" for i in range(64)]}, "200"),
        ({"stop": [f"{i}stop" for i in range(100_000)]}, "400"),
        ({"stop": "x" * 1_000_000}, "400"),
        ({"stop_token_ids": list(range(100_000))}, "400"),
        ({"n": 128}, "200"),
        ({"n": 128, "prompt": ["x"] * 100_000}, "400"),
        ({"prompt": [[1]] * 500_000}, "400"),
        ({"logprobs": 20, "n": 128, "max_tokens": 100}, "200"),
        ({"prompt": "word " * 200_000}, "400"),
    ):
        status, _ = await clients.answer(port, clients.request({**clients.SHORT, **extra}))
        outcome.add(status, status != expected)
    return outcome


async def many_streams(port: int) -> clients.Outcome:
    gaps = await clients.gaps_of_streams(port, 64, 500)
    sizes, totals = [len(each) for each in gaps], [sum(each) for each in gaps]
    note = f"events per stream {min(sizes)} to {max(sizes)}, longest gap {clients.longest(gaps)}, "
    return clients.Outcome(
        64, lost=sizes.count(0), note=f"{note}{min(totals):.1f} to {max(totals):.1f} s of answer"
    )


FAULTS: dict[str, Callable[[int], Coroutine[Any, Any, clients.Outcome]]] = {
    "64 streams": many_streams,
    "200 clients, half vanish": vanishing,
    **{f"half vanish, {number}": vanishing for number in (2, 3, 4, 5)},
    "a reader of 1 byte a second": slow_reader,
    "bodies": bodies,
    "wrong values in every field": wrong_types,
    "idle and slow heads": slowloris,
    "pipelined": pipelined,
    "slow schemas, regex bombs": slow_forms,
    "many of a kind": many_of_a_kind,
    **{f"many of a kind, {number}": many_of_a_kind for number in (2, 3)},
}


def resident(pid: int) -> int:
    """MiB of a process; on Linux."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10


def show(name: str, outcome: clients.Outcome, memory: str, serves: object) -> None:
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    print(
        f"{name} | {outcome.tried} | {statuses} | {outcome.lost} | {memory} | {serves} | {outcome.note}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8292)
    parser.add_argument("only", nargs="*", help="faults whose names begin so")
    args = parser.parse_args()
    port, folder = args.port, Path(tempfile.mkdtemp())
    print("fault | tried | answers | lost | MiB before, after | serves | note")

    def wanted(name: str) -> bool:
        return not args.only or name.startswith(tuple(args.only))

    with running(tiny_llm("serve", "--port", str(port)), folder / "log") as process:
        wait_for(lambda: is_healthy(port), "the start")
        asyncio.run(clients.gaps_of_streams(port, 64, 100))  # what is allocated once
        for name, fault in FAULTS.items():
            if wanted(name):
                before = resident(process.pid)
                outcome = asyncio.run(fault(port))
                status, content = asyncio.run(clients.answer(port, clients.request(clients.SHORT)))
                memory = f"{before}, {resident(process.pid)}"
                show(name, outcome, memory, "yes" if clients.is_whole(content) else status)
        if wanted("two servers"):
            show("two servers on one port", second_server(port), "-", is_healthy(port))
    for name, run in (
        ("a step that raises", lambda: asyncio.run(failing_step())),
        ("SIGTERM under load", lambda: ended(port, folder / "log", 1)),
        ("SIGTERM twice", lambda: ended(port, folder / "log", 2)),
        ("SIGKILL to the engine", lambda: killed_engine(port, folder / "log")),
        ("full disk for the log", lambda: full_disk(port, folder, 'exec "$@" 2>/dev/full')),
        (
            "full disk for the cache",
            lambda: full_disk(
                port, folder, f'export TINY_LLM_CACHE={folder}/c; ulimit -f 0; exec "$@" 2>/dev/null'
            ),
        ),
    ):
        if wanted(name):
            show(name, run(), "-", "-")


if __name__ == "__main__":
    main()
