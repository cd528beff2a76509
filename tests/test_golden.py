"""Golden runs are unchanged: simulated times everywhere, training with the kernels of AVX2 and of AVX-512."""

import json
from typing import Any

import pytest
import torch

import golden
import golden_cases

RECORDED: dict[str, Any] = json.loads(golden.RECORDED.read_text())


def test_timing_is_unchanged() -> None:
    assert not golden.differences_from_recorded(RECORDED["timing"], golden_cases.timing_cases())


@pytest.mark.parametrize("kernels", ["avx2", pytest.param("avx512", marks=pytest.mark.slow)])
def test_training_is_unchanged(kernels: str) -> None:
    if reason := golden.why_not(RECORDED["versions"]):
        pytest.skip(reason)
    if kernels not in golden.instruction_sets():
        pytest.skip(f"this CPU lacks {kernels}")
    values = golden.compute_in(golden.ROOT, kernels)
    assert not golden.differences_from_recorded(RECORDED[kernels], golden.portable(values))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_losses_on_a_gpu_are_unchanged() -> None:
    recorded = json.loads(golden.RECORDED_GPU.read_text())
    assert not golden.differing_losses(recorded["losses"], golden.gpu_losses())
