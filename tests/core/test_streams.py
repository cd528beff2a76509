import numpy as np

from lesson.core.random import RepeatedStream, stream


def test_a_stream_depends_on_its_own_name_alone() -> None:
    first = stream(7, "minibatch", 3, 1).random(5)
    stream(7, "other").random(1000)
    assert np.array_equal(stream(7, "minibatch", 3, 1).random(5), first)


def test_streams_of_different_names_differ() -> None:
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 1, 0)]
    assert len({float(stream(*name).random()) for name in names}) == len(names)


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert np.array_equal(stream(3, "x").random(1000)[:50], stream(3, "x").random(50))


def test_the_numbers_are_pinned() -> None:
    """A change here changes every result that was ever published with a seed."""
    assert stream(0, "population/x").random(3).tolist() == [
        0.7623143889256584,
        0.30275956993048725,
        0.6394448593461898,
    ]


def test_a_repeated_stream_gives_the_generators_of_stream() -> None:
    """Also after draws that leave a half-used word in the generator."""
    repeated = RepeatedStream(3, "strategy")
    for index in (5, 6, 5):
        given, expected = repeated.at(index), stream(3, "strategy", index)
        assert given.random(3).tolist() == expected.random(3).tolist()
        assert (
            given.integers(0, 100, 3, dtype=np.int32).tolist() == expected.integers(0, 100, 3, dtype=np.int32).tolist()
        )
        assert given.permutation(7).tolist() == expected.permutation(7).tolist()
