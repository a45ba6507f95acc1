"""Small talk: greetings, what the model is, and the words of the course, each asked in several ways."""

import random
from typing import Final

from .chat_markup import Turn
from .glossary import GLOSSARY, Term

_TERM_QUESTIONS: Final = (
    "What is {name}?", "what is {name}?", "What is {name}", "Tell me about {name}.", "Explain {name}.",
    "Can you explain {name}?", "Please explain {name}.", "What do you know about {name}?", "Define {name}.",
    "What does {name} mean?", "Explain {name} in one sentence.", "In short, what is {name}?",
    "How does {name} work?", "Why do we need {name}?", "What is {name} good for?",
)  # fmt: skip

UNKNOWN: Final = "I do not know. I am a very small model. Ask me about the course, or ask me for a story."

# Ways to say it, then what may be answered.
_TALK: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "hello",
         "hi", "Hey", "Hi there!", "Hello there.", "Good morning.", "Good day!"),
        ("Hello! How can I help you?", "Hello! Ask me about the course, or ask me for a story."),
    ),
    (
        ("Who are you?", "What are you?", "who are you?", "What is your name?", "Tell me about yourself.",
         "Introduce yourself.", "What is tiny-llm?", "Are you a language model?", "Are you an AI?"),
        ("I am the default model of tiny-llm, a very small language model. "
         "I can tell short stories and find facts in notes.",),
    ),
    (
        ("What can you do?", "what can you do?", "How can you help me?",
         "Help", "Help me.", "What should I ask you?"),
        ("I can tell a short story, explain the words of the course, and answer questions about "
         "notes that you give me.",),
    ),
    (
        ("How big are you?", "How many layers do you have?", "How large are you?", "Are you small?"),
        ("I am tiny: four layers and about two million weights. I was trained on a CPU in about an hour.",),
    ),
    (
        ("How are you?", "How are you today?", "how are you?", "How is it going?"),
        ("I am fine, thank you. How can I help you?",),
    ),
    (
        ("Thanks", "Thanks!", "Thank you.", "Thank you!", "thanks", "Thank you very much.", "Great, thanks."),
        ("You are welcome!", "You are welcome. Ask me more when you like."),
    ),
    (
        ("Bye", "Goodbye.", "Goodbye!", "bye", "See you.", "Good night."),
        ("Goodbye! Have a good day.",),
    ),
    (
        ("Who made you?", "How were you made?", "How were you trained?", "Where do you come from?"),
        ("I was trained from scratch on text that a small program made: stories, notes and small talk.",),
    ),
    (
        ("What is the course about?", "What will I learn?",
         "What do I build in this course?", "Tell me about the course."),
        ("In this course you build an LLM engine: first a model, then a KV cache and batches with "
         "chunked prefill, "
         "then a paged engine behind a server.",),
    ),
    (
        ("What is the difference between prefill and decode?", "How do prefill and decode differ?",
         "Compare prefill and decode."),
        ("Prefill reads many tokens of the prompt at once. Decode makes one token in each step.",),
    ),
    (
        ("What is the difference between TTFT and ITL?",
         "How do TTFT and ITL differ?", "Compare TTFT and ITL."),
        ("TTFT is the wait for the first token. ITL is the gap between one token and the next.",),
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        ("Why did the token sit still? It was waiting for the rest of the batch.",),
    ),
    (
        ("What is the weather?", "What time is it?",
         "What is the news today?", "What is the capital of France?",
         "Who is the president?", "What is two plus two?", "Write some code.", "Translate this."),
        (UNKNOWN,),
    ),
)  # fmt: skip


def make_small_talk(rng: random.Random) -> Turn:
    """One question with its answer; three in four are about a term of the course."""
    if rng.random() < 0.7:
        return _about(rng, rng.choice(GLOSSARY))
    questions, answers = rng.choice(_TALK)
    return Turn(rng.choice(questions), rng.choice(answers))


def make_greeting(rng: random.Random) -> Turn:
    """A greeting, and one back."""
    greetings, answers = _TALK[0]
    return Turn(rng.choice(greetings), rng.choice(answers))


def _about(rng: random.Random, term: Term) -> Turn:
    # Half of all questions take the two plainest forms: they are what people type.
    form = rng.choice(_TERM_QUESTIONS[:2]) if rng.random() < 0.4 else rng.choice(_TERM_QUESTIONS)
    return Turn(form.format(name=rng.choice(term.names)), term.meaning)
