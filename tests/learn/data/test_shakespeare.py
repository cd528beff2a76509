import hashlib
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import data_dir, shakespeare
from lesson.learn.data.shakespeare import cut_into_sequences, read_shakespeare, split_by_speaker

TEXT = """First Citizen:
Before we proceed.
Hear me.

All:
Speak, speak.

TITUS:


First Citizen:
You: resolved.
"""

needs_shakespeare = pytest.mark.skipif(
    not (data_dir() / shakespeare.FILE).exists(), reason="Shakespeare is not here; 'lesson data shakespeare' gets it"
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets with a text of three speakers."""
    path = tmp_path / shakespeare.FILE
    path.parent.mkdir()
    path.write_text(TEXT)
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(TEXT.encode()).hexdigest())
    return tmp_path


def test_speeches_are_joined_by_speaker() -> None:
    """A colon within a speech is part of it; an empty speech adds nothing."""
    assert split_by_speaker(TEXT) == {
        "First Citizen": "Before we proceed.\nHear me.\nYou: resolved.\n",
        "All": "Speak, speak.\n",
        "TITUS": "",
    }


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("abcabca", [[0, 1, 2, 0], [0, 1, 2, 0]]),  # abc → bca, abc → bca: 7 characters are just enough
        ("abcabc", [[0, 1, 2, 0]]),  # the second abc has no next character
        ("abc", []),
        ("", []),
    ],
)
def test_sequences_of_three_characters(text: str, rows: list[list[int]]) -> None:
    sequences = cut_into_sequences(text, "abc", 3)
    assert sequences.tolist() == rows
    assert sequences.shape == (len(rows), 4)
    assert sequences.dtype == np.int64


def test_last_sequences_of_each_speaker_are_test_data(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First Citizen has 43 characters, so 8 sequences of 5, of which a quarter is 2; All has 14, so 2, of which 1."""
    monkeypatch.setattr(shakespeare, "TEST_SHARE", 0.25)
    samples = read_shakespeare(small, sequence_length=5, min_chars=0)

    def decoded(tokens: np.ndarray) -> list[str]:
        return ["".join(samples.class_names[token] for token in row) for row in tokens]

    inputs = ["Befor", "e we ", "proce", "ed.\nH", "ear m", "e.\nYo", "Speak"]
    assert decoded(samples.train_inputs) == inputs
    assert decoded(samples.train_targets) == ["efore", " we p", "rocee", "d.\nHe", "ar me", ".\nYou", "peak,"]
    assert decoded(samples.test_inputs) == ["u: re", "solve", ", spe"]
    assert decoded(samples.test_targets) == [": res", "olved", " spea"]
    assert samples.clients is not None
    assert [own.tolist() for own in samples.clients] == [[0, 1, 2, 3, 4, 5], [6]]
    assert samples.class_names == tuple(sorted(set(TEXT)))


def test_speakers_need_more_than_min_chars(small: Path) -> None:
    for min_chars, num_speakers in ((13, 2), (14, 1)):
        assert len(read_shakespeare(small, sequence_length=5, min_chars=min_chars).clients or []) == num_speakers
    with pytest.raises(InputError, match="no speaker has more than 43 characters"):
        read_shakespeare(small, sequence_length=5, min_chars=43)


def test_speaker_with_one_sequence_only_trains(small: Path) -> None:
    """With sequences of 10, All has a single one."""
    samples = read_shakespeare(small, sequence_length=10, min_chars=0)
    assert [len(own) for own in samples.clients or []] == [3, 1]
    assert len(samples.test_inputs) == 1


@pytest.mark.parametrize("options", [{"sequence_length": 0}, {"min_chars": -1}])
def test_invalid_options(small: Path, options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"{name} must"):
        read_shakespeare(small, **options)  # type: ignore[arg-type]


def test_missing_and_damaged_texts_are_named(small: Path) -> None:
    path = small / shakespeare.FILE
    path.write_text(TEXT.replace("Before", "After"))
    with pytest.raises(InputError, match=r"input.txt .*SHA-256"):
        read_shakespeare(small)
    path.unlink()
    with pytest.raises(InputError, match=r"input.txt does not exist"):
        read_shakespeare(small)


@needs_shakespeare
def test_complete_shakespeare_text_is_read() -> None:
    samples = read_shakespeare(data_dir())
    assert len(samples.clients or []) == 141
    assert len(samples.class_names) == 65
    assert samples.train_inputs.shape == samples.train_targets.shape == (10_925, 80)
    assert samples.test_inputs.shape == samples.test_targets.shape == (1_208, 80)
