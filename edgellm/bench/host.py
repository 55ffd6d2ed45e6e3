"""Host work per decode step: everything but the model, measured with an executor that has none.

One sequence decodes with 16-node trees on the scripted executor; the time spent inside the executor is subtracted, so
what is left is drafting, acceptance, sampling, detokenisation and the engine loop itself.
"""

from __future__ import annotations

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.runtime.types import Request


def host_overhead_ms_per_step(tokens: int = 2000) -> float:
    """Milliseconds of host work per decode step (one sequence, tree of 16 nodes)."""
    from edgellm.bench.tiny import tiny_text
    from edgellm.engine.scripted import ScriptedExecutor
    from edgellm.runtime.llm import LLM

    tokenizer, renderer = tiny_text()
    executor = ScriptedExecutor(vocab_size=tokenizer.vocab_size)
    with LLM.from_parts(executor, tokenizer, renderer, speculation=SpeculationParams()) as llm:
        request = Request(
            id="host", prompt=tuple(range(10, 74)), sampling=SamplingParams(max_tokens=tokens, ignore_eos=True)
        )
        before = llm.engine.stats()
        for _ in llm.engine.submit(request):
            pass
        after = llm.engine.stats()
    return (after.host_s - before.host_s) / (after.steps - before.steps) * 1e3
