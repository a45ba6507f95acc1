"""The load of a drill, sent to its server, and what each client saw."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import Any, Final

import httpx2

from tiny_llm_lab.course.drills.drill import Drill, Entry
from tiny_llm_lab.serving.openai_client import failure, refusal
from tiny_llm_lab.types import UserError

LATER_S: Final = 0.1
_POLL_S: Final = 0.02
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_MOST: Final = 70  # characters of an answer
_FILLER: Final = re.compile(r"\{(\d+)\}")
_OWN: Final = ("name", "ask", "copies", "later")


def body_of(entry: Entry) -> dict[str, Any]:
    """The body of /v1/completions that an entry stands for.

    `{40}` in a text becomes 40 sentences of 11 or 12 tokens. `ask` is a user's message in place of a prompt,
    `copies` equal prompts arrive together, and `later` counts how many LATER_S after the others they arrive.
    """
    text = f"<|im_start|>user\n{entry['ask']}<|im_end|>\n<|im_start|>assistant\n" if "ask" in entry else ""
    text = _FILLER.sub(lambda found: _filler(int(found[1])), text or entry["prompt"])
    given = {name: value for name, value in entry.items() if name not in _OWN}
    return given | {"prompt": [text] * entry.get("copies", 1)}


def _filler(count: int) -> str:
    return " ".join(f"On day {day} the sun was warm." for day in range(1, count + 1))


def sent(drill: Drill, base_url: str) -> Iterator[str]:
    """Send the load; yield lines on each request as it ends, then the gauges. UserError without a server."""
    ended = Event()
    with httpx2.Client(base_url=base_url, timeout=None) as client, ThreadPoolExecutor(32) as pool:
        try:
            gauges = pool.submit(_largest_gauges, client, ended)
            for wave in drill.load:
                for done in as_completed([pool.submit(_answered, client, entry) for entry in wave]):
                    yield from done.result()
            ended.set()
            yield gauges.result()
        except httpx2.HTTPError as error:
            raise UserError(f"no server at {base_url} ({failure(error)}): start the drill") from None
        finally:
            ended.set()


def _largest_gauges(client: httpx2.Client, ended: Event) -> str:
    """What a dashboard would show: they are back at 0 before you have looked."""
    largest = dict.fromkeys(_GAUGES, 0.0)
    while not ended.wait(_POLL_S):
        page = client.get("/metrics").text
        for name in largest:
            found = re.search(rf"^tiny_llm:{name}{{.*}} (.*)$", page, re.MULTILINE)
            largest[name] = max(largest[name], float(found[1]) if found else 0.0)
    return "meanwhile at most: " + ", ".join(f"{name} {value:.3g}" for name, value in largest.items())


def _answered(client: httpx2.Client, entry: Entry) -> list[str]:
    time.sleep(LATER_S * entry.get("later", 0))
    started = time.monotonic()
    reply = client.post("/v1/completions", json=body_of(entry))
    seconds = time.monotonic() - started
    if reply.status_code != 200:
        return [f"{entry['name']}: {refusal(reply.status_code, reply.content)}"]
    found = reply.json()
    usage, cached = found["usage"], found["usage"]["prompt_tokens_details"]["cached_tokens"]
    head = f"{entry['name']}: {seconds:.2f} s, prompt {usage['prompt_tokens']} tokens ({cached} cached)"
    return [
        f"{head}, answer {usage['completion_tokens']} tokens",
        *(f"    {each['finish_reason']}: {_shown(each['text'])}" for each in found["choices"]),
    ]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST else f"{text[:_MOST]}…")
