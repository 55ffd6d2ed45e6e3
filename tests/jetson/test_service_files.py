"""The systemd unit and the container file, as far as they can be checked without systemd, a registry or a device."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from importlib import resources

import pytest
from typer.testing import CliRunner

from edgellm.cli import app

UNIT = (resources.files("edgellm.jetson") / "systemd" / "edgellm.service").read_text(encoding="utf-8")
CONTAINER = (resources.files("edgellm.jetson") / "Containerfile").read_text(encoding="utf-8")


@pytest.fixture
def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT)
    return parser


def test_the_manager_is_told_and_watches(unit: ConfigParser) -> None:
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "on-failure"


def test_nothing_takes_the_gpu_away(unit: ConfigParser) -> None:
    closing = {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute"}
    assert closing.isdisjoint(unit["Service"])


def test_the_service_is_confined(unit: ConfigParser) -> None:
    service = unit["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["User"] != "root"
    assert int(service["MemorySwapMax"]) == 0
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


def test_the_options_in_both_files_are_options_of_serve() -> None:
    helped = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["serve", "--help"]).stdout
    options = next(line for line in UNIT.splitlines() if "EDGELLM_OPTIONS=" in line).partition("EDGELLM_OPTIONS=")[2]
    command = next(line for line in CONTAINER.splitlines() if line.startswith("CMD")).removeprefix("CMD ")
    flags = [word for word in [*shlex.split(options), *re.findall(r'"([^"]*)"', command)] if word.startswith("--")]
    assert len(flags) > 4
    for flag in flags:
        assert re.search(rf"{flag}\b", helped), flag


def test_the_container_has_no_default_base_that_was_never_run() -> None:
    assert re.search(r"^ARG TENSORRT_TAG$", CONTAINER, re.MULTILINE)
    assert re.search(r"^FROM nvcr\.io/nvidia/tensorrt:\$\{TENSORRT_TAG\}$", CONTAINER, re.MULTILINE)
    assert "has not been built or run" in CONTAINER
    assert "HEALTHCHECK" in CONTAINER
