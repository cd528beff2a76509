"""Models as arrays by name and as one vector."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from lesson.flower.arrays import Layout
from lesson.learn.robust.checks import InvalidUpdateError


def record_of(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


MODEL = {
    "w": np.array([[1.5, -2.0], [0.25, 4.0]], dtype=np.float32),
    "b": np.array([3.0], dtype=np.float32),
    "seen": np.array(7, dtype=np.int64),
}


def test_a_model_is_one_vector_in_the_order_of_its_arrays() -> None:
    layout = Layout.of(record_of(**MODEL))
    vector = layout.vector(record_of(**MODEL))
    assert (vector.tolist(), vector.dtype) == ([1.5, -2.0, 0.25, 4.0, 3.0, 7.0], np.float32)
    back = layout.record(vector)
    assert list(back) == ["w", "b", "seen"]
    for name, values in MODEL.items():
        assert (back[name].numpy().tolist(), back[name].numpy().dtype) == (values.tolist(), values.dtype)
        assert back[name].numpy().shape == values.shape


def test_arrays_may_come_back_in_another_order() -> None:
    layout = Layout.of(record_of(**MODEL))
    turned = record_of(**dict(reversed(MODEL.items())))
    assert layout.vector(turned).tolist() == [1.5, -2.0, 0.25, 4.0, 3.0, 7.0]


def test_whole_numbers_are_rounded_not_cut() -> None:
    layout = Layout.of(record_of(seen=np.array([1, 2, 3], dtype=np.int32)))
    back = layout.record(np.array([1.6, 2.4, -0.6], dtype=np.float32))["seen"].numpy()
    assert (back.tolist(), back.dtype) == ([2, 2, -1], np.int32)


def test_a_model_of_64_bits_stays_one() -> None:
    precise = 1 + 1e-12
    layout = Layout.of(record_of(w=np.array([precise]), b=np.array([0.5], dtype=np.float32)))
    vector = layout.vector(record_of(w=np.array([precise]), b=np.array([0.5], dtype=np.float32)))
    assert (vector.dtype, vector[0]) == (np.float64, precise)
    back = layout.record(vector)
    assert back["w"].numpy()[0] == precise
    assert back["b"].numpy().dtype == np.float32


def test_half_precision_is_merged_in_32_bits_and_sent_as_it_was() -> None:
    layout = Layout.of(record_of(w=np.array([1.5], dtype=np.float16)))
    vector = layout.vector(record_of(w=np.array([1.5], dtype=np.float16)))
    assert vector.dtype == np.float32
    assert layout.record(vector)["w"].numpy().dtype == np.float16


@pytest.mark.parametrize(
    ("changed", "fault", "detail"),
    [
        ({"w": np.ones((2, 3), dtype=np.float32)}, "wrong shape", "'w' has (2, 3), not (2, 2)"),
        ({"w": np.ones(4, dtype=np.float32)}, "wrong shape", "'w' has (4,), not (2, 2)"),
        ({"b": np.array([np.nan], dtype=np.float32)}, "not finite", "'b' has NaN or infinite values"),
        ({"b": np.array([-np.inf], dtype=np.float32)}, "not finite", "'b' has NaN or infinite values"),
        ({"b": np.array([1j])}, "wrong type", "'b' has complex128"),
        ({"b": np.array(["x"])}, "wrong type", "'b' has <U1"),
        ({"c": np.ones(1, dtype=np.float32)}, "wrong arrays", "unexpected array 'c'"),
    ],
)
def test_what_cannot_be_merged(changed: dict[str, np.ndarray], fault: str, detail: str) -> None:
    with pytest.raises(InvalidUpdateError) as caught:
        Layout.of(record_of(**MODEL)).vector(record_of(**MODEL | changed))
    assert (caught.value.reason, caught.value.detail) == (fault, detail)


def test_other_names_and_fewer_arrays_are_not_merged() -> None:
    layout = Layout.of(record_of(**MODEL))
    other = {("v" if name == "w" else name): values for name, values in MODEL.items()}
    for arrays in (other, {"w": MODEL["w"]}, {}):
        with pytest.raises(InvalidUpdateError, match="wrong arrays"):
            layout.vector(record_of(**arrays))


def test_a_number_too_large_for_32_bits_is_not_finite() -> None:
    """A client that answers in 64 bits may send what is infinite in 32."""
    layout = Layout.of(record_of(w=np.array([1.0], dtype=np.float32)))
    with pytest.raises(InvalidUpdateError, match="not finite"):
        layout.vector(record_of(w=np.array([1e300])))


@pytest.mark.parametrize(("stype", "data"), [("numpy.ndarray", b"nonsense"), ("of.another.kind", b"")])
def test_bytes_that_are_no_array_are_told(stype: str, data: bytes) -> None:
    layout = Layout.of(ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))}))
    broken = ArrayRecord({"w": Array(dtype="float32", shape=(2,), stype=stype, data=data)})
    with pytest.raises(InvalidUpdateError, match="wrong type: 'w' cannot be read"):
        layout.vector(broken)


@pytest.mark.parametrize("number", [2**24 - 1, 2**24 + 1, -(2**40) - 3])
def test_whole_numbers_come_back_as_they_were(number: int) -> None:
    record = ArrayRecord({"count": Array(np.array(number)), "w": Array(np.ones(2, dtype=np.float32))})
    layout = Layout.of(record)
    assert layout.precise == (abs(number) >= 2**24)
    assert layout.record(layout.vector(record))["count"].numpy() == number
