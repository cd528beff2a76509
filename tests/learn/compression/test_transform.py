"""What compression does to the updates of a run, with and without error feedback."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.fleets import traced
from helpers.resuming import check_resumes
from helpers.runs import PARTS, settings
from helpers.trainers import one_row
from lesson import Compressor, InputError, MessagePart, Settings, UpdateLayout
from lesson.learn.chunk import Chunk, Step
from lesson.learn.cohort import Cohort
from lesson.learn.compression.qsgd import QSGD
from lesson.learn.compression.remote import encode_update
from lesson.learn.compression.sign import Sign
from lesson.learn.compression.sparse import TopK
from lesson.learn.compression.transform import CompressUploads
from lesson.runs.resolve import resolve


def cohort_of(updates: list[list[float]], clients: list[int], level: float, base: float = 0.0) -> Cohort:
    """Return a cohort with these updates of the clients, each the client's next one."""
    start = torch.full((len(updates[0]),), base)
    rows, numbers = one_row(start, 0, 0.1), np.array(clients)
    index = np.arange(len(clients)) - np.searchsorted(numbers, numbers)
    return replace(
        rows,
        **{
            name: np.repeat(getattr(rows, name), len(clients))
            for name in ("lr", "local_steps", "first", "most_samples", "weight")
        },
        client=numbers,
        index=index,
        level=np.full(len(clients), level),
        trained=start + torch.tensor(updates),
    )


def sent(compress: CompressUploads, cohort: Cohort) -> list[list[float]]:
    """Return the updates that the server decodes."""
    ((one,), rejections) = compress([cohort])
    assert not rejections
    decoded: list[list[float]] = (one.models - one.base).tolist()
    return decoded


def test_error_feedback_by_hand() -> None:
    """topk sends one of four values. Client 5 sends 3, then 2 + 1 from two updates, then −2 from the first one; client
    7 has a residual of its own, and a client that sends everything has none left."""
    compress = CompressUploads(TopK(), [4], seed=0)
    first = cohort_of([[3, 1, -2, 0.5], [0, 0, 4, 5]], [5, 7], 0.25)
    assert sent(compress, first) == [[3, 0, 0, 0], [0, 0, 0, 5]]
    assert sent(compress, cohort_of([[0, 2, 0, 0]], [5], 0.25)) == [[0, 3, 0, 0]]
    assert sent(compress, cohort_of([[0, 0, 0, 0]], [5], 0.25)) == [[0, 0, -2, 0]]
    assert sent(compress, cohort_of([[0, 0, 0, 0]], [7], 1.0)) == [[0, 0, 4, 0]]
    saved = compress.arrays
    assert saved["residual_of"].tolist() == [5, 7]
    assert saved["residuals"].tolist() == [[0, 0, 0, 0.5], [0, 0, 0, 0]]


def test_two_updates_of_a_client_in_one_aggregation_share_its_residual() -> None:
    compress = CompressUploads(TopK(), [2], seed=0)
    assert sent(compress, cohort_of([[3, 2], [0, 2], [1, 0]], [5, 5, 6], 0.5)) == [[3, 0], [0, 4], [1, 0]]


def test_only_parameters_are_compressed() -> None:
    """The last value is a buffer; the model is the base plus the decoded update."""
    compress = CompressUploads(Sign(error_feedback=False), [2], seed=0)
    ((one,), _) = compress([cohort_of([[1, -3, 7]], [0], 1, base=10.0)])
    assert one.models.tolist() == [[12, 8, 17]]


def test_levels_of_a_cohort_may_differ() -> None:
    both = replace(cohort_of([[3, 1], [3, 1], [3, 1]], [0, 1, 2], 0.5), level=np.array([0.5, 1.0, 0.5]))
    assert sent(CompressUploads(TopK(), [2], seed=0), both) == [[3, 0], [3, 1], [3, 0]]


updates = st.lists(st.lists(st.floats(-8, 8, width=16), min_size=6, max_size=6), min_size=1, max_size=6)


@pytest.mark.parametrize("compressor", [TopK(), Sign(), QSGD(error_feedback=True)], ids=lambda one: type(one).__name__)
@given(updates)
def test_error_feedback_loses_nothing(compressor: Compressor, rows: list[list[float]]) -> None:
    """What the server has decoded so far plus the residual is the sum of all updates."""
    compress = CompressUploads(compressor, [4, 2], seed=0)
    decoded = [sent(compress, cohort_of([row], [3], compressor.level))[0] for row in rows]
    total = np.sum(decoded, axis=0) + compress.arrays["residuals"][0]
    assert total == pytest.approx(np.sum(rows, axis=0), abs=1e-4)


def test_random_numbers_depend_on_client_and_update_alone() -> None:
    rows = torch.randn(3, 1000).tolist()
    together = sent(CompressUploads(QSGD(), [1000], seed=4), cohort_of(rows, [2, 3, 9], 2))
    assert sent(CompressUploads(QSGD(), [1000], seed=4), cohort_of(rows[1:2], [3], 2)) == together[1:2]
    again = cohort_of(rows[1:2], [3], 2)
    assert sent(CompressUploads(QSGD(), [1000], seed=4), replace(again, index=again.index + 1)) != together[1:2]


class DrawsTwice(Compressor):
    """Sends 16 bits of two random numbers in place of an update of two values."""

    level, levels = 1, (1,)

    def bits(self, layout: UpdateLayout) -> int:
        return 32

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(torch.cat([layout.random(1), layout.random(1)], dim=1) * 2**16, 16)]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values


def test_each_draw_is_another_one_and_remote_clients_have_the_same() -> None:
    ((first, second),) = sent(CompressUploads(DrawsTwice(), [2], seed=4), cohort_of([[0, 0]], [3], 1))
    assert first != second
    _, decoded = encode_update(DrawsTwice(), np.zeros(2, dtype=np.float32), [2], 1, (4, 3, 0))
    assert decoded.tolist() == [first, second]


def run_settings(**upload: Any) -> Settings:
    return settings(strategy="fedavg").with_changes(upload={"model_bits": "actual", **upload})


def test_lost_upload_leaves_the_residual_as_it_was(tmp_path: Path) -> None:
    """The second upload of client 0 is lost; the other five clients have new residuals after each round."""
    work = ["client,round,compute_s,upload_s,lost", "0,1,1,1,0", "0,2,1,1,1", "0,3,1,1,0"]
    work += [f"{client},1,1,1,0" for client in range(1, 6)]
    given = run_settings(compression="topk", level=0.1).with_changes(
        trace=traced(tmp_path / "work.csv", " ".join(work)), detection_delay_s=0.0
    )
    pipeline, residuals = resolve(given, task=PARTS["task"]).build(1).pipeline, []
    for _ in range(3):
        pipeline.step()
        pipeline.drain()
        residuals.append(pipeline.lane.state()["transform.residuals"])
    changed = [(after != before).any(axis=1).tolist() for before, after in pairwise(residuals)]
    assert changed == [[False] + [True] * 5, [True] * 6]
    pipeline.close()


def test_strategies_compare_decoded_updates_and_residuals_stay() -> None:
    """REFL's signal needs the models before they are aggregated: topk changes a tenth of the parameters."""
    pipeline = resolve(run_settings(compression="topk", level=0.1), task=PARTS["task"]).build(1).pipeline
    pipeline.step()
    pipeline.drain()
    before, current = pipeline.lane.state(), pipeline.loop.begin()
    assert current is not None
    arrived = current.collected.arrived
    chunk = Chunk.of([(Step(2), arrived, np.ones(len(arrived)))])
    (cohort,) = pipeline.executor.models(pipeline.lane, chunk)
    assert 0 < (cohort.models != cohort.base).float().mean() < 0.11
    after = pipeline.lane.state()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    pipeline.close()


def test_run_with_residuals_resumes(tmp_path: Path) -> None:
    check_resumes(run_settings(compression="topk", level=0.1), tmp_path, 11, **PARTS)


def test_run_with_compression_says_that_it_trains_separate_models(tmp_path: Path) -> None:
    run = resolve(run_settings(compression="qsgd"), task=PARTS["task"]).build(1)
    assert any("compressed" in note for note in run.pipeline.notes)
    run.pipeline.close()


def test_invalid_level_is_an_error() -> None:
    for changes, allowed in (
        ({"compression": "qsgd", "level": 17.0}, "16"),
        ({"compression": "topk", "level": 2.0}, "1"),
    ):
        with pytest.raises(InputError, match=rf"level of {changes['compression']} .*{allowed}"):
            resolve(run_settings(**changes), task=PARTS["task"])
