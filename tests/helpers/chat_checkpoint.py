"""A checkpoint as Qwen's are: control tokens for thoughts and tool calls, and a template that knows tools."""

import json
import shutil
from pathlib import Path

from tests.helpers.checkpoints import edit_json

from tiny_llm_lab.runtime.models.random.random_checkpoint import find_or_make

CONTROL = tuple(
    "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> </tool_call> "
    "<|vision_start|> <|vision_end|> <|image_pad|>".split()
)
TEMPLATES = Path(__file__).parent / "templates"
_FIRST_FREE = 259  # ids below are bytes and special tokens

# `<` ~ name ~ `>` and two contents side by side: a template may complete what a user has begun.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% for name in tool.function.parameters.properties or {} %}<{{ name }}>{% endfor %}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'developer' %}{{ raise_exception('no such role') }}{% endif %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and keep_thoughts %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ (message.name or '') | trim }}{{ message.content | trim }}
{%- for call in message.tool_calls or [] %}
{{ '\\n<tool_call>' }}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% if must_think %}<think>
{% endif %}{% endif %}"""


def qwen_like_folder(folder: Path, shape: str = "qwen3-shrunk", template: str = "") -> dict[str, int]:
    """Write a checkpoint into `folder`, which does not exist; the ids of its control tokens.

    `template` is the name of a file in `TEMPLATES`, in place of `TEMPLATE`.
    """
    shutil.copytree(find_or_make(shape), folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    names = {token: name for name, token in content["model"]["vocab"].items()}
    for token, name in enumerate(CONTROL[3:], _FIRST_FREE):
        names[token] = name
        added = {**content["added_tokens"][0], "id": token, "content": name, "special": False}
        content["added_tokens"].append(added)
    content["model"]["vocab"] = {name: token for token, name in names.items()}
    path.write_text(json.dumps(content))
    chat_template = (TEMPLATES / f"{template}.jinja").read_text() if template else TEMPLATE
    edit_json(folder / "tokenizer_config.json", chat_template=chat_template)
    ids = content["model"]["vocab"]
    return {name: ids[name] for name in CONTROL}
