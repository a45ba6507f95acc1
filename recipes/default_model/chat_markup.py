"""The chat template and special tokens that the default model is trained with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import jinja2

from tiny_llm_lab.measure.corpus.recall import TURN_END, TURN_START

END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)

# A function is shown as a call of it with types for values: 36 tokens, which the model copies. Its schema and
# description take 163. Calls and results are in Qwen's form.
CHAT_TEMPLATE: Final = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
{{- 'Functions:' }}
{%- for tool in tools %}
{{- '\\n{"name": "' + tool.function.name + '", "arguments": {' }}
{%- for name, value in ((tool.function.parameters or {}).properties or {}).items() %}
{{- '"' + name + '": ' + (value.type if value.type is string else 'any') }}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- '}}' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- set arguments = call.function.arguments %}
{{- arguments if arguments is string else arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True)
class Turn:
    """One user message and its answer."""

    user: str
    assistant: str


def with_functions(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message of the template where it shows `tools`."""
    messages = [{"role": "system", "content": system}] if system else []
    rendered = _template().render(messages=messages or [{"role": "user", "content": ""}], tools=tools)
    return rendered.partition("system\n")[2].partition(TURN_END)[0]


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
