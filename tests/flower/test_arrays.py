"""Models as arrays by name and as one vector."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from lesson.flower.arrays import Layout
from lesson.learn.guards import InvalidUpdateError


def record_of(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


MODEL = {
    "w": np.array([[1.5, -2.0], [0.25, 4.0]], dtype=np.float32),
    "b": np.array([3.0], dtype=np.float32),
    "seen": np.array(7, dtype=np.int64),
}


def test_model_is_one_vector_in_the_order_of_its_arrays() -> None:
    """Also if a client sends the arrays in another order."""
    layout = Layout.of(record_of(**MODEL))
    for sent in (MODEL, dict(reversed(MODEL.items()))):
        vector = layout.vector(record_of(**sent))
        assert (vector.tolist(), vector.dtype) == ([1.5, -2.0, 0.25, 4.0, 3.0, 7.0], np.float32)
    back = layout.record(vector)
    assert list(back) == ["w", "b", "seen"]
    for name, values in MODEL.items():
        np.testing.assert_array_equal(back[name].numpy(), values, strict=True)


def test_whole_numbers_are_rounded() -> None:
    layout = Layout.of(record_of(seen=np.array([1, 2, 3], dtype=np.int32)))
    back = layout.record(np.array([1.6, 2.4, -0.6], dtype=np.float32))["seen"].numpy()
    assert (back.tolist(), back.dtype) == ([2, 2, -1], np.int32)


@pytest.mark.parametrize(
    ("values", "precise"),
    [
        (np.array([1 + 1e-12]), True),
        (np.array([1.5], dtype=np.float16), False),
        (np.array([2**24 - 1]), False),
        (np.array([-(2**24) - 1]), True),
    ],
)
def test_vector_is_as_precise_as_the_model_needs(values: np.ndarray, precise: bool) -> None:
    model = record_of(first=values, w=np.ones(2, dtype=np.float32))
    layout = Layout.of(model)
    vector = layout.vector(model)
    assert (vector.dtype == np.float64) == precise
    np.testing.assert_array_equal(layout.record(vector)["first"].numpy(), values, strict=True)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"w": np.ones(4, dtype=np.float32)}, "wrong shape"),
        ({"b": np.array([np.nan], dtype=np.float32)}, "not finite"),
        ({"b": np.array([1e300])}, "not finite"),  # infinite in 32 bits
        ({"b": np.array([1j])}, "wrong type"),
        ({"c": np.ones(1, dtype=np.float32)}, "wrong arrays"),
        ({"w": None}, "wrong arrays"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_rejected(changed: dict[str, np.ndarray], fault: str) -> None:
    arrays = {name: values for name, values in (MODEL | changed).items() if values is not None}
    with pytest.raises(InvalidUpdateError) as caught:
        Layout.of(record_of(**MODEL)).vector(record_of(**arrays))
    assert caught.value.reason == fault
    assert f"'{next(iter(changed))}'" in caught.value.detail
