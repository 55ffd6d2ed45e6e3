"""A scripted coding model: reads the prompt as a model would and answers with the next step of one small task.

List the folder, read the file, edit it, run it, report what it printed; asked again, run it again. Each step goes
through whatever tool the agent declares for it. What must stay true: the answer depends on the prompt alone, so a
repeated or reordered request gets the same answer; a request without the task or without tools gets a short text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgellm.engine.scripts import ReplyScript
from edgellm.text.tokenizer import Tokenizer

from .transcript import Call, Transcript, read_transcript

FILE: Final = "hello.py"
BEFORE: Final = 'print("helo")'
AFTER: Final = 'print("hello")'
PRINTED: Final = "hello"
TASK: Final = (
    f"The greeting in {FILE} lacks a letter: helo must be hello. List the files, read {FILE}, edit it, "
    f"run it with python3 and tell me what it prints."
)  # without quotes, which some agents escape
AGAIN: Final = f"Now run {FILE} once more and tell me what it prints."
TOLD: Final = f"`{FILE}` prints:"
DELEGATE: Final = f"Let a sub-agent run {FILE} and tell me what it prints."
SHORT: Final = "Fix a greeting"
REFUSAL: Final = "I cannot do this with the tools I have"

SHELL: Final = ("Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "local_shell")
READ: Final = ("Read", "read", "read_file")
EDIT: Final = ("Edit", "edit", "apply_patch")
START: Final = ("Agent", "agent", "task", "multi_agent_v1__spawn_agent")
WAIT: Final = "multi_agent_v1__wait_agent"

_LIST: Final = 'ls -d "$PWD"/*'
_SHOW: Final = f"cat {FILE}"
_RUN: Final = f"python3 {FILE}"
_PATCH: Final = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{BEFORE}\n+{AFTER}\n*** End Patch\n"
_SHELL_PATCH: Final = f"apply_patch <<'EOF'\n{_PATCH}EOF"


@dataclass(frozen=True, slots=True)
class Step:
    """Attributes:
    why: the words before the call.
    thought: the think block before it.
    values: of the call's parameters, by every name that an agent may give them.
    tools: that can do it, best first.
    """

    name: str
    why: str
    thought: str
    tools: tuple[str, ...]
    values: dict[str, Any]


def steps(path: str) -> list[Step]:
    """The way to the end. `path`: of the file, absolute once the listing told it."""
    show, run = _command(_SHOW, "Show it"), _command(_RUN, "Run the program")
    edit = {"old_string": BEFORE, "oldString": BEFORE, "new_string": AFTER, "newString": AFTER, "input": _PATCH}
    edit |= _path(path) | _command(_SHELL_PATCH, "Edit it")
    return [
        Step("list", "I look at the files first.", "What is there?", SHELL, _command(_LIST, "List the files")),
        Step("read", f"Now I read {FILE}.", "The file is there.", (*READ, *SHELL), _path(path) | show),
        Step("edit", "I correct the word.", "A letter is missing.", (*EDIT, *SHELL), edit),
        Step("run", "I run it.", "Does it print the right word?", SHELL, run),
    ]


def delegation(tools: Collection[str], started: str) -> list[Step]:
    """The way to the end through a sub-agent, who is told `AGAIN`. `started`: what the call that started it gave."""
    kind = "general" if "task" in tools else "general-purpose"
    orders = {"description": "Run the program", "prompt": AGAIN, "message": AGAIN, "subagent_type": kind}
    way = [Step("start", "I let another do it.", "A sub-agent can.", START, {**orders, "run_in_background": False})]
    if WAIT in tools:
        found = _UUID.search(started)
        waiting = {"targets": [found[0] if found else started], "timeout_ms": 60_000}
        way.append(Step("wait", "I wait for it.", "It needs a moment.", (WAIT,), waiting))
    return way


def _command(line: str, description: str) -> dict[str, Any]:
    return {"command": line, "cmd": line, "description": description}


def _path(path: str) -> dict[str, Any]:
    return {"file_path": path, "filePath": path, "absolute_path": path, "path": path}


def answer(transcript: Transcript) -> str:
    """What the model says next, think block included where one is open."""
    thought, said = _said(transcript)
    return f"{thought}\n</think>\n\n{said}" if transcript.thinking_open else said


def _said(transcript: Transcript) -> tuple[str, str]:
    place = max((n for n, text in enumerate(transcript.asked) if any(told in text for told in _ORDERS)), default=None)
    if place is None or not transcript.tools:
        return "A title will do.", SHORT
    calls = [call for call in transcript.calls if call.asked > place and call.result is not None]
    order = next(told for told in _ORDERS if told in transcript.asked[place])
    if order == DELEGATE:
        way = delegation(transcript.tools, str(calls[0].result) if calls else "")
    else:
        way = steps(_listed_path(calls))[-1 if order == AGAIN else 0 :]
    if len(calls) >= len(way):
        return "That is all.", f"{TOLD}\n\n```\n{_printed(calls[len(way) - 1])}\n```"
    step = way[len(calls)]
    name = next((name for name in step.tools if name in transcript.tools), None)
    if name is None:
        return "There is no tool for this.", f"{REFUSAL}: {step.name} ({', '.join(transcript.tools)})"
    return step.thought, f"{step.why}\n\n{_call_text(name, transcript.tools[name], step.values)}"


def _listed_path(calls: Sequence[Call]) -> str:
    found = calls and re.search(rf"/\S*/{re.escape(FILE)}\b", calls[0].result or "")
    return found[0] if found else FILE


def _printed(call: Call) -> str:
    """What the program printed, without what agents put around it."""
    found = re.search(rf"\b{PRINTED}\b", call.result or "")
    return found[0] if found else f"(something else: {call.result})"


_ORDERS: Final = (DELEGATE, AGAIN, TASK)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FILLERS: Final[dict[str, Any]] = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}}


def _call_text(name: str, schema: dict[str, Any], values: dict[str, Any]) -> str:
    """The call in the model's own form: of the declared parameters, those in `values` and those that are required."""
    declared = schema.get("properties", {})
    given: dict[str, Any] = {}
    for parameter, kind in declared.items():
        if parameter in values:
            value = values[parameter]
            shell = kind.get("type") == "array" and isinstance(value, str)
            given[parameter] = ["bash", "-lc", value] if shell else value
        elif parameter in schema.get("required", ()):
            given[parameter] = _FILLERS.get(kind.get("type"), "")
    lines = [
        f"<parameter={parameter}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for parameter, value in given.items()
    ]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


def reply(tokenizer: Tokenizer) -> Callable[[tuple[int, ...]], Sequence[int]]:
    return lambda prompt: tokenizer.encode(answer(read_transcript(tokenizer, prompt)), allow_special=True)


def agent_script(tokenizer: Tokenizer) -> ReplyScript:
    """The script for `ScriptedExecutor`."""
    return ReplyScript(reply(tokenizer), eos=tokenizer.eos_token_ids[0], vocab_size=tokenizer.vocab_size)
