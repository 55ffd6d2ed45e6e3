"""What is read of a machine: a Thor, an Orin, a box with a GPU of its own, a laptop, and one that says nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.jetson.host import Host, run_tool
from edgellm.jetson.machine import Gpu, read_machine
from edgellm.jetson.power import Clock
from edgellm.jetson.releases import numbers, release_of

MakeHost = Callable[..., Host]


def test_a_thor(thor: MakeHost) -> None:
    machine = read_machine(thor())
    assert machine.is_jetson
    assert machine.model == "NVIDIA Jetson AGX Thor Developer Kit"
    assert (machine.l4t, machine.jetpack) == ("38.4.0", "7.1")
    assert machine.memory.total == 125_772 << 20
    assert machine.memory.available == 120_000 << 20
    assert machine.memory.swap == 8 << 30
    assert machine.gpu == Gpu("NVIDIA Thor", "sm_110", "580.00", None)  # [N/A]: its memory is the system's
    assert machine.tools.tensorrt == "10.13.3.9"
    assert machine.tools.tensorrt_library == "10.13.3"
    assert (machine.tools.cuda_driver, machine.tools.cuda_toolkit) == ("13.0", "13.0.48")
    assert machine.power.mode == "MAXN"
    assert machine.power.clocks == (Clock("gpu", 1575, 1575, 1575), Clock("memory", 4266, 4266, 4266))
    assert machine.power.temperatures == {"cpu-thermal": 52.906, "tj-thermal": 56.906}
    assert machine.power.throttling == {}


def test_every_result_says_what_machine_it_is_of(thor: MakeHost) -> None:
    record = json.loads(json.dumps(read_machine(thor()).to_dict()))
    for words in ("AGX Thor", "JetPack 7.1", "L4T 38.4.0", "MAXN", "gpu 1575 MHz", "memory 4266 MHz", "122.8 GiB"):
        assert words in record["summary"]
    assert record["power"]["mode"] == "MAXN"
    assert record["cores"] > 0
    assert record["gpu"]["architecture"] == "sm_110"


def test_without_nvidia_smi_the_device_tree_says_what_it_is(thor: MakeHost) -> None:
    assert read_machine(thor(tools={"nvidia-smi": None})).gpu == Gpu(None, "sm_110", "580.00", None)


@pytest.mark.parametrize("answer", ["", "\n", "NVIDIA-SMI has failed\n", "[N/A], [N/A], [N/A], [N/A]\n"])
def test_an_nvidia_smi_that_says_nothing(thor: MakeHost, answer: str) -> None:
    gpu = read_machine(thor(tools={"nvidia-smi": answer})).gpu
    assert gpu is not None
    assert (gpu.name, gpu.architecture, gpu.memory) == (None, "sm_110", None)


def test_the_package_says_the_jetpack_first(thor: MakeHost) -> None:
    status = "Package: nvidia-jetpack-dev\nVersion: 9.9\n\nPackage: nvidia-jetpack\nStatus: x\nVersion: 7.0-b128\n\n"
    assert read_machine(thor(files={"var/lib/dpkg/status": status})).jetpack == "7.0"


def test_where_devfreq_lacks_a_clock_jetson_clocks_is_asked(make_host: MakeHost) -> None:
    shown = (
        "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit\n"
        "cpu0: Online=1 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=729600\n"
        "GPU MinFreq=306000000 MaxFreq=1300500000 CurrentFreq=612000000\n"
        "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=0\n"
    )
    cpu = {
        f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_{which}_freq": str(khz)
        for core, highest in ((0, 2_000_000), (1, 2_601_000))
        for which, khz in (("cur", 729_600), ("min", 729_600), ("max", highest))
    }
    power = read_machine(make_host(cpu, {"jetson_clocks --show": shown})).power
    assert [(clock.name, clock.mhz, clock.highest_mhz) for clock in power.clocks] == [
        ("gpu", 612, 1300.5),
        ("memory", 3199, 3199),
        ("cpu", 729.6, 2601),
    ]
    assert not any(clock.pinned for clock in power.clocks)


def test_throttling_is_counted_where_it_happened(thor: MakeHost) -> None:
    files = {
        "sys/class/hwmon/hwmon3/name": "soctherm_oc\n",
        "sys/class/hwmon/hwmon3/oc1_event_cnt": "0\n",
        "sys/class/hwmon/hwmon3/oc3_event_cnt": "37\n",
        "sys/class/hwmon/hwmon4/name": "ina3221\n",
        "sys/class/hwmon/hwmon4/oc2_event_cnt": "9\n",
        "sys/class/thermal/cooling_device1/type": "gpu-throttle-alert\n",
        "sys/class/thermal/cooling_device1/cur_state": "1\n",
        "sys/class/thermal/cooling_device2/type": "pwm-fan\n",
        "sys/class/thermal/cooling_device2/cur_state": "3\n",
    }
    assert read_machine(thor(files=files)).power.throttling == {"oc3": 37, "gpu-throttle-alert": 1}


def test_a_box_with_a_gpu_of_its_own(make_host: MakeHost) -> None:
    host = make_host(tools={"nvidia-smi": "NVIDIA H200, 9.0, 580.95.05, 143771 MiB\n"}, cuda="13.0")
    machine = read_machine(host)
    assert not machine.is_jetson
    assert machine.gpu == Gpu("NVIDIA H200", "sm_90", "580.95.05", 143_771 << 20)


def test_a_laptop(make_host: MakeHost) -> None:
    files = {
        "sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "sys/class/dmi/id/product_name": "21AH\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: A Fast CPU\n",
    }
    machine = read_machine(make_host(files))
    assert (machine.model, machine.processor, machine.gpu) == ("LENOVO 21AH", "A Fast CPU", None)


def test_a_machine_that_says_nothing(make_host: MakeHost) -> None:
    machine = read_machine(make_host())
    assert machine.memory.total > 0
    assert (machine.model, machine.l4t, machine.jetpack, machine.gpu, machine.power.mode) == (None,) * 5
    assert machine.power.clocks == ()
    json.dumps(machine.to_dict())


@pytest.mark.parametrize("text", ["", "nonsense", "\0\0", "{}", "[1]", '{"cuda": 3}', "-", "99999999999999999999 kB"])
def test_files_of_another_form_are_facts_that_are_missing(thor: MakeHost, text: str) -> None:
    root = thor().root
    files = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    host = thor(files=dict.fromkeys(files, text), tools=dict.fromkeys(("nvpmodel -q", "nvidia-smi"), text))
    machine = read_machine(host)
    assert machine.jetpack is None
    assert machine.power.mode is None
    json.dumps(machine.to_dict())


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.memory.total >= machine.memory.available > 0
    assert machine.cores >= 1


def test_tools_that_are_absent_fail_or_hang_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tool(["edgellm-no-such-tool"]) is None
    assert run_tool([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert run_tool([sys.executable, "-c", "print('x')"]) == "x\n"

    def hang(*_: Any, **options: Any) -> None:
        raise subprocess.TimeoutExpired("tool", options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert run_tool(["tool"]) is None


@pytest.mark.parametrize(
    ("line", "l4t", "jetpack"),
    [
        ("# R38 (release), REVISION: 2.0, GCID: 1", "38.2.0", "7.0"),
        ("# R38 (release), REVISION: 2.1, GCID: 1", "38.2.1", "7.0"),
        ("# R38 (release), REVISION: 4.0, GCID: 1", "38.4.0", "7.1"),
        ("# R39 (release), REVISION: 2.0, GCID: 1", "39.2.0", "7.2"),
        ("# R36 (release), REVISION: 4.3, GCID: 1", "36.4.3", None),
        ("# R39 (release), REVISION: 20.0, GCID: 1", "39.20.0", None),
    ],
)
def test_releases(thor: MakeHost, line: str, l4t: str, jetpack: str | None) -> None:
    machine = read_machine(thor(files={"etc/nv_tegra_release": line}))
    assert (machine.l4t, machine.jetpack) == (l4t, jetpack)
    assert (release_of(l4t) is None) == (jetpack is None)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_versions_are_their_numbers(pieces: list[int]) -> None:
    version = ".".join(map(str, pieces))
    assert numbers(version) == numbers(f"{version}-b12") == numbers(f"{version}+cuda13") == tuple(pieces)
