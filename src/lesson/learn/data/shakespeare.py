"""Shakespeare by speaking role: plays as text, in which every speech begins with the speaker's name and a colon.

The text is `data/tinyshakespeare/input.txt` of Karpathy's char-rnn. Each speaker with enough text is a client, as in
McMahan et al. (2017) and LEAF (Caldas et al. 2018), which use all plays. The task is to predict the next character.
"""

import re
from pathlib import Path

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.errors import ArgumentError, InputError
from lesson.learn.data.samples import Samples, consecutive, read_verified

FILE = Path("shakespeare") / "input.txt"
TEST_SHARE = 0.1
"""Share of a speaker's sequences that are test data."""
NUM_BYTES = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def read_shakespeare(folder: Path, *, sequence_length: int = 80, min_chars: int = 1000) -> Samples:
    """Read `shakespeare/input.txt` in a folder of data sets; raise InputError unless its SHA-256 is the expected one.

    Inputs are sequences of tokens, targets the same sequences shifted by one, both of shape (num, sequence_length).
    A token is the index of a character in `class_names`, which are the 65 characters of the text. A speaker's sequences
    do not overlap; the last ones are test data. A speaker with two or more sequences contributes at least one to the
    test data and keeps at least one for training.

    Args:
        folder: Folder of data sets.
        sequence_length: Number of characters per sequence.
        min_chars: A speaker is a client if it has more characters than this: 141 of 309 speakers by default.
    """
    if sequence_length < 1:
        raise ArgumentError("sequence_length", f"must be >= 1, got {sequence_length}")
    if min_chars < 0:
        raise ArgumentError("min_chars", f"must be >= 0, got {min_chars}")
    text = read_verified(folder / FILE, SHA256, "shakespeare").decode("ascii")
    vocabulary = "".join(sorted(set(text)))
    spoken = (lines for lines in split_by_speaker(text).values() if len(lines) > min_chars)
    sequences = [cut_into_sequences(lines, vocabulary, sequence_length) for lines in spoken]
    clients = [own for own in sequences if len(own)]
    if not clients:
        raise InputError(
            f"no speaker has more than {min_chars} characters and a sequence of {sequence_length}; "
            "choose a smaller min_chars or sequence_length"
        )
    num_test = [min(max(round(TEST_SHARE * len(own)), 1), len(own) - 1) for own in clients]
    train = np.concatenate([own[: len(own) - num] for own, num in zip(clients, num_test, strict=True)])
    test = np.concatenate([own[len(own) - num :] for own, num in zip(clients, num_test, strict=True)])
    return Samples(
        train_inputs=train[:, :-1],
        train_targets=train[:, 1:],
        test_inputs=test[:, :-1],
        test_targets=test[:, 1:],
        clients=consecutive([len(own) - num for own, num in zip(clients, num_test, strict=True)]),
        class_names=tuple(vocabulary),
    )


def split_by_speaker(text: str) -> dict[str, str]:
    """Return the lines of each speaker, in the order of their first speeches. Every speech ends with a newline."""
    lines: dict[str, str] = {}
    for speech in re.split(r"\n{2,}", text.strip("\n")):
        name, _, spoken = speech.partition("\n")
        before = lines.setdefault(name.removesuffix(":"), "")
        if spoken:
            lines[name.removesuffix(":")] = f"{before}{spoken}\n"
    return lines


def cut_into_sequences(text: str, vocabulary: str, length: int) -> IntArray:
    """Return the tokens of a text, shape (num, length + 1): the last token of a row is the first of the next row.

    Characters at the end that do not fill a row are dropped.
    """
    index = {char: token for token, char in enumerate(vocabulary)}
    tokens = np.array([index[char] for char in text], dtype=np.int64)
    num = max(len(tokens) - 1, 0) // length
    return tokens[np.add.outer(length * np.arange(num), np.arange(length + 1))]
