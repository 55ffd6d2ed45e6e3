"""What must hold of an agent's run, and of its requests when they are replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgellm.server.sessions.identity import identify

from .clients import Client, Outcome
from .reading import Answer, generates, path_of, read_answer
from .script import AFTER, PRINTED, TASK
from .serving import Exchange

LEAST_SHARE = 0.9  # of a prompt that must come from the cache where the history only grew


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that was answered with tokens. `tools`: names that it declares; `of_task`: its history has the task."""

    exchange: Exchange
    answer: Answer
    tools: frozenset[str]
    of_task: bool

    @property
    def session(self) -> str | None:
        return self.exchange.answer_headers.get("x-edgellm-session-id")


@dataclass(frozen=True, slots=True)
class Report:
    """A run: its requests, those of them that were answered with tokens, and what is wrong with it."""

    requests: int
    turns: tuple[Turn, ...]
    problems: tuple[str, ...]

    @property
    def steps(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.of_task]

    @property
    def delegated(self) -> list[Turn]:
        """Steps of sub-agents."""
        return [turn for turn in self.turns if turn.tools and not turn.of_task]

    @property
    def called(self) -> list[str]:
        return [name for turn in self.steps for name, _ in turn.answer.calls]

    @property
    def share(self) -> float:
        """Of the prompt tokens of all steps after an agent's first, how many came from the cache."""
        later = [*self.steps[1:], *self.delegated[1:]]
        return sum(t.answer.cached_tokens for t in later) / max(1, sum(t.answer.prompt_tokens for t in later))


def examine(client: Client, exchanges: Sequence[Exchange]) -> Report:
    """The requests alone."""
    turns: list[Turn] = []
    problems: list[str] = []
    for number, exchange in enumerate(exchanges, 1):
        where = f"request {number}, {exchange.method} {exchange.path}"
        if not generates(exchange):
            if exchange.status != 200 and (exchange.method, path_of(exchange), exchange.status) not in client.probes:
                problems.append(f"{where}: status {exchange.status}: {exchange.answer[:300]!r}")
            continue
        try:
            answer = read_answer(exchange)
        except Exception as error:  # the clients' own errors too
            problems.append(f"{where}: {type(error).__name__}: {error}")
            continue
        body = json.loads(exchange.body)
        tools = frozenset(_names(body.get("tools") or ()))
        turns.append(
            Turn(exchange, answer, tools, of_task=bool(tools) and TASK in json.dumps(body, ensure_ascii=False))
        )
    report = Report(len(exchanges), tuple(turns), ())
    problems += [*_sessions(client, report), *_reuse(report)]
    return replace(report, problems=tuple(problems))


def _names(tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        if "tools" in tool:  # a namespace
            yield from _names(tool["tools"])
        else:
            yield str(tool.get("name") or tool.get("function", {}).get("name") or tool["type"])


def _sessions(client: Client, report: Report) -> Iterator[str]:
    for turn in report.turns:
        sent = dict(turn.exchange.headers)
        expected = next((sent[name] for name in client.session_headers if name in sent), None)
        if turn.session != expected:
            yield f"session {expected!r} was read as {turn.session!r}"
    if not client.session_headers or not report.steps:
        return
    root = report.steps[0].session
    if root is None or any(turn.session != root for turn in report.steps):
        yield f"the task's turns are of several sessions: {sorted({str(turn.session) for turn in report.steps})}"
    for turn in report.delegated:
        identity = identify([(name.encode(), value.encode()) for name, value in turn.exchange.headers])
        if identity is None or identity.session_id == root or identity.parent_id != root:
            yield f"a sub-agent of {root} was read as {identity}"


def _reuse(report: Report) -> Iterator[str]:
    for who, turns in (("step", report.steps), ("sub-agent's step", report.delegated)):
        for number, turn in enumerate(turns[1:], 2):
            cached, prompt = turn.answer.cached_tokens, turn.answer.prompt_tokens
            if cached < LEAST_SHARE * prompt:
                yield f"{who} {number}: {cached} of {prompt} prompt tokens came from the cache"


def judge(client: Client, outcomes: Sequence[Outcome], file: str, exchanges: Sequence[Exchange]) -> Report:
    """The whole run. `file`: what the file holds after it."""
    report = examine(client, exchanges)
    problems = list(report.problems)
    for number, outcome in enumerate(outcomes, 1):
        if outcome.status != 0:
            ended = "did not end in time" if outcome.status is None else f"ended with {outcome.status}"
            problems.append(f"command {number} {ended}")
        if PRINTED not in outcome.stdout:
            problems.append(f"the output of command {number} does not show what the program printed")
    if AFTER not in file:
        problems.append(f"the file was not edited: {file!r}")
    if not any(client.edits(*call) for turn in report.steps for call in turn.answer.calls):
        problems.append(f"it edited with none of its own tools: {report.called}")
    if not report.delegated:
        problems.append("there was no sub-agent")
    told = [turn for turn in report.steps if turn.answer.text.endswith(f"```\n{PRINTED}\n```")]
    if len(told) != len(outcomes):
        problems.append(f"{len(told)} of {len(outcomes)} last texts say what the program printed")
    if not all(turn.answer.reasoning for turn in report.steps):
        problems.append("an answer carried no reasoning")
    return replace(report, problems=tuple(problems))
