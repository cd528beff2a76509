"""Golden runs are unchanged: simulated times everywhere, training with the kernels of AVX2 and of AVX-512."""

import json
from typing import Any

import pytest

import golden
import golden_cases

RECORDED: dict[str, Any] = json.loads(golden.RECORDED.read_text())


def fail_on(differing: list[str]) -> None:
    if differing:
        remedy = "see 'Golden runs' in CONTRIBUTING.md"
        pytest.fail("\n".join(["results differ from the recorded ones; " + remedy, *differing]), pytrace=False)


def test_timing_is_unchanged() -> None:
    fail_on(golden.differences_from_recorded(RECORDED["timing"], golden_cases.timing_cases()))


@pytest.mark.parametrize("kernels", ["avx2", pytest.param("avx512", marks=pytest.mark.slow)])
def test_training_is_unchanged(kernels: str) -> None:
    if reason := golden.why_not(RECORDED["versions"]):
        pytest.skip(reason)
    if kernels not in golden.instruction_sets():
        pytest.skip(f"this CPU lacks {kernels}, or ATEN_CPU_CAPABILITY disables it")
    values = golden.compute_in(golden.ROOT, kernels)
    fail_on(golden.differences_from_recorded(RECORDED[kernels], golden.portable(values)))


@pytest.mark.usefixtures("gpu")
def test_losses_on_a_gpu_are_unchanged() -> None:
    recorded = json.loads(golden.RECORDED_GPU.read_text())
    fail_on(golden.differing_losses(recorded["losses"], golden.gpu_losses()))
