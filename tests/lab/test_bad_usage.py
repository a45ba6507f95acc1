"""What commands refuse before they compute anything: exit code 2, and one line with the cure."""

import shlex

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.throughput.command import MIN_STEPS
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.types.packages import PACKAGES
from tools.commands import EVERY

SHORT_STEPS = "--no-enable-chunked-prefill --max-num-batched-tokens 512"
RAMP = "--ramp-up-strategy linear --ramp-up-start-rps 1"
# Below each command its flags, and what the line says.
REFUSED = {
    "": {
        "nosuch": "error: unknown command 'nosuch': ./pdmw alone lists the commands",
        "servee": "unknown command 'servee': did you mean serve? ./pdmw alone lists the commands",
    },
    "hint": {
        "9.9.9": "error: there is no task '9.9.9': the course has 1.1.1 to 4.4.5",
        "1.1.7": "error: there is no task '1.1.7': did you mean 1.1.3?",
        "3.3.3": "error: there is no task '3.3.3': did you mean 3.3.2?",
    },
    "main": {
        "--banana": "error: unrecognized arguments: --banana: ./pdmw run main --help lists the flags",
        "--seed 4.5": "error: argument --seed: invalid int value: '4.5': ./pdmw run main --help",
        "--seed -1": "seed must be 0 to 2**64 - 1",
        "--prompt ''": "the prompt is empty",
        "--prompt ' \n\t '": "the prompt is empty: ask something with --prompt TEXT",
        "--prompt '  ' --raw": "the prompt is empty",
        "--prompt caf\udce9": "the prompt is not UTF-8 text: convert it first",
        "--prefill-step 0": "argument --prefill-step: must be 1 or more, not 0",
        "--temperature inf": "temperature must be 0 (greedy) or",
        "--temperature -1": "temperature must be 0 (greedy) or",
        "--stop ''": "a stop string must not be empty",
        "--max-tokens 0": "--max-tokens: must be 1 or more",
        "--top-p 0": "top_p must be above 0",
        "--loop cached --no-async-scheduling": "--async-scheduling does not work with --loop cached",
        "--solution mlx-lm --async-scheduling": "mlx-lm always launches a step ahead: leave out",
        "--solution mine": "tiny_llm_that_is_not_there is not in this checkout: choose another",
        **{f"--threads {n}": f"error: --threads must be 1 to 256, not {n}" for n in (0, -1, 100000)},
    },
    "batch-main": {
        "--no-enable-chunked": "error: there is no --no-enable-chunked here: did you mean",
        "--prefill-step 0": "--prefill-step: must be 1 or more, not 0",
        f"--prefill-step {'9' * 23}": "must be at most 2147483647, not a number of 23 digits",
        f"--max-tokens 1{'0' * 400}": "must be at most 2147483647, not a number of 401 digits",
        "--batch-size 0": "--batch-size: must be 1 or more, not 0",
        "--max-seq-len 0": "--max-seq-len: must be 1 or more, not 0",
        "--solution mlx-lm --async-scheduling": "mlx-lm always launches a step ahead: leave out",
        "--block-size 3": "--block-size needs the engine: add --engine",
        "--no-enable-chunked-prefill": "--no-enable-chunked-prefill needs the engine: add --engine",
        "--enable-chunked-prefill": "error: --enable-chunked-prefill needs the engine: add --engine",
        "--reserved-slots 1": "--reserved-slots needs --scheduling priority",
        "--preempt-prefill": "--preempt-prefill needs --scheduling priority",
        "--scheduling priority --paused-kv-bits 8": "--paused-kv-bits needs --preempt-prefill",
        "--scheduling priority --reserved-slots -1": "error: reserved_rows must be 0 or more, not -1",
        "--chunk-target-ms 0": "--chunk-target-ms must be above 0, not 0",
        "--chunk-policy table --prefill-step 9": "leave out --prefill-step",
        "--chunk-policy adaptive -tp 2": "each rank has its own",
        "--scheduling priority -tp 2": "each rank has its own",
    },
    "batch-main --engine": {
        "--prefill-step=64": "--prefill-step does not work with --engine",
        "--max-num-batched-tokens 8": "(8) must be at least max_num_seqs (64)",
        "--max-num-seqs 0": "--max-num-seqs/--batch-size: must be 1 or more, not 0",
        "--speculate draft:": "must be off, ngram, mtp, mtp:FOLDER or draft:MODEL, not 'draft:'",
        "--speculate ngrams": "must be off, ngram, mtp, mtp:FOLDER or draft:MODEL, not 'ngrams'",
        "--speculate ngram --num-speculative-tokens 0": "must be 1 or more, not 0",
        "--max-model-len 5000": "max_model_len must be 1 to 4096 for this model, not 5000",
        "--max-model-len 0": "--max-model-len/--max-seq-len: must be 1 or more, not 0",
        SHORT_STEPS: "raise max_num_batched_tokens (512)",
        "--chunk-grid 4096": "chunk_grid (4096) must be at most max_num_batched_tokens",
        "--block-size 0": "--block-size: must be 1 or more, not 0",
        "--kv-cache-memory lots": "'lots' is not an amount of memory: write 512M",
        "--itl-slo-ms 0": "--itl-slo-ms must be above 0, not 0",
        "--solution mine": "tiny_llm_that_is_not_there is not in this checkout",
        "--solution mlx-lm": "has no Engine: choose --solution ref or mine",
        "--chunk-policy adaptive": "leave out --engine",
        **dict.fromkeys(
            ("--scheduling priority", "--reserved-slots 1", "--preempt-prefill", "--paused-kv-limit 9"),
            "leave out --engine",
        ),
    },
    "batch-main --engine --itl-slo-ms 50": {
        "--chunk-grid 16": "sets the chunk size: leave out --chunk-grid",
        "--no-enable-chunked-prefill": "and --no-enable-chunked-prefill",
        "--async-scheduling": "leave out --itl-slo-ms and --speculate",
    },
    "bench --model random:qwen3-shrunk --device cpu": {
        "--prompt-len 0": "--prompt-len: must be 1 or more, not 0",
        "--repeats 0": "--repeats: must be 1 or more",
        "--threads -1": "--threads: must be 1 or more",
        "--prefill-step 0": "--prefill-step: must be 1 or more",
        "--batch 8 --output-len 13": "choose 14 or more",
        "--baselines vllm": "unknown baseline 'vllm': choose from mlx-lm, llama.cpp, torch, openvino",
        "--baseline-output-len 3": f"must be {MIN_STEPS + 3} or more",
        "--model random:qwen9": "unknown model",
    },
    "bench-chunked-prefill": {
        "--repeats 0": "--repeats: must be 1 or more",
        "--prefill-steps 0": "--prefill-steps: must be 1 or more",
        "--prefill-steps 32 32": "twice",
        "--chunk-policies table --solution mlx-lm": "choose --solution ref or mine",
        "--chunk-target-ms -1": "--chunk-target-ms: must be above 0",
        "--num-short 1": "--num-short: must be 2 or more",
        "--max-tokens 1": "--max-tokens: must be 2 or more",
    },
    "bench-engine": {
        "--rounds 0": "--rounds: must be 1 or more",
        "--experiment peers --calibration-out x": "needs --experiment chunk-position",
        "--solution mlx-lm": "mlx-lm has no Engine",
    },
    "serve": {
        "--tensor-parallel-size 0": "--tensor-parallel-size must be 1 or more, not 0",
        "--tensor-parallel-size 1000": "--tensor-parallel-size 1000 is more than the",
    },
    "bench-kernels": dict.fromkeys(("--rows=0", "--rows=1,x", "--rows=-1"), "--rows must be numbers"),
    "bench-serve --tokenizer none": {
        "--goodput wait:5": "--goodput wait:5",
        "--metric-percentiles 99,101": "--metric-percentiles must be",
        "--percentile-metrics ttft,wait": "unknown 'wait'",
        "--extra-body [1]": "--extra-body must be a JSON object",
        "--extra-body '{\"n\": 3}'": "--extra-body must leave n at 1",
        "--extra-body '{\"best_of\": 2}'": "--extra-body must leave n at 1",
        "--header nonsense": "--header must be NAME=VALUE",
        "--num-warmups -1": "--num-warmups must be 0 or more",
        "--request-timeout 0": "must be above 0 s",
        "--base-url nonsense": "is not a URL",
        "--request-rate 0": "--request-rate must be above 0",
        "--request-rate nan": "--request-rate must be above 0",
        "--burstiness -1": "--burstiness must be above 0",
        "--ramp-up-start-rps 1": "need --ramp-up-strategy",
        RAMP: "needs --ramp-up-start-rps and",
        f"{RAMP} --ramp-up-end-rps 2 --request-rate 3": "leave out --request-rate",
        "--num-prompts 0": "--num-prompts must be 1 or more",
        "--num-prompts 1000000000": "ask for fewer",
        "--random-range-ratio 1": "--random-range-ratio must be below 1",
        "--random-range-ratio nan": "--random-range-ratio must be 0 or more",
        "--dataset-name custom": "needs --dataset-path",
        "--dataset-name mixed --mixed-long-len 1000000000": "ask for fewer",
        "--dataset-name sharegpt --dataset-path x --num-prompts 1000000000": "ask for fewer",
    },
    "trace": {
        **dict.fromkeys(("--request a:1", "--request a:x:1:1", "--request :0:1:1"), "NAME:ARRIVAL_STEP"),
        "--request a:0:0:1": "1 or more",
        "--request a:-1:1:1": "ARRIVAL_STEP must be",
        "--request a:0:4000:98": "4096 positions",
        "--request a:0:1:1 --request a:1:1:1": "two requests have this name",
        "--request a:0:1:1 --preset storm": "its own requests",
        "--budget 0": "--budget: must be 1 or more",
        "--threshold -1": "long_prefill",
        "--max-num-seqs 999": "at least max_num_seqs",
        "--solution mlx-lm": "no Engine",
    },
    "simulate": {
        "--burstiness nan": "--burstiness",
        "--requests 0": "--requests",
        "--rate 0": "--rate",
        "--rate inf": "--rate",
        "--budget x": "budget must be",
        "--budget 8": "max_num_batched_tokens (8)",
        "--solution mlx-lm": "has no BlockPool",
        "--shape gpt": "unknown model",
        "--gb-s 0": "--gb-s",
        "--safety 0.5": "--safety",
        **{f"--lengths {x}": "--lengths" for x in ("x", "fixed", "fixed:1", "fixed:0:3", "fixed:a:3")},
    },
}
# What is refused depends on the model.
LATE = ("--max-model-len 5000", SHORT_STEPS, "--max-num-batched-tokens 8", "--chunk-grid 4096")
WITH_MODEL = {f"batch-main --engine {flags}" for flags in LATE}
WITH_MODEL |= {"batch-main --scheduling priority --reserved-slots -1"}
CASES = [(f"{command} {flags}", said) for command, rows in REFUSED.items() for flags, said in rows.items()]


@pytest.mark.parametrize(("words", "said"), CASES, ids=[words.strip()[:60] for words, _ in CASES])
def test_bad_usage_is_one_line(words, said, monkeypatch, capsys):
    monkeypatch.setitem(PACKAGES, "mine", "tiny_llm_that_is_not_there")
    if words not in WITH_MODEL:
        monkeypatch.setattr(model_options, "load_checkpoint", lambda *_: pytest.fail("a model was loaded"))
    assert cli.main(shlex.split(words), EVERY) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("step times are estimated")]
    assert out == "" and lines[-1].startswith("error: ") and said in lines[-1]
    assert len(lines) == 1, "nothing was said or done before"
