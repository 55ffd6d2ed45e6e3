"""The dashboard in a real browser: what it shows is what the server did, and nothing of it is ever run as markup."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from edgellm.server.admission.settings import AdmissionSettings

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
HI = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "hi"}]


def shown(running: Any, folder: Path) -> str:
    """The page's document after its script ran for some seconds."""
    assert BROWSER is not None
    url = f"http://127.0.0.1:{running.port}/dashboard"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--virtual-time-budget=4000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def text_of(document: str) -> str:
    """Without markup, script and style."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", " ", document)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def turn(running: Any, session: str, **headers: str) -> None:
    given = {"x-dynamo-session-id": session, **headers}
    running.http.post("/v1/chat/completions", json={"messages": HI}, headers=given).raise_for_status()


@needs_browser
def test_sessions_and_cache_are_shown(start: Any, tmp_path: Path) -> None:
    running = start(admission=AdmissionSettings())
    for _ in range(3):
        turn(running, "main-session")
    turn(running, "helper", **{"x-dynamo-parent-session-id": "main-session"})
    text = text_of(shown(running, tmp_path))
    assert "edgellm · tiny" in text
    row = re.search(r"main-session dynamo acting 3 (\d+) (\d+\.\d) %", text)
    assert row is not None, text
    assert float(row[2]) > 50
    assert re.search(r"main-session .* helper dynamo acting 1", text)  # a child follows its parent
    assert re.search(r"KV blocks: [1-9][\d.]* [KM]iB of", text)
    assert "priority 90" in text
    assert re.search(r"look-ups that hit [1-9]\d* of 4", text)
    assert re.search(r"0 paused 0 waiting", text)


@needs_browser
def test_names_are_text(running: Any, tmp_path: Path) -> None:
    turn(running, "<img src=x onerror=document.title='run'>")
    document = shown(running, tmp_path)
    assert "<title>edgellm</title>" in document
    assert "onerror=document.title" in text_of(document)
    assert not re.search(r"<img", re.sub(r"(?s)<script.*?</script>", "", document))


@needs_browser
def test_with_a_key_the_page_asks_for_it(start: Any, tmp_path: Path) -> None:
    running = start(api_keys=("secret",))
    document = shown(running, tmp_path)
    assert "an API key is needed" in text_of(document)
    assert 'class="shown"' in document


def test_the_page_is_whole_and_quiet(running: Any) -> None:
    """Nothing from elsewhere, and a policy that would not let it."""
    answer = running.http.get("/dashboard")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"https?://", answer.text)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", answer.text)
    assert "innerHTML" not in answer.text


def test_state_needs_the_key_and_the_page_does_not(start: Any) -> None:
    running = start(api_keys=("secret",))
    assert running.http.get("/dashboard", headers={"Authorization": ""}).status_code == 200
    assert running.http.get("/dashboard/state", headers={"Authorization": ""}).status_code == 401
    assert running.http.get("/dashboard/state").json()["sessions"] == []
