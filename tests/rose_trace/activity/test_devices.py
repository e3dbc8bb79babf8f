"""CUDA's device numbers beside NVML's, on machines that a fake NVML describes."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from rose_trace.activity import devices, gpm, utilisation
from rose_trace.activity.gpm import Gpm
from rose_trace.activity.utilisation import NvmlUtilisation
from tests.rose_trace.activity.nvml import Nvml

A, B, C = (f"GPU-{letter}{letter}000000-0000-0000-0000-000000000000" for letter in "abc")
MIG = "MIG-dd000000-0000-0000-0000-000000000000"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Three H200."""
    fake = Nvml(dict.fromkeys((A, B, C), "NVIDIA H200"), {A: 10, B: 20, C: 30})
    for module in (devices, gpm, utilisation):
        monkeypatch.setattr(module, "nvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return fake


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        (f"{C},{A}", [C, A]),
        ("GPU-b,0", [B, A]),
        ("gpu-B", [B]),
        ("GPU-", []),  # names three of them
        ("0,-1,1", [A]),
        ("1,7,0", [B]),
        ("1,nonsense,0", [B]),
        ("1,1", [B]),
        (MIG, [MIG]),
    ],
)
def test_what_cuda_visible_devices_leaves(chosen: str | None, expected: list[str]) -> None:
    assert devices.selected(chosen, [A, B, C]) == expected


def test_names_are_numbers_of_the_process(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.visible() == [("cuda:0", A), ("cuda:1", B), ("cuda:2", C)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"2,{A}")
    assert devices.visible() == [("cuda:0", C), ("cuda:1", A)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG)
    assert devices.visible() == [("cuda:0", f"by-uuid:{MIG}")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.visible() == []
    assert devices.missing() == "no visible NVIDIA GPU"


def test_where_gpus_differ_the_driver_tells_the_order(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.names[A] = "Tesla T4"
    asked: list[dict[str, str]] = []

    def run(_: list[str], *, env: dict[str, str], **rest: object) -> object:
        asked.append(env)
        return subprocess.CompletedProcess([], 0, stdout=f"{B}\n{C}\n{A}\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert devices.visible() == [("cuda:0", A), ("cuda:1", B)]
    assert "CUDA_VISIBLE_DEVICES" not in asked[0]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert devices.visible() == [("cuda:0", C), ("cuda:1", A)]
    assert len(asked) == 1


def test_without_an_answer_of_the_driver_nvml_order_stays(nvml: Nvml) -> None:
    """The real listing, on a machine that has none of these GPUs."""
    nvml.names[A] = "Tesla T4"
    assert devices.visible() == [("cuda:0", A), ("cuda:1", B), ("cuda:2", C)]


def test_utilisation_covers_every_visible_gpu(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    samples: list[tuple[str, str, int, int, float, bool]] = []
    source = NvmlUtilisation()
    source.start(samples.append)
    source.stop()
    assert {(device, share) for _, device, _, _, share, _ in samples} == {
        ("cuda:0", 0.3),
        ("cuda:1", 0.1),
    }
    assert all(estimate for *_, estimate in samples)


def test_gpm_covers_every_visible_gpu_and_never_reads_faster_than_its_counters(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = itertools.count(1_700_000_000_000_000_000, 60_000_000)

    class Time:
        time_ns = staticmethod(lambda: next(moments))

    monkeypatch.setattr(gpm, "time", Time)
    samples: list[tuple[str, str, int, int, float, bool]] = []
    source = Gpm()
    source.start(samples.append)
    source.stop()
    assert {device for _, device, *_ in samples} == {"cuda:0", "cuda:1", "cuda:2"}
    assert all(end - start >= gpm.RESOLUTION_NS for _, _, start, end, _, _ in samples)
    assert all(share == 0.25 for *_, share, _ in samples)
    assert nvml.allocated == 0


def test_gpm_says_which_gpu_is_too_old(nvml: Nvml) -> None:
    assert Gpm.unavailable() is None
    nvml.without_gpm.add(B)
    assert Gpm.unavailable() == "cuda:1: GPM needs Hopper or newer"
