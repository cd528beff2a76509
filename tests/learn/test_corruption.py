"""What clients upload when faults are injected, by hand and on a remote client."""

from dataclasses import replace

import numpy as np
import torch

from helpers.small_tasks import tiny_workload
from helpers.trainers import make_cohort
from lesson.clock.faults import CorruptedUploads
from lesson.learn.remote import train_update
from lesson.learn.robust.corruption import corrupted_models
from lesson.settings.faults import FaultSettings


def test_uploads_by_hand() -> None:
    """Flipped and tripled, (2, 4) from a base of (1, 1) becomes (1 − 3·1, 1 − 3·3); intact uploads keep their bits."""
    faults = CorruptedUploads(FaultSettings(flipped=1.0, scaled=1.0, scale=3.0), 3, seed=0)
    faults.is_corrupting = np.array([False, True, False])
    models = torch.tensor([[2.0, 4.0], [2.0, 4.0], [0.1, 0.7]])
    uploads = corrupted_models(replace(make_cohort(torch.ones(2), 3), trained=models), faults)
    assert uploads.tolist() == [models[0].tolist(), [-2.0, -8.0], models[2].tolist()]


def test_one_value_is_not_finite() -> None:
    faults = CorruptedUploads(FaultSettings(corrupting_clients=1.0, infinity=1.0), 3, seed=0)
    models = torch.ones(3, 50)
    uploads = corrupted_models(replace(make_cohort(torch.zeros(50), 3), trained=models), faults)
    assert uploads.isinf().sum(1).tolist() == [1, 1, 1]
    assert models.isfinite().all()


def test_a_remote_client_uploads_what_a_simulated_one_does() -> None:
    workload = tiny_workload(4)
    base = workload.initial_vector().numpy()
    settings = FaultSettings(corrupting_clients=1.0, flipped=0.5, scaled=0.5, scale=7.0, nan=0.5)
    faults = CorruptedUploads(settings, 4, seed=0)
    changed = 0
    for client in range(4):
        model = train_update(workload, base, client=client, index=2, lr=0.1)
        sent = train_update(workload, base, client=client, index=2, lr=0.1, faults=faults)
        row = replace(make_cohort(torch.from_numpy(base), 4)[client : client + 1], index=np.array([2]))
        expected = corrupted_models(replace(row, trained=torch.from_numpy(model)[None]), faults)
        assert np.array_equal(sent, expected[0].numpy(), equal_nan=True)
        changed += not np.array_equal(sent, model)
    assert changed > 1
