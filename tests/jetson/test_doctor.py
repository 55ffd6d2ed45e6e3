"""What the doctor says: every finding that is not ok says what to do, and a machine without a device is not blamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from edgellm.jetson.doctor import examine
from edgellm.jetson.findings import Finding
from edgellm.jetson.host import Host
from edgellm.jetson.releases import WORKAROUND

MakeHost = Callable[..., Host]
JP72: Mapping[str, str | None] = {
    "etc/nv_tegra_release": "# R39 (release), REVISION: 2.0, GCID: 1\n",
    "usr/lib/aarch64-linux-gnu/libnvinfer.so.10.13.3": None,
    "usr/lib/aarch64-linux-gnu/libnvinfer.so.10.16.2": "",
}


def findings(host: Host) -> dict[str, Finding]:
    found = examine(host=host)
    assert len({finding.name for finding in found}) == len(found)
    for finding in found:
        assert finding.advice or finding.status in ("ok", "info"), finding
    return {finding.name: finding for finding in found}


def test_a_good_thor(thor: MakeHost) -> None:
    found = findings(thor(files=JP72, packages={"tensorrt": "10.16.2.10"}, cuda="13.2"))
    assert {name: finding.status for name, finding in found.items() if finding.status in ("warn", "fail")} == {}
    assert found["jetpack"].detail == "L4T 39.2.0, JetPack 7.2"
    assert "shares the system's memory" in found["device"].detail
    assert found["temperature"].detail == "tj-thermal 57 °C"
    assert "does not back" in found["swap"].detail


def test_a_machine_without_a_device_is_told_so_once(make_host: MakeHost) -> None:
    found = findings(make_host())
    assert "CPU executor" in found["device"].detail
    assert {"tensorrt", "nvrtc", "cuda", "power mode", "jetpack", "clocks"}.isdisjoint(found)
    assert found["machine"].detail.endswith("(no Jetson)")


def test_tensorrt_10_13_miscompiles_on_thor(thor: MakeHost) -> None:
    finding = findings(thor())["tensorrt"]
    assert finding.status == "warn"
    assert f'export __LUNOWUD="{WORKAROUND}"' in finding.advice
    eased = findings(thor(environ={"__LUNOWUD": WORKAROUND}))["tensorrt"]
    assert "export" not in eased.advice
    assert "is set" in eased.detail


@pytest.mark.parametrize(
    ("module", "library", "status", "words"),
    [
        ("10.16.2.10", "10.16.2", "ok", ""),
        ("11.4.1", "11.4.1", "ok", ""),
        ("10.12.0", "10.12.0", "fail", "10.13 is the oldest"),
        ("10.16.2.10", "10.13.3", "fail", "one version"),
        ("10.16.2.10", None, "ok", ""),
        (None, "10.16.2", "warn", "python3-libnvinfer"),
        (None, None, "warn", "python3-libnvinfer"),
    ],
)
def test_tensorrt_versions(thor: MakeHost, module: str | None, library: str | None, status: str, words: str) -> None:
    files: dict[str, str | None] = {
        "usr/lib/aarch64-linux-gnu/libnvinfer.so.10": None,
        "usr/lib/aarch64-linux-gnu/libnvinfer.so.10.13.3": None,
    }
    if library is not None:
        files[f"usr/lib/aarch64-linux-gnu/libnvinfer.so.{library}"] = ""
    finding = findings(thor(files=files, packages={"tensorrt": module}))["tensorrt"]
    assert finding.status == status, finding
    assert words in finding.advice


def test_a_module_that_the_environment_hides_is_found(thor: MakeHost) -> None:
    files = {"usr/lib/python3.12/dist-packages/tensorrt-10.16.2.10.dist-info/METADATA": ""}
    finding = findings(thor(files=files, packages={"tensorrt": None}))["tensorrt"]
    assert "10.16.2.10 is installed for the system's Python" in finding.detail
    assert "--system-site-packages" in finding.advice


@pytest.mark.parametrize(
    ("nvrtc", "driver", "status"),
    [
        ("13.0.88", "13.0", "ok"),
        ("13.0.88", "13.2", "ok"),
        ("13.2.10", "13.0", "fail"),
        ("13.2.10", "13.2", "warn"),
        ("12.9.1", "13.0", "warn"),
        ("13.5.0", None, "warn"),
        (None, "13.0", "warn"),
    ],
)
def test_nvrtc_must_not_be_newer_than_the_driver(
    thor: MakeHost, nvrtc: str | None, driver: str | None, status: str
) -> None:
    finding = findings(thor(packages={"nvidia-cuda-nvrtc": nvrtc}, cuda=driver))["nvrtc"]
    assert finding.status == status, finding
    assert finding.status == "ok" or "nvidia-cuda-nvrtc==13.0.*" in finding.advice


def test_power_mode_and_clocks_that_published_figures_do_not_assume(thor: MakeHost) -> None:
    moving = {"sys/class/devfreq/gpu-gpc-0/min_freq": "306000000"}
    found = findings(thor(files=moving, tools={"nvpmodel -q": "NV Power Mode: 120W\n1\n"}))
    assert (found["power mode"].detail, found["power mode"].status) == ("120W", "warn")
    assert "nvpmodel -m 0" in found["power mode"].advice
    assert "jetson_clocks" in found["clocks"].advice


def test_tools_that_do_not_answer_are_said_to_be_absent(thor: MakeHost) -> None:
    no_clocks = {f"sys/class/devfreq/{name}/cur_freq": None for name in ("gpu-gpc-0", "bwmgr")}
    found = findings(thor(files=no_clocks, tools={"nvpmodel -q": None, "nvidia-smi": None}))
    assert "does not answer" in found["power mode"].detail
    assert "not readable" in found["clocks"].detail
    assert "nvidia-smi does not answer" in found["device"].detail


def test_heat_and_throttling(thor: MakeHost) -> None:
    files = {
        "sys/class/thermal/thermal_zone8/temp": "97500",
        "sys/class/thermal/thermal_zone9/type": "some-other-zone",  # hotter, but no junction
        "sys/class/thermal/thermal_zone9/temp": "99000",
        "sys/class/hwmon/hwmon1/name": "soctherm_oc",
        "sys/class/hwmon/hwmon1/oc3_event_cnt": "2",
    }
    found = findings(thor(files=files))
    assert (found["temperature"].status, found["throttling"].detail) == ("warn", "oc3 2")
    assert found["temperature"].detail == "tj-thermal 98 °C"


@pytest.mark.parametrize(
    ("line", "words"),
    [("# R40 (release), REVISION: 1.0\n", "L4T 40.1.0, JetPack unknown"), (None, "no /etc/nv_tegra_release")],
)
def test_a_release_that_is_not_known_is_not_guessed(thor: MakeHost, line: str | None, words: str) -> None:
    finding = findings(thor(files={"etc/nv_tegra_release": line}))["jetpack"]
    assert finding.status == "warn"
    assert words in finding.detail


def test_a_driver_without_libcuda(thor: MakeHost) -> None:
    finding = findings(thor(cuda=None))["cuda"]
    assert finding.status == "warn"
    assert "--runtime nvidia" in finding.advice


def test_a_missing_package_is_named(make_host: MakeHost) -> None:
    found = findings(make_host(packages={"onnxruntime": "1.32.0", "onnx": "1.23.2"}))
    assert found["tokenizers"].status == "fail"
