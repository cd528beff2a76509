"""Gradients of convolutions, with and without AVX-512, in the memory layout that replicas choose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lesson import InputError, Task
from lesson.learn.networks import GroupNormResNet
from lesson.learn.template import Template


@pytest.mark.parametrize("isa", [{}, {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}])
def test_gradients_are_correct_and_do_not_crash_the_process(isa: dict[str, str]) -> None:
    command, folder = [sys.executable, "-m", "helpers.layouts"], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, env=os.environ | isa, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-4


def template(model: nn.Module) -> Template:
    data = torch.rand(4, 3, 16, 16), torch.arange(4)
    return Template(Task(train=data, test=data, model=lambda: model), seed=0)


def test_models_with_narrow_strided_or_transposed_convolutions_avoid_channels_last() -> None:
    assert template(GroupNormResNet()).channels_last
    assert not template(GroupNormResNet(width=4)).channels_last
    assert not template(nn.Sequential(nn.ConvTranspose2d(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())).channels_last


def test_a_model_may_store_its_weights_channels_last() -> None:
    """Even if images are contiguous, the weights alone would make torch use the layout."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    weight = template(model.to(memory_format=torch.channels_last)).model.get_parameter("0.weight")
    assert weight.stride() == (3, 1, 1, 1)


class OwnLayout(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = super().forward(images.to(memory_format=torch.channels_last))
        return outputs


def test_a_model_that_would_crash_in_its_own_layout_is_rejected() -> None:
    with pytest.raises(InputError, match="contiguous"):
        template(OwnLayout(nn.Conv2d(3, 8, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
