"""A batch of texts for an embedding model."""

import json

from tests.helpers.pooling_checkpoints import embedding_folder

from tiny_llm_lab.cli import dispatch as cli


def test_a_batch_embeds(tmp_path):
    folder = embedding_folder("random:qwen3-shrunk", tmp_path / "embedder")
    paths = source, target = tmp_path / "texts.jsonl", tmp_path / "vectors.jsonl"
    bodies = {"a": {"input": "sea"}, "b": {"prompt": "sea"}}
    head = {"method": "POST", "url": "/v1/embeddings"}
    source.write_text("\n".join(json.dumps({**head, "custom_id": k, "body": b}) for k, b in bodies.items()))
    flags = [
        text for name, path in zip(("--input", "--output"), paths, strict=True) for text in (name, str(path))
    ]
    assert cli.main(["batch", *flags, "--model", str(folder)]) == 1, "one of them asks for text"
    lines = [json.loads(each) for each in target.read_text().splitlines()]
    found = {each["custom_id"]: each["response"] for each in lines}
    assert len(found["a"]["body"]["data"][0]["embedding"]) == 64 and found["b"]["status_code"] == 400
