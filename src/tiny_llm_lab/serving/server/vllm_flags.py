"""Flags of `vllm serve` that ours does not have: what to write, or why there is nothing to write."""

from typing import Final

_REPLICAS: Final = "`cluster --num-replicas N` runs N engines behind one address"
_PARSED: Final = "a checkpoint's config.json says it"
_PROXY: Final = "put a proxy in front: deploy/ has one for HAProxy"
_NO_GRAPHS: Final = "there are no CUDA graphs and no compiler to turn off"
_TASK: Final = "write --task generate, embed or score"
_NO_LORA: Final = "adapters are not supported: merge them into the checkpoint"
VLLM_FLAGS: Final = {
    "--data-parallel-size": _REPLICAS,
    "-dp": _REPLICAS,
    "--pipeline-parallel-size": "--tensor-parallel-size splits every layer over processes instead",
    "--max-long-partial-prefills": "--max-num-partial-prefills limits the prompts in "
    "prefill at a time, --long-prefill-token-threshold the tokens of a prompt in a step",
    "--gpu-memory-utilization": "--kv-cache-memory takes a size, or a share of the free memory",
    "--kv-cache-memory-bytes": "write --kv-cache-memory 2G",
    "--num-gpu-blocks-override": "write --kv-cache-memory, divided by the bytes of a block",
    "--swap-space": "a preempted request is computed again, and nothing is swapped",
    "--cpu-offload-gb": "weights stay where the model runs",
    "--scheduling-policy": "write --policy fcfs, fair or priority",
    "--speculative-config": "write --speculate ngram, mtp or draft:MODEL, and --num-speculative-tokens N",
    "--quantization": _PARSED,
    "--load-format": _PARSED,
    "--hf-overrides": "edit a copy of the checkpoint's config.json",
    "--tokenizer": "a folder has its own tokenizer",
    "--revision": "download the revision, and pass its folder",
    "--download-dir": "HF_HOME says where checkpoints are kept",
    "--trust-remote-code": "code of a checkpoint is never run",
    "--chat-template": "put chat_template.jinja into a copy of the folder",
    "--generation-config": "a request says how it is sampled",
    "--runner": _TASK,
    "--convert": _TASK,
    "--pooler-config": "a text's vector is its last token's, of length 1",
    "--enforce-eager": _NO_GRAPHS,
    "--compilation-config": _NO_GRAPHS,
    "--enable-lora": _NO_LORA,
    "--lora-modules": _NO_LORA,
    "--limit-mm-per-prompt": "models read text only",
    "--seed": "a request has its own seed",
    "--max-logprobs": "a request may ask for 20",
    "--ssl-ca-certs": _PROXY,
    "--ssl-cert-reqs": _PROXY,
    "--root-path": _PROXY,
    "--uvicorn-log-level": "--enable-log-requests logs a line for every request",
}
