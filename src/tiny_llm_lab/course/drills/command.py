"""`drill`: find the hidden mistake of a running server."""

import argparse
import contextlib
import hashlib
import random
import re
import secrets
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx2

from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.course.manifest import Course, Mistake, load_course
from tiny_llm_lab.course.record.record import load_record, save_record
from tiny_llm_lab.course.toml_rows import built, read_toml
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, program, say
from tiny_llm_lab.serving.openai_client import failure, refusal
from tiny_llm_lab.types import UserError

_FOLDER: Final = Path(__file__).parent
# Of a request in a load: a name, and bodies of /v1/completions (see `load`).
Entry = Mapping[str, Any]


def key_of(mistake: Mistake) -> str:
    """Names a mistake without telling it."""
    return hashlib.sha256(f"{mistake.file}:{mistake.says}".encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Drill:
    """One of the drills; keys are those of `key_of`."""

    number: int
    mistake: str  # the key of the right answer
    others: tuple[str, ...]  # keys of the wrong ones
    complaint: str  # a user's words
    flags: str  # of `serve`
    look: tuple[str, ...]  # where to look, in the order of a search
    load: Sequence[Sequence[Entry]]  # the requests of a wave are sent together, the next wave after their end

    @property
    def serve_arguments(self) -> list[str]:
        return shlex.split(self.flags)

    @property
    def choices(self) -> dict[str, str]:
        """Keys by letter; their order depends on the number of the drill alone."""
        keys = sorted((self.mistake, *self.others))
        random.Random(f"choices of {self.number}").shuffle(keys)
        return dict(zip(string.ascii_uppercase, keys, strict=False))

    @property
    def right(self) -> str:
        """The letter of the right answer."""
        return next(letter for letter, key in self.choices.items() if key == self.mistake)


@dataclass(frozen=True)
class Drills:
    """All drills, in order, the mistakes that they name, and what gives each hidden one away."""

    drills: tuple[Drill, ...]
    mistakes: Mapping[str, Mistake]
    reasons: Mapping[str, str]

    def drill(self, number: int) -> Drill:
        """The drill with this number. Raises UserError for another."""
        if not 1 <= number <= len(self.drills):
            raise UserError(f"there is no drill {number}: choose 1 to {len(self.drills)}")
        return self.drills[number - 1]

    def says(self, key: str) -> str:
        """What a mistake does, in a sentence."""
        return self.mistakes[key].says


def load_drills(course: Course) -> Drills:
    """The drills of the course. Raises UserError for a key that is no known mistake's."""
    known = {key_of(mistake): mistake for mistake in course.mistakes()}
    drills = tuple(_drill(number, row) for number, row in enumerate(_rows(), 1))
    named = {key for drill in drills for key in (drill.mistake, *drill.others)}
    if strange := sorted(named - known.keys()):
        raise UserError(
            f"drills.toml: {strange[0]} is the key of no known mistake: was its sentence changed?"
        )
    return Drills(drills, {key: known[key] for key in named}, read_toml(_FOLDER / "reasons.toml"))


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_toml(_FOLDER / "drills.toml")["drill"]
    return rows


def _drill(number: int, row: dict[str, Any]) -> Drill:
    lists = {name: tuple(row.get(name, ())) for name in ("others", "look")}
    return built(Drill, row | lists | {"number": number}, "drill")


def write_copy(course: Course, mistake: Mistake, package: Path) -> None:
    """Write the reference with a mistake to the new folder `package`. Raises UserError for a stale one."""
    wrong = mistake.apply(course.reference / mistake.file)
    shutil.copytree(course.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / mistake.file).write_text(wrong, encoding="utf-8")


# A step of the default model takes half a millisecond: one could watch nothing, and what arrives first would
# depend on the machine.
_WATCHABLE: Final = """
import time
from .engine.core import EngineCore
_advance = EngineCore.advance
EngineCore.advance = lambda *args: (time.sleep(0.01), _advance(*args))[1]
"""


def serve_with(course: Course, mistake: Mistake, arguments: Sequence[str]) -> int:
    """Run `serve` on such a copy, slowly, in a process whose last lines and exit code are this one's."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        package = Path(folder) / course.reference.name
        write_copy(course, mistake, package)
        with (package / "__init__.py").open("a", encoding="utf-8") as file:
            file.write(_WATCHABLE)
        command = [sys.executable, "-m", "tiny_llm_lab", "serve", *arguments]
        # SIGTERM would leave the server running.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        server = subprocess.Popen(command, env=environment(), cwd=folder)
        try:
            return server.wait()
        except KeyboardInterrupt:  # Ctrl-C reaches the server as well, which finishes what it has begun
            with contextlib.suppress(KeyboardInterrupt):
                return server.wait()
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
            if server.poll() is None:
                server.terminate()
                server.wait()


LATER_S: Final = 0.1
_POLL_S: Final = 0.02
_LONGEST_WAIT_S: Final = 2.0  # for a server whose counts are wrong
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
    """Send the load; yield lines on each request, by its end, then the gauges. UserError without a server.

    The requests of a wave go out in their order: each waits until the server has counted those before it.
    """
    ended, start = Event(), time.monotonic()
    salt = secrets.token_hex(4)  # what an earlier load has left in the prefix cache would change the evidence
    with httpx2.Client(base_url=base_url, timeout=None) as client, ThreadPoolExecutor(32) as pool:
        try:
            gauges = pool.submit(_largest_gauges, client, ended)
            for wave in drill.load:
                num_counted, answers, later = _num_received(client), [], 0
                for entry in sorted(wave, key=lambda entry: entry.get("later", 0)):
                    time.sleep(LATER_S * (entry.get("later", 0) - later))
                    later = entry.get("later", 0)
                    answers.append(
                        pool.submit(
                            _answered, client, body_of(entry) | {"cache_salt": salt}, entry["name"], start
                        )
                    )
                    num_counted += entry.get("copies", 1)
                    _wait_until_received(client, num_counted)
                for _, lines in sorted(each.result() for each in answers):
                    yield from lines
            ended.set()
            yield gauges.result()
        except httpx2.HTTPError as error:
            raise UserError(f"no server at {base_url} ({failure(error)}): start the drill") from None
        finally:
            ended.set()


def _num_received(client: httpx2.Client) -> float:
    """How many requests the server has counted: those that wait, run or have ended."""
    return sum(_read(client, name) for name in (*_GAUGES[:2], "request_success_total"))


def _read(client: httpx2.Client, name: str) -> float:
    """A metric's value, or the sum of its values."""
    page = client.get("/metrics").text
    return sum(map(float, re.findall(rf"^tiny_llm:{name}{{.*}} (.*)$", page, re.MULTILINE)))


def _wait_until_received(client: httpx2.Client, number: float) -> None:
    end_s = time.monotonic() + _LONGEST_WAIT_S
    while _num_received(client) < number and time.monotonic() < end_s:
        time.sleep(_POLL_S / 4)


def _largest_gauges(client: httpx2.Client, ended: Event) -> str:
    """What a dashboard would show: they are back at 0 before you have looked."""
    largest = dict.fromkeys(_GAUGES, 0.0)
    while not ended.wait(_POLL_S):
        largest = {name: max(value, _read(client, name)) for name, value in largest.items()}
    return "meanwhile at most: " + ", ".join(f"{name} {value:.3g}" for name, value in largest.items())


def _answered(
    client: httpx2.Client, body: Mapping[str, Any], name: str, start: float
) -> tuple[float, list[str]]:
    """When a request ended, in seconds since `start`, and the lines about it."""
    begin = time.monotonic() - start
    reply = client.post("/v1/completions", json=body)
    end = time.monotonic() - start
    if reply.status_code != 200:
        return end, [f"{name}: {refusal(reply.status_code, reply.content)}"]
    result = reply.json()
    usage, cached = result["usage"], result["usage"]["prompt_tokens_details"]["cached_tokens"]
    head = f"{name}: {1000 * begin:,.0f} to {1000 * end:,.0f} ms"
    prompt = f"prompt {usage['prompt_tokens']} tokens ({cached} cached)"
    return end, [
        f"{head}, {prompt}, answer {usage['completion_tokens']} tokens",
        *(f"    {each['finish_reason']}: {_shown(each['text'])}" for each in result["choices"]),
    ]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST else f"{text[:_MOST]}…")


HELP = "Start a server with a hidden mistake, which you name from its metrics, its page and a complaint."
EXAMPLES: Final = (
    ("", "list the drills, and those that you have solved"),
    ("7", "read the complaint of drill 7, and start its server"),
    ("7 --load", "send that server the drill's requests, from a second terminal"),
    ("7 --answer C", "say which mistake it is"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, what = parser.add_argument, parser.add_mutually_exclusive_group()
    add("number", nargs="?", type=at_least_one, metavar="N", help="which drill (default: list them)")
    what.add_argument("--load", action="store_true", help="send the drill's requests to its server")
    what.add_argument("--answer", type=str.upper, metavar="LETTER", help="grade this answer")
    what.add_argument("--reveal", action="store_true", help="show the answer, and what gives it away")
    add("--port", type=int, default=8000, help="port of the server (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    course = load_course()
    drills, record = load_drills(course), load_record(course.root)[0]
    if args.number is None:
        if args.load or args.answer or args.reveal:
            raise UserError(f"which drill? Give its number, 1 to {len(drills.drills)}")
        _print(_listed(drills, record.drills))
        return 0
    drill = drills.drill(args.number)
    right = [f"{drill.right} is right: {drills.says(drill.mistake)}", drills.reasons[drill.mistake].strip()]
    if args.load:
        _print(sent(drill, f"http://127.0.0.1:{args.port}"))
    elif args.reveal:
        _print(right)
    elif args.answer is not None:
        if args.answer not in drill.choices:
            letters = ", ".join(drill.choices)
            raise UserError(f"drill {drill.number} has no answer {args.answer!r}: choose {letters}")
        is_right = args.answer == drill.right
        save_record(course.root, record.with_drill(drill.mistake, is_right))
        _print(right if is_right else [f"{args.answer} is wrong: look again", *_where(drill)])
        return 0 if is_right else EXIT_FAILED
    else:
        _print(_told(drills, drill, args.port))
        flags = [*drill.serve_arguments, "--port", str(args.port)]
        return serve_with(course, drills.mistakes[drill.mistake], flags)
    return 0


def _listed(drills: Drills, answered: Mapping[str, bool]) -> Iterator[str]:
    """What became of each drill, and how its complaint begins."""
    words = {True: "solved", False: "wrong", None: ""}
    for drill in drills.drills:
        word = words[answered.get(drill.mistake)]
        yield f"{drill.number:2}  {word:6}  {drill.complaint.partition('. ')[0]}"
    num_solved = sum(answered.get(drill.mistake, False) for drill in drills.drills)
    yield f"{num_solved} of {len(drills.drills)} solved"


def _told(drills: Drills, drill: Drill, port: int) -> list[str]:
    """The complaint, what to run, where to look, and the answers."""
    own, url = f"{program()} drill {drill.number}", f"http://127.0.0.1:{port}"
    return [
        f"Drill {drill.number}. A user writes:",
        f"  {drill.complaint.strip()}",
        f"The server runs with: serve {drill.flags}",
        f"From a second terminal, send its users' requests: {own} --load --port {port}",
        f"Then look at {url} and {url}/metrics, in this order:",
        *_where(drill),
        "Which mistake is it?",
        *(f"  {letter}  {drills.says(key)}" for letter, key in drill.choices.items()),
        f"Answer with {own} --answer LETTER. Ctrl-C ends the server.",
    ]


def _where(drill: Drill) -> list[str]:
    return [f"  - {each}" for each in drill.look]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        indent = " " * (len(line) - len(line.rpartition("  ")[2].lstrip()) + 2)  # below the last column
        say(line, indent)
