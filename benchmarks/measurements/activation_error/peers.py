"""Logits of transformers and OpenVINO: `python peers.py SIDE FOLDER TOKENS OUT`, by a Python that has them.

FOLDER is a checkpoint in bfloat16, TOKENS an array [B, L]; OUT gets the logits [B * L, V] in float32.
"""

import sys
from pathlib import Path

import numpy as np

_NO_ROUNDING = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
OPENVINO = {
    "OpenVINO, float32": _NO_ROUNDING | {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
    "OpenVINO as it comes": {},
    "OpenVINO, bfloat16": _NO_ROUNDING,
}
SIDES = ("transformers, float32", "transformers, bfloat16", *OPENVINO)


def of_transformers(side: str, folder: Path, tokens: np.ndarray) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    dtype = torch.float32 if side.endswith("float32") else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        return model(torch.tensor(tokens)).logits.float().numpy()


def of_openvino(side: str, folder: Path, tokens: np.ndarray) -> np.ndarray:
    import openvino

    packed = folder.with_name("openvino")
    if not packed.exists():
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        packing = OVWeightQuantizationConfig(bits=4, sym=True, group_size=64, ratio=1.0, all_layers=True)
        made = OVModelForCausalLM.from_pretrained(folder, export=True, quantization_config=packing)
        made.save_pretrained(packed)
    core = openvino.Core()
    model = core.compile_model(core.read_model(packed / "openvino_model.xml"), "CPU", OPENVINO[side])
    batch, length = tokens.shape
    inputs = {
        "input_ids": tokens,
        "attention_mask": np.ones((batch, length), np.int64),
        "position_ids": np.arange(length)[None].repeat(batch, 0),
        "beam_idx": np.arange(batch, dtype=np.int32),
    }
    names = {name.get_any_name() for name in model.inputs}
    found = model.create_infer_request().infer({name: x for name, x in inputs.items() if name in names})
    return next(iter(found.values()))


if __name__ == "__main__":
    side, folder, tokens, out = sys.argv[1:]
    find = of_openvino if side.startswith("OpenVINO") else of_transformers
    logits = find(side, Path(folder), np.load(tokens).astype(np.int64))
    np.save(out, logits.reshape(-1, logits.shape[-1]).astype(np.float32))
