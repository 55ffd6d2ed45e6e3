"""What becomes of every field of a request: honoured, refused by name, or ignored. /openapi.json prints these tables.

What must stay true: a name is in exactly one class; every parameter of the official OpenAI SDK is in the table (a test
goes over its types); nothing that would change a correct answer is ignored. Names that are in no table have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Parameters:
    """Fields of one kind of object, name → one sentence. A null counts as not given in all three classes."""

    honoured: Mapping[str, str]  # what the field does; values that are not supported are refused with their reason
    refused: Mapping[str, str]  # why: an error names the field unless it is null, false, zero, "" or []
    ignored: Mapping[str, str]  # why it may be: accepted without effect


_SAMPLING = {
    "model": "name or alias of the served model; left out: the served model",
    "temperature": "0 (greedy) to 2",
    "top_p": "above 0, up to 1",
    "top_k": "0 or -1: off",
    "min_p": "0 to 1",
    "presence_penalty": "-2 to 2",
    "frequency_penalty": "-2 to 2",
    "repetition_penalty": "0.01 to 10; over prompt and answer",
    "logit_bias": "token id → -100 to 100, added to the token's logit",
    "seed": "choice i uses seed + i; left out: fresh randomness at temperatures above 0",
    "n": "choices per prompt",
    "max_tokens": "limit of generated tokens; more than the context has left is clamped",
    "max_completion_tokens": "the same as max_tokens",
    "min_tokens": "no end of turn and no stop token before this many tokens",
    "stop": "a string or an array of strings; the match is not part of the answer",
    "stop_token_ids": "tokens that end the answer",
    "ignore_eos": "go on after the model's end of turn",
    "stream": "server-sent events",
    "stream_options": "include_usage, continuous_usage_stats",
    "prediction": "text that the answer is expected to repeat: drafts for speed, which do not change the answer",
    "kv_retention": "how long the cache keeps which tokens: TensorRT-LLM's retention config",
    "nvext": "NVIDIA's extension: agent_hints, extra_fields, cache_salt, max_thinking_tokens",
    "cache_salt": "cached prefixes are shared only among requests with the same salt",
    "skip_special_tokens": "only true: control tokens are never shown",
}

# The form of the answer, under the names that other servers use; one at a time.
_FORMS = {
    "guided_json": "a JSON schema, or text that holds one",
    "guided_regex": "a regular expression (Rust's syntax) for the whole answer",
    "guided_choice": "an array of strings, of which the answer is one",
    "guided_grammar": "a grammar in llguidance's Lark or in GBNF",
    "structured_outputs": "an object with one of json, json_object, regex, choice and grammar",
    "json_schema": "the same as guided_json",
    "regex": "the same as guided_regex",
    "ebnf": "the same as guided_grammar",
    "grammar": "the same as guided_grammar",
}

NO_REASONING: Final = "raw text has no reasoning"
_REFUSED = {
    "allowed_token_ids": "not supported; see logit_bias",
    "bad_words": "not supported; see logit_bias",
    "include_stop_str_in_output": "not supported",
    "logits_processors": "not supported",
    "prompt_logprobs": "log-probabilities of prompts are not computed",
    "return_token_ids": "not supported; see /tokenize",
    "return_tokens_as_token_ids": "not supported",
    "truncate_prompt_tokens": "prompts are never cut; one that is too long is an error",
    "use_beam_search": "not supported",
}

_IGNORED = {
    "user": "names the end user; nothing depends on it",
}

CHAT = Parameters(
    honoured={
        **_SAMPLING,
        **_FORMS,
        "messages": "the conversation: text only",
        "tools": "functions that the model may call",
        "tool_choice": "'auto', 'none', 'required', a function, or allowed_tools",
        "parallel_tool_calls": "false: the answer ends after its first complete call",
        "response_format": "type text, json_object or json_schema",
        "modalities": "only ['text']",
        "logprobs": "true: log-probabilities of every generated token",
        "top_logprobs": "alternatives per token, 0 to 20; needs logprobs",
        "reasoning_effort": "'none': thinking off; other efforts leave the server's default",
        "enable_thinking": "whether the model thinks first; goes before reasoning_effort",
        "max_thinking_tokens": "reasoning is closed after that many tokens",
        "thinking_token_budget": "the same as max_thinking_tokens",
        "thinking_budget": "the same as max_thinking_tokens",
        "chat_template_kwargs": "arguments of the checkpoint's template; go before enable_thinking",
        "add_generation_prompt": "false: the prompt does not open the answer",
        "continue_final_message": "true: the answer continues the last message, the assistant's",
    },
    refused={
        **_REFUSED,
        "audio": "audio output is not supported",
        "best_of": "not supported for chat",
        "chat_template": "the checkpoint's own template is used; see chat_template_kwargs",
        "documents": "not supported; put them into messages",
        "echo": "not supported for chat",
        "function_call": "retired; use tool_choice",
        "functions": "retired; use tools",
        "moderation": "moderation is not supported",
        "web_search_options": "web search is not supported",
    },
    ignored={
        **_IGNORED,
        "metadata": "a note of the client's; nothing is kept",
        "prompt_cache_key": "prefixes are found by their tokens",
        "prompt_cache_options": "prefixes are cached and evicted by the server's own rules",
        "prompt_cache_retention": "prefixes are cached and evicted by the server's own rules",
        "safety_identifier": "names the end user; nothing depends on it",
        "service_tier": "there is one tier",
        "store": "nothing is stored",
        "verbosity": "the model has no such control; ask for it in words",
    },
)

COMPLETION = Parameters(
    honoured={
        **_SAMPLING,
        **_FORMS,
        "prompt": "a string, an array of token ids, or an array of either; choices are numbered prompt by prompt",
        "echo": "true: the prompt's text in front of the answer; not together with logprobs",
        "best_of": "only equal to n",
        "logprobs": "alternatives per generated token, 0 to 20",
    },
    refused={
        **_REFUSED,
        **dict.fromkeys(
            ("max_thinking_tokens", "thinking_token_budget", "thinking_budget"), "raw text has no reasoning"
        ),
        "response_format": "not supported for text completions",
        "suffix": "insertion is not supported",
    },
    ignored=_IGNORED,
)

STREAM_OPTIONS = Parameters(
    honoured={
        "include_usage": "true: a last chunk with the usage and no choices; the others then have usage null",
        "continuous_usage_stats": "true, with include_usage: every chunk has the usage up to it",
    },
    refused={},
    ignored={"include_obfuscation": "no padding is sent; use TLS and trust the network, or neither"},
)

MESSAGE = Parameters(
    honoured={
        "role": "system, developer, user, assistant or tool",
        "content": "text, or an array of text parts; only answers and tool results may have none",
        "refusal": "text of an assistant message without content",
        "name": "given to the template",
        "tool_calls": "of an assistant message",
        "tool_call_id": "of a tool message; results of parallel calls are put into the order of the calls",
        "reasoning_content": "of an assistant message: a string, or an array of segments, which are joined by lines",
        "reasoning": "the same under another name",
    },
    refused={"function_call": "retired; use tool_calls"},
    ignored={"audio": "refers to an earlier audio answer; this server gives none"},
)
