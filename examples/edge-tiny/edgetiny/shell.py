"""Turns of a coding agent: read, search, edit and run in a folder.

What must stay true: paths and texts of a call stand in the conversation before it. The tools' own names are the same in
both splits, as agents' tools are; paths and names in them are of the split.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from edgetiny.schemas import SchemaMaker
from edgetiny.turns import Call, Message, assistant, made, tool, user
from edgetiny.values import path as any_path
from edgetiny.words import Lexicon

Agent = dict[str, tuple[str, dict[str, str]]]  # what it does → the tool's name, and what its parameters are called

_ABOUT: Final = {
    "run": "Run a shell command",
    "read": "Read a file",
    "write": "Write a file",
    "edit": "Replace text in a file",
    "search": "Search files for a text",
    "list": "List the files of a folder",
}
_NAMES: Final = {
    "run": ("bash", "shell", "run_command", "Bash", "execute"),
    "read": ("read_file", "read", "Read", "view_file", "open_file"),
    "write": ("write_file", "write", "Write", "create_file"),
    "edit": ("edit_file", "edit", "Edit", "str_replace"),
    "search": ("grep", "search", "Grep", "search_files"),
    "list": ("list_files", "ls", "list_dir", "LS"),
}
_PARAMETERS: Final[dict[str, dict[str, tuple[tuple[str, ...], str]]]] = {
    "run": {"command": (("command", "command", "cmd"), "Command to run")},
    "read": {"path": (("path", "file_path", "path"), "Path of the file")},
    "write": {
        "path": (("path", "file_path"), "Path of the file"),
        "content": (("content", "text"), "Text of the file"),
    },
    "edit": {
        "path": (("path", "file_path"), "Path of the file"),
        "old": (("old", "old_string", "old_text"), "Text to replace"),
        "new": (("new", "new_string", "new_text"), "New text"),
    },
    "search": {
        "pattern": (("pattern", "query"), "Text to search for"),
        "path": (("path", "folder"), "Where to search"),
    },
    "list": {"path": (("path", "folder", "dir"), "Path of the folder")},
}
_RUNNERS: Final = (
    "python {p}",
    "pytest {p}",
    "node {p}",
    "bash {p}",
    "make -f {p}",
    "cat {p}",
    "wc -l {p}",
    "head -n 5 {p}",
    "git add {p}",
    "git diff {p}",
    "rm {p}",
    "chmod +x {p}",
    "ruff check {p}",
    "tail -n 20 {p}",
)
_COMMANDS: Final = (
    "ls -la",
    "git status",
    "pwd",
    "git log --oneline",
    "make test",
    "npm install",
    "pytest -q",
    "df -h",
    "git pull",
    "docker ps",
    "npm run build",
    "cargo test",
    "go build ./...",
    "ps aux",
    "whoami",
)


def shell(maker: SchemaMaker) -> dict[str, Any]:
    """Some steps of a coding agent; the last turn is a call or the closing words."""
    rng = maker.rng
    names, tools = _agent(rng, maker.stage)
    scene = rng.choice([make for needs, make in _SCENES if needs <= names.keys()])
    messages = scene(maker.lex, rng, names)
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    last = turns[-1] if rng.random() < 0.5 else rng.choice(turns)
    return made(messages[: last + 1], tools, "I do the next step.")


def _agent(rng: Random, stage: float) -> tuple[Agent, list[dict[str, Any]]]:
    kinds = ["run", "read", "edit", *rng.sample(("write", "search", "list"), rng.randint(0, round(3 * stage)))]
    agent: Agent = {}
    tools = []
    for kind in rng.sample(kinds, len(kinds)):
        chosen = {part: (rng.choice(names), about) for part, (names, about) in _PARAMETERS[kind].items()}
        agent[kind] = (rng.choice(_NAMES[kind]), {part: name for part, (name, _) in chosen.items()})
        properties = {name: {"type": "string", "description": about} for name, about in chosen.values()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        body = {"name": agent[kind][0], "description": _ABOUT[kind], "parameters": parameters}
        tools.append({"type": "function", "function": body})
    return agent, tools


def _call(agent: Agent, kind: str, **values: str) -> Call:
    name, parameters = agent[kind]
    return name, {parameters[part]: value for part, value in values.items()}


def _step(text: str, call: Call, result: str) -> list[Message]:
    return [assistant(text, [call]), tool(result)]


def _code_line(lex: Lexicon, rng: Random) -> str:
    name, other = rng.choice(lex.code_words), lex.word(rng).replace(" ", "_")
    number = rng.randint(0, 99)
    return rng.choice(
        (
            f"{name} = {number}",
            f'{name} = "{other}"',
            f"return {name}",
            f"import {name}",
            f"{name} = {other}",
            f"def {other}({name}):",
            f"if {name} > {number}:",
            f'print("{other}")',
            f"{other}.{name}()",
        )
    )


def _code(lex: Lexicon, rng: Random, low: int, high: int) -> list[str]:
    return list(dict.fromkeys(_code_line(lex, rng) for _ in range(rng.randint(low, high))))


def _read_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    path, lines = any_path(lex, rng), _code(lex, rng, 1, 5)
    ask = rng.choice(("Show me {p}", "What is in {p}?", "Read {p}", "Open the file {p}.", "Please read {p}."))
    steps = _step("", _call(agent, "read", path=path), "\n".join(lines))
    close = rng.choice(
        (f"{path} has {len(lines)} lines. The first line is: {lines[0]}", f"The last line is: {lines[-1]}")
    )
    return [user(ask.format(p=path)), *steps, assistant(close)]


def _run_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    path = any_path(lex, rng)
    command = rng.choice(_RUNNERS).format(p=path) if rng.random() < 0.7 else rng.choice(_COMMANDS)
    ask = rng.choice(
        ("Run `{c}`", "Run {c}", "Execute `{c}` please.", "Please run the command {c}", "Can you run `{c}`?")
    )
    result = rng.choice(
        (f"{rng.randint(1, 60)} passed", "ok", f"error: {lex.word(rng)} not found", f"{rng.randint(1, 400)}")
    )
    return [
        user(ask.format(c=command)),
        *_step("", _call(agent, "run", command=command), result),
        assistant(f"The result of `{command}` is: {result}"),
    ]


def _edit_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    path, lines = any_path(lex, rng), _code(lex, rng, 2, 5)
    old = rng.choice(lines)
    new = _code_line(lex, rng)
    ask = rng.choice(
        ("In {p}, replace `{o}` with `{n}`.", "Change `{o}` to `{n}` in {p}", "Edit {p}: `{o}` should be `{n}`.")
    )
    steps = []
    if rng.random() < 0.6:
        steps = _step(rng.choice(("", "I read the file first.")), _call(agent, "read", path=path), "\n".join(lines))
    steps += _step(
        "", _call(agent, "edit", path=path, old=old, new=new), rng.choice(("ok", "File edited.", "1 change"))
    )
    return [user(ask.format(p=path, o=old, n=new)), *steps, assistant(f"Done: {path} now has `{new}`.")]


def _fix_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    test, path = any_path(lex, rng), any_path(lex, rng)
    name, wrong, right = rng.choice(lex.code_words), rng.randint(0, 99), rng.randint(100, 999)
    lines = _code(lex, rng, 1, 3)
    lines.insert(rng.randint(0, len(lines)), f"{name} = {wrong}")
    run = _call(agent, "run", command=f"pytest {test}")
    return [
        user(
            rng.choice(("`pytest {t}` fails. Fix it.", "Fix what `pytest {t}` finds.", "Make pytest {t} pass.")).format(
                t=test
            )
        ),
        *_step("I run the test.", run, f"{path}: `{name} = {wrong}` should be `{name} = {right}`\n1 failed"),
        *_step("", _call(agent, "read", path=path), "\n".join(lines)),
        *_step("", _call(agent, "edit", path=path, old=f"{name} = {wrong}", new=f"{name} = {right}"), "ok"),
        *_step("", run, "1 passed"),
        assistant(f"Fixed: {name} is now {right} in {path}, and the test passes."),
    ]


def _search_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    word, folder, path = lex.word(rng), rng.choice(("src", "lib", ".", "app", "tests")), any_path(lex, rng)
    line = f"{word} = {rng.randint(0, 99)}"
    ask = rng.choice(
        ("Where is {w} in {f}?", "Search {f} for {w}", "Find {w} in the folder {f}.", "Which file in {f} has {w}?")
    )
    return [
        user(ask.format(w=word, f=folder)),
        *_step("", _call(agent, "search", pattern=word, path=folder), f"{path}:{rng.randint(1, 300)}: {line}"),
        assistant(f"{word} is in {path}."),
    ]


def _write_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    path, text = any_path(lex, rng), "\n".join(_code(lex, rng, 1, 3))
    ask = rng.choice(("Create {p} with:\n{t}", "Write this to {p}:\n{t}", "Make a file {p} with this text:\n{t}"))
    return [
        user(ask.format(p=path, t=text)),
        *_step("", _call(agent, "write", path=path, content=text), "ok"),
        assistant(f"I wrote {path}."),
    ]


def _list_scene(lex: Lexicon, rng: Random, agent: Agent) -> list[Message]:
    folder = any_path(lex, rng).rpartition("/")[0] or "."
    files = sorted({any_path(lex, rng).rpartition("/")[2] for _ in range(rng.randint(1, 4))})
    ask = rng.choice(("List {f}", "Which files are in {f}?", "What is in the folder {f}?", "Show the files of {f}."))
    return [
        user(ask.format(f=folder)),
        *_step("", _call(agent, "list", path=folder), "\n".join(files)),
        assistant(f"{folder} has {', '.join(files)}."),
    ]


_Scene = Callable[[Lexicon, Random, Agent], list[Message]]
_SCENES: Final[tuple[tuple[set[str], _Scene], ...]] = (
    ({"read"}, _read_scene),
    ({"run"}, _run_scene),
    ({"edit"}, _edit_scene),
    ({"run", "read", "edit"}, _fix_scene),
    ({"search"}, _search_scene),
    ({"write"}, _write_scene),
    ({"list"}, _list_scene),
)
