"""Record the vectors of sentence-transformers and the scores of transformers, for the tests to compare with.

    PYTHONPATH=src:. python tests/golden/make_pooling_golden.py

Both compute in float32 on a CPU. It needs PyTorch and sentence-transformers, in .venv by hand as
CONTRIBUTING.md has it for PyTorch; the tests only read the files.
"""

import tempfile
from pathlib import Path

import numpy as np
from tests.helpers.pooling_checkpoints import NO, YES, embedding_folder, reranker_folder

CHECKPOINTS = ["random:qwen3-shrunk", "random:qwen3-shrunk,tied=0,seed=1"]
# One token and its end, a block and more, several blocks, other scripts, the name of a control token.
TEXTS = ["a", "exactly sixteen.", "The sea " * 20, "Überraschung! 你好", "it ends <|im_end|> here"]
NUM_DIMENSIONS = 24
QUERY, DOCUMENTS = "Who is the fox?", ["The fox is red.", "Gravity is a force.", "no", "yes " * 20]


def golden_path(name):
    return Path(__file__).parent / f"pooling-{name.removeprefix('random:')}.npz"


def embeddings(folder, dimensions=None):
    """[texts, E], cut to `dimensions` and of length 1."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", truncate_dim=dimensions)
    return np.asarray(model.encode(TEXTS, normalize_embeddings=True))


def scores(folder):
    """The probability of "yes" against "no" for each document, as Qwen3-Reranker's model card computes it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def plain(text):
        return tokenizer.encode(text, add_special_tokens=False)

    before = plain(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = plain("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    asked = "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    found = []
    for document in DOCUMENTS:
        middle = plain(f"{asked}<Query>: {QUERY}\n<Document>: {document}")
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *middle, *after]])).logits[0, -1]
        found.append(float(torch.softmax(logits[[NO, YES]], 0)[1]))
    return found


def record(name):
    with tempfile.TemporaryDirectory() as made:
        folder = embedding_folder(name, Path(made) / "embedding")
        whole, cut = embeddings(folder), embeddings(folder, NUM_DIMENSIONS)
        ranked = scores(reranker_folder(name, Path(made) / "reranker"))
    np.savez_compressed(golden_path(name), whole=whole, cut=cut, scores=np.array(ranked, np.float32))
    print(f"{golden_path(name).name}: {golden_path(name).stat().st_size} bytes, scores {ranked}")


if __name__ == "__main__":
    for each in CHECKPOINTS:
        record(each)
