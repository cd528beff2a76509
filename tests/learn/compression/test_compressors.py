"""Built-in compressors: the length of their messages and what the server decodes, by hand and as properties."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lesson import Compressor, InputError, MessagePart, UpdateLayout
from lesson.learn.compression import COMPRESSORS, check_custom, level_bits, make_compressor
from lesson.learn.compression.base import decoded, encoded, pack, unpack
from lesson.learn.compression.half import Float16
from lesson.learn.compression.qsgd import QSGD
from lesson.learn.compression.sign import Sign
from lesson.learn.compression.sparse import RandK, TopK
from lesson.learn.compression.uniform import Uniform
from lesson.settings.sections import UploadSettings

SIZES = [600, 400, 25]
"""Three arrays with n = 1025 values, whose places take ⌈log2 1025⌉ = 11 bits."""
HALF = torch.full((1, 1), 0.5)


def same(count: int) -> Tensor:
    """Return 0.5 in place of random numbers."""
    return HALF.expand(1, count)


def through(compressor: Compressor, updates: Tensor, layout: UpdateLayout) -> Tensor:
    """Return what the server decodes from the messages of updates."""
    return decoded(compressor, encoded(compressor, updates, layout), layout)


def received(compressor: Compressor, update: list[float], level: float, sizes: list[int] | None = None) -> list[float]:
    """Return what the server decodes from an update, with 0.5 for all random numbers."""
    values: list[float] = through(
        compressor, torch.tensor([update]), UpdateLayout(sizes or [len(update)], level, same)
    )[0].tolist()
    return values


@pytest.mark.parametrize(
    ("compressor", "level", "bits"),
    [
        (Float16(), 16, 16 * 1025),
        (QSGD(), 8, 8 * 1025 + 32 * 3),  # buckets of 512, 512 and 1 values
        (QSGD(bucket=1025), 4, 4 * 1025 + 32),
        (Uniform(), 8, 8 * 1025 + 3 * 2 * 32),  # both ends of each array
        (Sign(), 1, 1025 + 3 * 32),  # a mean per array
        (TopK(), 0.01, 11 * (32 + 11)),  # k = ⌈10.25⌉
        (RandK(), 0.2, 205 * (32 + 11)),  # k = 0.2 · 1025 exactly, though 0.2 · 1025 > 205 in binary
        (TopK(), 32 / 1025, 32 * (32 + 11)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Compressor) else None,
)
def test_length_of_a_message_by_hand(compressor: Compressor, level: float, bits: int) -> None:
    layout = UpdateLayout(SIZES, level, same)
    message = encoded(compressor, torch.linspace(-1, 1, 1025)[None], layout)
    assert compressor.bits(layout) == bits
    assert len(pack(message)) == -(-bits // 8)


def test_decoded_updates_by_hand() -> None:
    """qsgd, 3 bits: s = 3 steps of 2/3 up to M = 2; ⌊1.7 / (2/3) + 0.5⌋ = 3 and ⌊−0.4 / (2/3) + 0.5⌋ = −1.
    uniform, 2 bits: from −2 to 4 in steps of 2. sign: the mean magnitudes of both arrays are 2 and 3."""
    assert received(QSGD(), [2.0, 1.7, -0.4, 0.0], 3) == pytest.approx([2, 2, -2 / 3, 0])
    assert received(QSGD(bucket=2), [2.0, 1.7, -0.4, 0.1], 2) == pytest.approx([2, 2, -0.4, 0.0])
    assert received(QSGD(), [2.0, -0.5], 1) == [2.0, -2.0]  # −0.5 is 3/8 of the way from −2 to 2
    assert received(Uniform(), [-2.0, 4.0, 0.9, 1.1], 2) == pytest.approx([-2, 4, 0, 2])
    assert received(Sign(), [1.0, -3.0, 0.0, -6.0], 1, [2, 2]) == [2, -2, 3, -3]
    assert received(TopK(), [1.0, -3.0, 2.0, 0.5], 0.5) == [0, -3, 2, 0]
    assert received(Float16(), [1e9, 1 / 3], 16) == [65504, pytest.approx(1 / 3, rel=2**-11)]
    for kind in COMPRESSORS.values():
        assert received(kind(), [0.0] * 4, kind.level) == [0.0] * 4
        assert received(kind(), [0.25, 3.0], kind.uncompressed) == [0.25, 3.0]


values = st.floats(-100, 100, width=32)


@given(st.lists(values, min_size=1, max_size=9), st.integers(1, 16), st.integers(1, 4))
def test_qsgd_is_unbiased(update: list[float], level: int, bucket: int) -> None:
    """The mean over random numbers that are spread evenly over [0, 1) is within a step / 256 of the update."""
    spread = (torch.arange(256)[:, None] + 0.5) / 256
    layout = UpdateLayout([len(update)], level, lambda count: spread.expand(256, count))
    sent = torch.tensor([update]).expand(256, -1)
    mean = through(QSGD(bucket=bucket), sent, layout).double().mean(0)
    step = 2 * sent.abs().max() / max(1, 2**level - 2)
    torch.testing.assert_close(mean, sent[0].double(), rtol=1e-6, atol=float(step) / 256 + 1e-5)


def test_randk_is_unbiased_without_error_feedback() -> None:
    """Over all orders of the ranks, each of the four values is among the two that are sent in half of the cases."""
    ranks = torch.tensor(list(itertools.permutations([0.1, 0.2, 0.3, 0.4]))).repeat(1, 2)
    layout = UpdateLayout([4], 0.5, lambda _: ranks)
    update = torch.tensor([[1.0, -2.0, 3.0, 0.0]])
    sent = through(RandK(error_feedback=False), update.expand(24, 4), layout)
    torch.testing.assert_close(sent.mean(0), update[0])
    with_feedback = through(RandK(), update.expand(24, 4), layout)
    torch.testing.assert_close(with_feedback, sent / 2)


@pytest.mark.parametrize("kind", COMPRESSORS.values())
@given(data=st.data())
def test_messages_survive_packing(kind: Any, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    level = data.draw(st.sampled_from(kind.levels))
    update = torch.tensor([data.draw(st.lists(values, min_size=sum(sizes), max_size=sum(sizes)))])
    compressor, layout = kind(bucket=7) if kind is QSGD else kind(), UpdateLayout(sizes, level, same)
    message, zeros = (encoded(compressor, one, layout) for one in (update, torch.zeros_like(update)))
    arrived = unpack(pack(message), zeros)
    assert torch.equal(compressor.decode(arrived, layout), compressor.decode(message, layout))
    with pytest.raises(InputError, match="bytes"):
        unpack(pack(message) + b"\0", zeros)


def test_compressing_clients_together_changes_no_bit() -> None:
    rows = torch.randn(40, 5000, generator=torch.Generator().manual_seed(0))
    for kind in (QSGD, Uniform, Sign, TopK, Float16):
        layout = UpdateLayout([4000, 1000], kind.level, lambda count: torch.full((1, count), 0.3))
        together = through(kind(), rows, layout)
        assert torch.equal(together[7:8], through(kind(), rows[7:8].clone(), layout)), kind


def test_bits_are_charged_in_proportion_to_the_size_of_the_model() -> None:
    """An update of 4 parameters and 2 buffer values has 6 · 32 = 192 bits, of which 64 are never compressed. sign sends
    4 + 32 bits for one array, with the buffers 100; if a model is charged as 96 bits, half of this."""
    assert level_bits(Sign(), [4], 2, 1, 192.0) == {"32.0": 192, "1.0": 100}
    assert level_bits(Sign(), [4], 2, 1, 96.0) == {"32.0": 96, "1.0": 50}
    most = list(level_bits(TopK(), [1000], 0, 0.9, 32e3))
    assert most[:3] == ["1.0", "0.9", "0.5"]  # 0.9 has a longer message than no compression at all


class Whole(Compressor):
    """Sends the integer part of values from 0 to 15, in 4 bits."""

    level, levels = 4, (4,)

    def bits(self, layout: UpdateLayout) -> int:
        return 4 * layout.num_values

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.floor().clamp(0, 15), 4)]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values


class WrongBits(Whole):
    def bits(self, layout: UpdateLayout) -> int:
        return 3


class WrongCodes(Whole):
    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.floor() - 1, 4)]


class WrongShape(Whole):
    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values[:, :1]


class NotFinite(Whole):
    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values / 0


class Overwrites(Whole):
    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.zero_(), 4)]


class WideCodes(Whole):
    def bits(self, layout: UpdateLayout) -> int:
        return 33 * layout.num_values

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.floor().clamp(0, 15), 33)]


class MixesUpdates(Whole):
    def bits(self, layout: UpdateLayout) -> int:
        return 32

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.amax()[None, None], 32)]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values.expand(2, layout.num_values)


class DecodesAtRandom(Whole):
    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values + layout.random(layout.num_values)


class Fails(Whole):
    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        raise KeyError("mine")


class NoBits(Whole):
    def bits(self, layout: UpdateLayout) -> int:
        return 0


class NoNumber(Whole):
    level, levels = 4, 4  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (WrongBits, r"WrongBits\.bits .* 8 bits .* got 3"),
        (WrongCodes, "whole numbers from 0"),
        (WrongShape, r"decode .* got \(2, 1\)"),
        (NotFinite, "finite"),
        (WideCodes, "bits <= 32"),
        (MixesUpdates, "a row for each update"),
        (DecodesAtRandom, "random numbers"),
        (Overwrites, "must not change"),
        (Fails, "KeyError: 'mine'"),
    ],
)
def test_custom_compressor_is_checked_before_a_run(kind: type[Compressor], word: str) -> None:
    check_custom(Whole(), [2], 4)
    with pytest.raises(InputError, match=word):
        check_custom(kind(), [2], 4)


def test_bits_must_be_a_whole_number() -> None:
    with pytest.raises(InputError, match=r"NoBits\.bits .* got 0"):
        level_bits(NoBits(), [2], 0, 4, 64.0)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"compression": "qsdg"}, "qsgd"),
        ({"compression": "qsgd", "bucket": 0}, "bucket"),
        ({"compression": "qsgd", "buckets": 3}, "bucket"),
        ({"compression": "none", "bucket": 3}, "bucket"),
        ({"compression": "torch:Tensor"}, "lesson.Compressor"),
        ({"compression": "lesson:Compressor"}, "lacks level, levels, bits, encode, decode"),
        ({"compression": f"{__name__}:NoNumber"}, "numbers as levels"),
    ],
)
def test_invalid_compressors_are_errors(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_compressor(UploadSettings(**settings))
