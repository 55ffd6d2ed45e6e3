"""The page around the picture of a trace: title, figures, legend, colours, and what the pointer shows.

One file that loads nothing: it can be mailed, kept beside a trace, and opened without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from edgellm.server.tracing.picture import count, duration, picture
from edgellm.server.tracing.sessions import Session
from edgellm.server.tracing.summary import total_figures

_LEGEND: Final = (
    ("held", "held by admission"),
    ("queued", "queued for a slot"),
    ("prefill", "prefill"),
    ("decode", "decode"),
    ("tools", "tools run (inferred)"),
    ("user", "the user's turn"),
    ("failed", "failed or cancelled"),
)

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--ink:#1b1f24;--faint:#667080;--grid:#e6e9ee;--shade:#f6f7f9;--axis:#9aa4b2;
--held:#b4519c;--queued:#e3a008;--prefill:#2f6fb7;--decode:#2a9d74;--tools:#c3cad4;--failed:#d1242f;--tip:#1b1f24;
--tipink:#fff}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--ink:#e4e8ee;--faint:#8d98a8;--grid:#262b33;--shade:#1a1e24;
--axis:#566070;--held:#d079bb;--queued:#e9b949;--prefill:#5b9ae6;--decode:#3fbf90;--tools:#434b57;--failed:#ff6b6b;
--tip:#e4e8ee;--tipink:#14171c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 28px;max-width:1500px;background:var(--bg);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:19px;font-weight:600;margin:0}
.sub{color:var(--faint);margin:2px 0 14px}
dl{display:flex;flex-wrap:wrap;gap:8px 34px;margin:0 0 16px}
dt{color:var(--faint);font-size:12px}
dd{margin:0;font-size:17px;font-variant-numeric:tabular-nums}
ul{display:flex;flex-wrap:wrap;gap:4px 20px;list-style:none;margin:0 0 12px;padding:0;font-size:12.5px}
li{display:flex;align-items:center;gap:7px}
li svg{width:18px;height:12px}
.wide{overflow-x:auto}
.wide svg{display:block;width:100%;min-width:1200px;height:auto;overflow:visible}
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
.faint,.tick{fill:var(--faint);font-size:11px;font-variant-numeric:tabular-nums}
.tick{text-anchor:middle}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.shade{fill:var(--shade)}.branch{stroke:var(--axis);fill:none}
.whole{fill:var(--axis)}.held{fill:var(--held)}.queued{fill:var(--queued)}.prefill{fill:var(--prefill)}
.decode{fill:var(--decode)}
.tools{stroke:var(--tools);stroke-width:3}
.user{stroke:var(--tools);stroke-dasharray:1 5;stroke-width:2}.failed{stroke:var(--failed);stroke-width:2.5}
.thread{stroke:var(--axis);stroke-dasharray:2 3;fill:none;pointer-events:none}
.turn:hover rect,.turn:focus rect{filter:brightness(1.15);stroke:var(--ink);stroke-width:.8}
.turn{outline:none}
#tip{position:fixed;display:none;pointer-events:none;white-space:pre;background:var(--tip);color:var(--tipink);
padding:7px 10px;border-radius:6px;font-size:12px;line-height:1.5;font-variant-numeric:tabular-nums;z-index:1}
""".strip()

_SCRIPT: Final = """
const tip=document.getElementById("tip");
function show(target,x,y){
  const from=target.closest&&target.closest("[data-tip]");
  if(!from){tip.style.display="none";return}
  tip.textContent=from.dataset.tip;tip.style.display="block";
  tip.style.left=Math.max(4,Math.min(x+14,innerWidth-tip.offsetWidth-8))+"px";
  tip.style.top=(y+18+tip.offsetHeight>innerHeight?y-10-tip.offsetHeight:y+18)+"px";
}
document.addEventListener("pointermove",e=>show(e.target,e.clientX,e.clientY));
document.addEventListener("focusin",e=>{const b=e.target.getBoundingClientRect();show(e.target,b.left,b.bottom)});
""".strip()


def page(sessions: Sequence[Session]) -> str:
    """The HTML document of a trace with at least one request."""
    turns = [turn for session in sessions for turn in session.turns]
    start = min(turn.received_ms for turn in turns)
    end = max(turn.end_ms for turn in turns)
    began = datetime.fromtimestamp(start / 1e3, UTC)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Request trace</title>'
        f"<style>{_STYLE}</style></head><body><h1>Request trace</h1>"
        f'<p class="sub">{began:%Y-%m-%d %H:%M:%S} UTC, {duration(end - start)}</p>'
        f"{_figures(sessions)}{_legend()}"
        f'<div class="wide">{picture(sessions)}</div>'
        f'<div id="tip" role="status"></div><script>{_SCRIPT}</script></body></html>\n'
    )


def _figures(sessions: Sequence[Session]) -> str:
    total = total_figures(sessions)
    named = [session for session in sessions if session.id is not None]
    children = sum(session.parent_id is not None for session in named)
    shown = {
        "sessions": f"{len(named)}" + (f" ({children} sub-agent{'s' * (children > 1)})" if children else ""),
        "requests": f"{total.turns:,}",
        "tokens in": count(total.input_tokens),
        "from the cache": "-" if total.hit_rate is None else f"{total.hit_rate:.1%}",
        "tokens out": count(total.output_tokens),
        "mean time to first token": "-" if total.ttft_ms is None else duration(total.ttft_ms),
        "accepted length": "-" if total.accepted_length is None else f"{total.accepted_length:.2f}",
        "tools ran": duration(total.tools_s * 1e3),
    }
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items()) + "</dl>"


def _legend() -> str:
    marks = {
        "tools": '<path class="tools" d="M0 6H18"/>',
        "user": '<path class="user" d="M0 6H18"/>',
        "failed": '<path class="failed" d="M9 0V12"/>',
    }
    items = (
        f'<li><svg viewBox="0 0 18 12">{marks.get(name, f"<rect class={name!r} width=18 height=12 />")}</svg>'
        f"{words}</li>"
        for name, words in _LEGEND
    )
    return f"<ul>{''.join(items)}</ul>"
