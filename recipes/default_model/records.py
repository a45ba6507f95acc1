"""Sentences about a person, a thing or an event, and the same as the fields of a JSON object."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.words import ADJECTIVES, ANIMALS, NAMES, THINGS

from .fresh_words import FRESH_ADJECTIVES, FRESH_NAMES, FRESH_THINGS, side_of, spliced
from .strange_facts import invented_word
from .texts import texts

Value = str | int | float | tuple[str, ...]

_TEXTS: Final = texts("records")
CITIES: Final = _TEXTS["cities"]
_JOBS: Final = _TEXTS["jobs"]
_DAYS: Final = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow".split()
_EVENTS: Final = _TEXTS["events"]


@dataclass(frozen=True)
class Record:
    """A text, and what it says: keys with their values."""

    text: str
    fields: tuple[tuple[str, Value], ...]


def _word(rng: random.Random, fresh: tuple[str, ...], known: tuple[str, ...], held_out: bool) -> str:
    if held_out:
        return rng.choice(side_of(fresh, True))
    if known and rng.random() < 0.3:
        return rng.choice(known)
    if rng.random() < 0.4:
        is_spliced = rng.random() < 0.6
        return spliced(rng, side_of(fresh, False)) if is_spliced else invented_word(rng, rng.randint(2, 3))
    return rng.choice(side_of(fresh, False))


def make_name(rng: random.Random, held_out: bool = False) -> str:
    """A first name, now and then with a last one; with `held_out`, of words that training never sees."""
    name = _word(rng, FRESH_NAMES, NAMES, held_out).capitalize()
    if rng.random() < 0.15:
        name += " " + _word(rng, FRESH_NAMES, NAMES, held_out).capitalize()
    return name


def make_city(rng: random.Random, held_out: bool = False) -> str:
    """The name of a place; some are of two words."""
    city = _word(rng, CITIES, (), held_out).capitalize()
    return f"{rng.choice(('New', 'San', 'Port', 'Los'))} {city}" if rng.random() < 0.1 else city


def make_thing(rng: random.Random, held_out: bool = False) -> str:
    """The name of a thing."""
    return _word(rng, FRESH_THINGS, THINGS, held_out)


def _color(rng: random.Random, held_out: bool) -> str:
    return _word(rng, FRESH_ADJECTIVES, ADJECTIVES, held_out)


def _number(rng: random.Random, _: bool) -> int | float:
    if rng.random() < 0.2:
        return rng.randint(1, 9999) / 100
    return rng.randint(1, 99) if rng.random() < 0.8 else rng.randint(100, 3000)


def _email(rng: random.Random, held_out: bool) -> str:
    user = make_name(rng, held_out).split()[0].lower()
    return f"{user}@{rng.choice(('example', 'mail', make_thing(rng)))}.com"


def _one_of(words: list[str] | tuple[str, ...]) -> Callable[[random.Random, bool], str]:
    return lambda rng, _: rng.choice(words)


# Keys, how a value is made, and how it is said of a name; {a} is the article of the value.
_CLAUSES: Final[
    tuple[tuple[tuple[str, ...], Callable[[random.Random, bool], Value], tuple[str, ...]], ...]
] = (
    (("age", "age", "age", "years", "user_age"), lambda rng, _: rng.randint(1, 99),
     ("is {v} years old", "is {v} years old", "is {v}", "turned {v}", "is {v} years of age")),
    (("city", "location", "home", "town", "country", "place"), make_city,
     ("lives in {v}", "is from {v}", "moved to {v}", "was born in {v}", "went to {v}")),
    (("job", "occupation", "role", "profession"), _one_of(_JOBS), ("works as {a} {v}", "is {a} {v}")),
    (("item", "thing", "product", "object"), make_thing, ("has {a} {v}", "bought {a} {v}", "sold {a} {v}")),
    (("pet", "animal"), _one_of(ANIMALS), ("has {a} {v}", "owns {a} {v}")),
    (("color", "colour", "favorite_color", "style"), _color, ("likes {v}", "likes the color {v}")),
    (("day", "date", "when"), _one_of(_DAYS), ("arrives on {v}", "comes on {v}", "leaves on {v}")),
    (("price", "cost", "amount", "total"), _number, ("paid {v} dollars", "spent {v} euros")),
    (("email", "email", "mail", "address"), _email, ("has the email {v}", "can be reached at {v}")),
    (("friend", "partner", "boss"), make_name, ("knows {v}", "is a friend of {v}", "met {v}")),
)  # fmt: skip
_NAME_KEYS: Final = ("name", "name", "name", "name", "full_name", "user", "person", "first_name", "username")
_LEADS: Final = _TEXTS["leads"]


def make_record(rng: random.Random, held_out: bool = False) -> Record:
    """A text of one or two sentences with one to four fields."""
    kind = rng.random()
    if kind < 0.65:
        record = _person(rng, held_out)
    elif kind < 0.9:
        record = _listed(rng, held_out)
    else:
        record = _event(rng, held_out)
    fields = list(record.fields)
    if rng.random() < 0.25:
        rng.shuffle(fields)
    if rng.random() < 0.15:
        fields = fields[: rng.randint(1, len(fields))]
    if rng.random() < 0.02:  # where the schema says string
        fields = [(key, str(value) if isinstance(value, int) else value) for key, value in fields]
    text = record.text if rng.random() < 0.6 else record.text.removesuffix(".")
    return Record(rng.choice(_LEADS) + text, tuple(fields))


def _person(rng: random.Random, held_out: bool) -> Record:
    name = make_name(rng, held_out)
    fields: list[tuple[str, Value]] = [(rng.choice(_NAME_KEYS), name)]
    said = []
    # Every second one is about an age alone: it is what everybody tries first.
    clauses = _CLAUSES[:1] if rng.random() < 0.4 else rng.sample(_CLAUSES, rng.randint(1, 3))
    for keys, make, forms in clauses:
        value = make(rng, held_out)
        fields.append((rng.choice(keys), value))
        said.append(rng.choice(forms).format(v=value, a="an" if str(value)[0] in "aeiouAEIOU" else "a"))
    if said[0].startswith("is ") and rng.random() < 0.15:
        said[0] = f"My name is {name} and I am {said[0][3:]}"
        return Record(" and ".join(said) + ".", tuple(fields))
    glue = rng.choice((" and ", ", ", f". {name} "))
    return Record(f"{name} " + glue.join(said) + ".", tuple(fields))


def _listed(rng: random.Random, held_out: bool) -> Record:
    """Words with a value each: here a key can be any word."""
    fields: dict[str, Value] = {}
    for _ in range(rng.randint(1, 4)):
        key = rng.choice((*(keys[0] for keys, _, _ in _CLAUSES), "name", make_thing(rng), make_thing(rng)))
        makers = (make_name, make_city, make_thing, _color, _number, _number)
        fields[key] = rng.choice(makers)(rng, held_out)
    is_line = rng.choice((": ", "=", " is "))
    said = [f"{key}{is_line}{value}" for key, value in fields.items()]
    return Record(rng.choice((", ", "\n", "; ")).join(said), tuple(fields.items()))


def _event(rng: random.Random, held_out: bool) -> Record:
    people = tuple(make_name(rng, held_out) for _ in range(2))
    event, day = rng.choice(_EVENTS), rng.choice(_DAYS[:-2])
    verb = rng.choice(("are going to", "will go to", "meet at"))
    text = f"{people[0]} and {people[1]} {verb} a {event} on {day}."
    return Record(text, (("name", event), (rng.choice(("date", "day")), day), ("participants", people)))
