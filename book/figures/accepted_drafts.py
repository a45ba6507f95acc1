"""Draws book/src/figures/accepted-drafts.svg: an answer of the default model with drafts by lookup."""

from collections.abc import Sequence
from typing import Final

from book.figures.drawing import Drawing

import tiny_llm_ref
from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import DoneEvent, Draft, TokenEvent

QUESTION: Final = (
    "Read these notes. Mira keeps the brass compass in the attic. Owen keeps the spare key in the shed. "
    "Lena keeps the old map in the cellar. Where does Owen keep the spare key?"
)
_LEFT, _CELL, _ROW, _STEP = 92, 75, 24, 62


class Recorder(tiny_llm_ref.NgramProposer):
    """Keeps, for every step, the number of tokens known before it and the draft."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        draft = super().look_up(token_ids, request_id)
        self.asked.append((len(token_ids), draft.token_ids))
        return draft


def steps() -> list[tuple[list[str], list[str]]]:
    """The draft of each step after the prompt, and the tokens that it brought."""
    loaded = load_checkpoint("default", dtype="float32")
    model, tokenizer = tiny_llm_ref.build_model(loaded), loaded.tokenizer
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}])
    recorder = Recorder()
    events = list(tiny_llm_ref.speculative_generate(model, tokenizer, prompt, recorder))
    tokens = [each.token_id for each in events if isinstance(each, TokenEvent)]
    answer = [token for token in tokens if token is not None]
    start = recorder.asked[0][0] - 1  # tokens of the prompt: its last chunk brought one
    ends = [known for known, _ in recorder.asked[1:]] + [start + len(answer)]
    found = [
        (
            [tokenizer.decode([token]) for token in draft],
            [tokenizer.decode([token]) for token in answer[known - start : end - start]],
        )
        for (known, draft), end in zip(recorder.asked, ends, strict=True)
    ]
    done = events[-1]
    if isinstance(done, DoneEvent) and done.completion.finish_reason == "stop":
        found[-1][1].append("(end)")
    return found


def draw() -> str:
    """The figure as SVG."""
    found = steps()
    d = Drawing("Drafts of four tokens and what the model made of them, step by step, in a real answer.")
    d.text(12, 22, "One answer, drafts by prompt lookup", bold=True)
    for i, (draft, brought) in enumerate(found):
        y = 38 + i * _STEP
        num_accepted = sum(a == b for a, b in zip(draft, brought, strict=False))
        d.text(12, y + 17, f"{i + 1}: draft", "grey")
        d.text(12, y + 43, "model", "grey")
        for k, token in enumerate(draft):
            role = "green" if k < num_accepted else "red"
            d.box(_LEFT + k * _CELL, y, _CELL - 4, _ROW, role, label=token.strip(), is_outline=role == "red")
        if not draft:
            d.text(_LEFT, y + 17, "nothing found", "grey")
        for k, token in enumerate(brought):
            role = "green" if k < num_accepted else "blue"
            d.box(_LEFT + k * _CELL, y + 26, _CELL - 4, _ROW, role, label=token.strip())
    y = 38 + len(found) * _STEP
    d.text(12, y + 12, "green: accepted · red: rejected · blue: drawn by the model itself", "grey", size=12)
    return d.svg()
