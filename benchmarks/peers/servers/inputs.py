"""The updates and clients of all cases. All models are single numbers."""

from dataclasses import dataclass

Numbers = list[float]

STALENESS = list(range(11))
ALPHA = 0.6
POLYNOMIAL = {"a": 0.5}
HINGE = {"a": 10.0, "b": 4.0}


@dataclass(frozen=True)
class Arrival:
    """A client's model, the model that it started from, and its staleness."""

    staleness: int
    base: float
    model: float


BUFFER = [Arrival(0, 10.0, 13.0), Arrival(1, 8.0, 14.0), Arrival(3, 4.0, 16.0)]
"""Arrivals at a global model of 10; their updates are 3, 6 and 12."""
NOW = 10.0

NUM_CLIENTS = 4
CACHED = [{0: 3.0, 1: 6.0, 2: 12.0}, {0: 1.0, 1: 2.0, 3: 4.0}]
"""CA²FL: the updates in two buffers, by client. The global model is 10 at first."""
TWICE = [(0, 3.0), (0, 6.0), (1, 12.0)]
"""CA²FL: clients and updates in a buffer that holds two updates of client 0."""

MEANS, DELAYS = [7.0, 0.1, 1.0], [0, 0, 3]
"""FADAS: the mean update of three full buffers and the largest staleness in each of them. The model is 0 at first."""
ADAPTIVE = {"eta": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}

SERIES = [3.0, 6.0, 12.0]
"""Malenia: updates of three clients. Client 0 is the fastest and sends two before client 2 sends its first."""
SERIES_S = [1.0, 1.8, 2.5]
"""Malenia: training times of these clients."""
SERIES_LR = 0.5
"""Malenia: step size of the clients; with it, one step of SGD on a squared error leads to the minimum."""

STEP_S = [1.0, 1.5, 4.0, 7.0, 30.0]
"""FedCompass: seconds per local step of five clients."""
STEPS = {"min_steps": 20, "max_steps": 100}
COMPASS_ALPHA, LATEST_FACTOR = 0.9, 1.5
QUEUE_BETA = 0.5

UTILITY = [1.0, 0.96, 0.92, 0.88, 0.9, 0.2]
"""Oort: statistical utility of six clients that have all taken part."""
LAST_ROUND = [3, 5, 5, 5, 8, 10]
LATENCY_S = [1.0, 1.0, 1.0, 1.0, 5.0, 6.0]
ROUND, NUM_SELECTED = 11, 2

FRESH, STALE = [3.0, 6.0], [12.0, 1.0]
"""REFL: updates of this round and of earlier ones. The global model is 0, so that updates are models."""
AGES = [1, 3]
BETA = 0.35

SAFA_PICKED, SAFA_UNDRAFTED = [{0: 13.0, 1: 14.0}, {3: 20.0, 0: 18.0}], [{2: 16.0}, {}]
"""SAFA: models of four clients in two rounds. The global model is 10 at first, and so is the cache."""
COMPUTE_S, UPLOAD_S, DEADLINE_S = [1.0, 2.0, 3.0, 4.0], 2.0, 6.5
"""FedCS: times of four clients and the deadline."""
