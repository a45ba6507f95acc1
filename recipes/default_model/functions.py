"""Functions, questions that call them, and what is said about their results."""

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from tiny_llm_lab.measure.corpus.recall import make_filler

from .fresh_words import FRESH_THINGS
from .records import Value, make_city, make_name, make_thing
from .texts import texts

_TEXTS: Final = texts("functions")
_VERBS: Final = _TEXTS["verbs"]
_SUBJECTS: Final = _TEXTS["subjects"]
_PLACE_KEYS: Final = ("city", "city", "city", "location", "location", "place", "town", "country")
_NAME_KEYS: Final = ("name", "user", "person", "customer", "username", "id", "query")
_ABOUT_PLACES: Final = _TEXTS["about_places"]
_ABOUT_NAMES: Final = _TEXTS["about_names"]
_WEATHER: Final = "sunny cloudy rainy windy warm cold foggy stormy snowy dry wet cool hot".split()
_SUMS: Final = (
    ("add", "plus", ("What is {a} plus {b}?", "Add {a} and {b}.", "What's {a} + {b}?", "{a} plus {b}?")),
    ("multiply", "times", ("What is {a} times {b}?", "Multiply {a} and {b}.", "What's {a} * {b}?")),
    ("subtract", "minus", ("What is {a} minus {b}?", "Subtract {b} from {a}.")),
    ("divide", "divided by", ("What is {a} divided by {b}?", "Divide {a} by {b}.")),
)
_NO_ARGUMENTS: Final = (
    ("how_many_jokes", "Tell me some jokes."), ("roll_dice", "Roll the dice."),
    ("get_time", "What time is it?"), ("get_player_name", "Who is playing?"),
    ("flip_coin", "Flip a coin."), ("get_random_number", "Give me a random number."),
)  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A name, and its parameters with a type each."""

    name: str
    parameters: tuple[tuple[str, str], ...]

    def as_tool(self) -> dict[str, Any]:
        """As a client sends it, without what the template leaves out."""
        properties = {key: {"type": kind} for key, kind in self.parameters}
        return {"type": "function", "function": {"name": self.name, "parameters": {"properties": properties}}}


@dataclass(frozen=True)
class Asked:
    """A question that calls `function`; then a result, and what is said about it."""

    function: Function
    question: str
    arguments: tuple[tuple[str, Value], ...]
    result: str
    answer: str


def make_asked(rng: random.Random, held_out: bool = False) -> Asked:
    """A function with none to two arguments, and a question for it."""
    kind = rng.random()
    if kind < 0.7:
        return _about_one(rng, held_out)
    if kind < 0.8:
        return _way(rng, held_out)
    return _sum(rng) if kind < 0.92 else _without_arguments(rng)


def _about_one(rng: random.Random, held_out: bool) -> Asked:
    subject = rng.choice(_SUBJECTS) if rng.random() < 0.55 else make_thing(rng, held_out)
    is_place = rng.random() < 0.6
    value = make_city(rng, held_out) if is_place else _name_of(rng, held_out)
    key = rng.choice(_PLACE_KEYS if is_place else _NAME_KEYS)
    verb = rng.choice(_VERBS)
    name = f"{verb}_{subject}".replace(" ", "_")
    if rng.random() < 0.1:  # camel case, as in JavaScript
        first, *rest = name.split("_")
        name = first + "".join(map(str.capitalize, rest))
    form = rng.choice(_ABOUT_PLACES if is_place else _ABOUT_NAMES)
    said = f"The {subject} {'in' if is_place else 'of'} {value} is"
    result, answer = _result(rng, said, key, value)
    arguments = {key: value}
    question = form.format(s=subject, v=value)
    if is_place and rng.random() < 0.12:
        arguments["unit"] = rng.choice(("celsius", "fahrenheit"))
        if arguments["unit"] == "fahrenheit" or rng.random() < 0.5:
            question += f" In {arguments['unit']}, please."
    parameters = tuple((each, "string") for each in arguments)
    return Asked(Function(name, parameters), question, tuple(arguments.items()), result, answer)


def _name_of(rng: random.Random, held_out: bool) -> str:
    return make_name(rng, held_out) if rng.random() < 0.7 else f"the {make_thing(rng, held_out)}"


def _result(rng: random.Random, said: str, key: str, value: str) -> tuple[str, str]:
    """A result as a sentence, a bare value or an object, and the sentence that tells it."""
    found = (
        rng.choice(_WEATHER)
        if rng.random() < 0.6
        else f"{rng.randint(1, 99)}{rng.choice(('', ' C', ' km', 'C'))}"
    )
    if rng.random() < 0.2:
        found = make_thing(rng)
    form = rng.random()
    if form < 0.4:
        return f"{said} {found}" + rng.choice((".", ".", "")), f"{said} {found}."
    if form < 0.55:
        other = rng.choice(
            (f"It is {found} in {value}.", f"{value} has {found}.", make_filler(rng), f"{value}: {found}.")
        )
        return other.removesuffix(rng.choice((".", ""))), other
    if form < 0.75:
        return found, f"{said} {found}."
    more = {rng.choice(("temperature", "value", "conditions", "result", "wind")): found}
    if rng.random() < 0.5:
        more[rng.choice(("temperature_range", "unit", "details", "note"))] = (
            f"{rng.randint(1, 20)}-{rng.randint(20, 40)}C"
        )
    fields = {key: value, **more}
    told = ", ".join(f"{name}: {each}" for name, each in fields.items())
    if rng.random() < 0.5:
        return json.dumps(fields), f"Here it is: {told}."
    return " ".join(f"{name}={each!r}" for name, each in fields.items()), f"Here it is: {told}."


def _way(rng: random.Random, held_out: bool) -> Asked:
    """From one place to another."""
    here, there = make_city(rng, held_out), make_city(rng, held_out)
    keys = rng.choice((("origin", "destination"), ("start", "end"), ("from", "to"), ("source", "target")))
    what = rng.choice(("distance", "route", "train", "flight", "way"))
    form = rng.choice(
        ("How far is it from {a} to {b}?", "Find a {w} from {a} to {b}.", "What is the {w} from {a} to {b}?",
         "Book a {w} from {a} to {b}", "I want to go from {a} to {b}.")
    )  # fmt: skip
    found = f"{rng.randint(1, 999)} km"
    said = f"The {what} from {here} to {there} is {found}."
    return Asked(
        Function(f"{rng.choice(_VERBS)}_{what}", ((keys[0], "string"), (keys[1], "string"))),
        form.format(a=here, b=there, w=what),
        ((keys[0], here), (keys[1], there)),
        found if rng.random() < 0.5 else said,
        said,
    )


def _sum(rng: random.Random) -> Asked:
    name, sign, forms = rng.choice(_SUMS)
    keys = rng.choice((("a", "b"), ("x", "y"), ("first", "second")))
    first, second, result = rng.randint(1, 99), rng.randint(1, 99), str(rng.randint(1, 999))
    kind = rng.choice(("integer", "number"))
    name += rng.choice(("", "", "_numbers"))
    return Asked(
        Function(name, tuple((key, kind) for key in keys)),
        rng.choice(forms).format(a=first, b=second),
        ((keys[0], first), (keys[1], second)),
        result,
        f"{first} {sign} {second} is {result}.",
    )


def _without_arguments(rng: random.Random) -> Asked:
    name, question = rng.choice(_NO_ARGUMENTS)
    result = rng.choice((str(rng.randint(1, 20)), make_name(rng)))
    return Asked(Function(name, ()), question, (), result, f"The answer is {result}.")


def other_function(rng: random.Random, asked: Asked) -> Function:
    """A function with a name that `asked.question` does not speak of."""
    while True:
        other = make_asked(rng).function
        words = set(asked.function.name.lower().split("_")) & set(other.name.lower().split("_"))
        if other.name != asked.function.name and not words - {"get", "look", "up", "current"}:
            return other


def make_class_name(rng: random.Random) -> str:
    """A name for a class of data, in camel case."""
    return "".join(rng.choice(FRESH_THINGS).capitalize() for _ in range(rng.randint(1, 2)))
