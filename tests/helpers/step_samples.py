"""Measured steps of an imaginary machine, for the step-time model and what builds on it."""

from tiny_llm_lab.types import StepSample, attention_tokens

# One decode step of a machine that reads 10 ms of weights: above 100 tokens arithmetic takes longer.
SMALL = (0.010, 0.0, 0.0, 1e-7)
LARGE = (0.001, 9e-5, 4e-9, 1e-7)


def seconds(work, small=SMALL, large=LARGE):
    a, b, c, d = small if work[0] <= 128 else large
    return a + b * work[0] + c * work[1] + d * work[2]


def prompt_chunk(num_computed, num_new):
    return num_new, attention_tokens(num_computed, num_new), num_computed + num_new


def decodes_at(num_decodes, num_computed):
    return num_decodes, num_decodes * num_computed, num_decodes * num_computed


def together(*works):
    return tuple(map(sum, zip(*works, strict=True)))


def steps_of_all_kinds():
    for stored in (100, 1000, 4000):
        for count in (1, 2, 4, 8, 16, 32, 64):
            yield decodes_at(count, stored)
        for chunk in (16, 64, 200, 256, 400, 512, 1024, 2048):
            yield prompt_chunk(stored, chunk)
            yield together(decodes_at(24, stored), prompt_chunk(500, chunk))


def measured(wrong=lambda number: 1.0, time_of=seconds):
    return [
        StepSample(*work, time_of(work) * wrong(number)) for number, work in enumerate(steps_of_all_kinds())
    ]
