"""Fields of a request that a route does not take: ignored, because they limit no answer, or refused."""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from tiny_llm_lab.serving.server.errors import ApiError

_LOG: Final = logging.getLogger("tiny_llm.server")
_MOST_NAMED: Final = 8  # unknown fields in a line of the log
_CHAT: Final = "send it to /v1/chat/completions"
_MAX: Final = "send max_tokens; on /v1/responses it is max_output_tokens"
_OFF: Final = "leave it out"
_EFFORT: Final = (
    "send reasoning_effort; on /v1/responses reasoning.effort, on /v1/messages output_config.effort"
)
_LIMIT: Final = "limit max_tokens, or turn thinking off"
_STORED: Final = "answers are not stored, so send the whole conversation"
_SWITCH: Final = "send chat_template_kwargs"

# Each with the reason why an answer is the same without it.
IGNORED: Final[Mapping[str, str]] = {
    "betas": "what it turns on is on, or refused by its own field",
    "cache_control": "every prefix is cached",
    "cache_prompt": "a cached prefix changes no answer",
    "context_management": "a conversation is taken as it is sent",
    "detokenize": "text is always sent",
    "dry_allowed_length": "dry_multiplier is refused",
    "dry_base": "dry_multiplier is refused",
    "dry_penalty_last_n": "dry_multiplier is refused",
    "dry_sequence_breakers": "dry_multiplier is refused",
    "dynatemp_exponent": "dynatemp_range is refused",
    "guided_decoding_backend": "there is one",
    "id_slot": "a request has no slot of its own",
    "inference_geo": "the answer comes from this machine",
    "keep_alive": "a flag of serve says it",
    "max_tool_calls": "it counts calls that OpenAI runs",
    "media_io_kwargs": "models read text only",
    "metadata": "it is for the client",
    "mirostat_eta": "mirostat is refused",
    "mirostat_tau": "mirostat is refused",
    "mm_processor_kwargs": "models read text only",
    "prediction": "it is for speed",
    "prompt_cache_key": "every prefix is cached",
    "prompt_cache_retention": "every prefix is cached",
    "provider": "there is one",
    "repeat_last_n": "repeat_penalty is refused",
    "request_id": "the answer has an id of its own",
    "rid": "the answer has an id of its own",
    "safety_identifier": "it is for the client",
    "samplers": "the order is fixed, and samplers that are not here are refused",
    "search_options": "enable_search is refused",
    "service_tier": "there is one",
    "spaces_between_special_tokens": "special tokens are not in the text",
    "store": "answers are not stored",
    "stream_options": "a stream of this route ends with its usage",
    "timings_per_token": "/metrics has times",
    "tool_stream": "arguments of tools are streamed",
    "transforms": "a conversation is taken as it is sent",
    "usage": "an answer has its usage",
    "user": "it is for the client",
    "verbosity": "a wish that open models were not trained on",
    "vl_high_resolution_images": "models read text only",
    "xtc_threshold": "xtc_probability is refused",
}
# Each with its cure. A field that one route takes is refused on the others.
REFUSED: Final[Mapping[str, str]] = {
    "add_generation_prompt": _CHAT,
    "add_special_tokens": "send the prompt to /tokenize, and its token ids as prompt",
    "allowed_token_ids": "send structured_outputs, with a regex or choice",
    "audio": "models read and write text",
    "background": "answers are not stored, so wait for this one or stream it",
    "bad_words": "send logit_bias, with -100 for their tokens",
    "best_of": "ask for n answers and choose",
    "chat_template": "put chat_template.jinja into a copy of the model's folder",
    "chat_template_kwargs": _CHAT,
    "container": "tools are not run here",
    "continue_final_message": _CHAT,
    "conversation": _STORED,
    "custom_logit_processor": "send logit_bias or structured_outputs",
    "custom_params": _OFF,
    "documents": "put them into a message",
    "dry_multiplier": "send frequency_penalty",
    "dynatemp_range": "send temperature",
    "early_stopping": "ask for n answers and choose",
    "ebnf": "send structured_outputs.grammar, in Lark's form",
    "echo": "send the text to /v1/completions, or put it before the answer yourself",
    "enable_code_interpreter": "tools are not run here",
    "enable_search": "tools are not run here",
    "enable_thinking": _SWITCH,
    "format": "send response_format",
    "function_call": "send tools and tool_choice",
    "functions": "send tools",
    "grammar": "send structured_outputs.grammar, in Lark's form instead of GBNF",
    "guided_whitespace_pattern": _OFF,
    "image_data": "models read text only",
    "include": "send logprobs to /v1/chat/completions",
    "include_reasoning": "leave the reasoning out yourself",
    "include_stop_str_in_output": "add the stop string to the answer yourself",
    "incremental_output": "a stream sends what is new",
    "input": "send messages, or prompt to /v1/completions",
    "input_ids": "send token ids to /v1/completions, as prompt",
    "instructions": "send a system message",
    "kv_transfer_params": _OFF,
    "length_penalty": "ask for n answers and choose",
    "logits_processors": "send logit_bias or structured_outputs",
    "logprobs": "send it to /v1/chat/completions; on /v1/responses it is top_logprobs",
    "lora": "merge the adapter into the checkpoint",
    "lora_path": "merge the adapter into the checkpoint",
    "max_completion_tokens": _MAX,
    "max_length": _MAX,
    "max_new_tokens": _MAX,
    "max_output_tokens": _MAX,
    "max_tokens": _MAX,
    "mcp_servers": "tools are not run here",
    "messages": _CHAT,
    "min_new_tokens": "send min_tokens",
    "mirostat": "send top_p or min_p",
    "modalities": "models read and write text",
    "models": "send model",
    "n": "send a request for each answer",
    "n_predict": _MAX,
    "n_probs": "send logprobs",
    "no_stop_trim": "add the stop string to the answer yourself",
    "options": "send its fields next to model",
    "output_config": "send response_format or reasoning_effort",
    "output_format": "send response_format",
    "parallel_tool_calls": "on /v1/messages it is tool_choice.disable_parallel_tool_use",
    "plugins": "tools are not run here",
    "post_sampling_probs": "send logprobs",
    "preserve_thinking": _SWITCH,
    "previous_response_id": _STORED,
    "prompt": "send messages; on /v1/responses input",
    "prompt_embeds": "send text or token ids",
    "prompt_logprobs": "send logprobs and echo to /v1/completions",
    "reasoning": _EFFORT,
    "reasoning_budget": _LIMIT,
    "reasoning_effort": _EFFORT,
    "reasoning_format": "reasoning is sent as reasoning_content",
    "regex": "send structured_outputs.regex",
    "repeat_penalty": "send repetition_penalty",
    "response_fields": "choose from the answer yourself",
    "result_format": "an answer has messages",
    "return_hidden_states": "use an embedding model",
    "return_token_ids": "send the answer to /tokenize, or ask for logprobs, which have each token's bytes",
    "return_token_strs": "send the answer to /tokenize",
    "separate_reasoning": "put the reasoning before the answer yourself",
    "session_params": _STORED,
    "skip_special_tokens": "special tokens are not in the text: ask for logprobs, which have each token",
    "stop_regex": "send stop, or structured_outputs.regex",
    "stop_sequences": "send stop",
    "stream_reasoning": "send stream: false",
    "structural_tag": "send response_format or tools",
    "suffix": "a prompt is continued at its end: leave it out",
    "system": "send a system message",
    "text": "send response_format",
    "think": _SWITCH,
    "thinking": _EFFORT,
    "thinking_budget": _LIMIT,
    "thinking_budget_tokens": _LIMIT,
    "thinking_token_budget": _LIMIT,
    "tool_choice": _CHAT,
    "tools": _CHAT,
    "top_a": "send min_p",
    "top_logprobs": "send it to /v1/chat/completions",
    "top_n_sigma": "send min_p",
    "truncate_prompt_tokens": "send a shorter prompt",
    "truncation": "send a shorter input",
    "typical_p": "send top_p",
    "use_beam_search": "ask for n answers and choose",
    "vllm_xargs": _OFF,
    "web_search_options": "tools are not run here",
    "xtc_probability": "send min_p",
}
# What a client may send that asks for nothing, besides null, false, 0 and empty values.
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "modalities": (["text"],),
    "reasoning_budget": (-1,),
    "reasoning_format": ("auto", "deepseek"),
    "result_format": ("message",),
    "tool_choice": ("auto", "none", {"type": "auto"}, {"type": "none"}),
    "top_n_sigma": (-1,),
    "truncation": ("disabled",),
    **dict.fromkeys(("best_of", "length_penalty", "n", "repeat_penalty", "typical_p"), (1,)),
    **dict.fromkeys(
        "add_generation_prompt add_special_tokens include_reasoning incremental_output parallel_tool_calls "
        "separate_reasoning skip_special_tokens stream_reasoning".split(),
        (True,),
    ),
}


def require_supported(body: Mapping[str, object], taken: Collection[str]) -> None:
    """Raise ApiError for a field of `body` that asks for something, and is not among the `taken` ones.

    Fields that nobody has heard of change nothing, and the log names them.
    """
    others = sorted(body.keys() - taken)
    for name in others:
        if asks(name, body[name]):
            raise ApiError(400, f"{name} is not supported: {REFUSED[name]}", param=name)
    unknown = [ascii(name[:40]) for name in others if name not in IGNORED and name not in REFUSED]
    if unknown:
        _LOG.info("unknown fields change nothing: %s", ", ".join(unknown[:_MOST_NAMED]))


def asks(name: str, value: object) -> bool:
    """Whether a field is refused where it is not taken, and its value asks for something."""
    return name in REFUSED and bool(value) and value not in _HARMLESS.get(name, ())
