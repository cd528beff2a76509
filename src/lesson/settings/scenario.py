"""The setting of a simulation: every parameter of the paper, its two presets, and the clients drawn from it."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, unknown
from lesson.core.random import stream
from lesson.core.validation import MAX_COUNT, Checked, Count, CountRange, Finite, Flag, Positive, Range, Unbounded
from lesson.settings.variation import Variation

MAX_CLIENTS = 10_000_000

# What the paper's text says and its authors' code does otherwise; the defaults below are the code's.
PRINTED: dict[str, Any] = {
    "power_w": 1.0,
    "noise_dbm": -94.0,
    "cycles_per_sample": (3e5, 5e5),
    "latency_samples": 1000,
    "weighting": "samples",
    "split": "dirichlet-per-client",
    "lr_cap": math.inf,
    "ensure_first_tier": False,
}
PRESETS: dict[str, dict[str, Any]] = {"released": {}, "printed": PRINTED}


class Paper(Checked):
    """All parameters of the paper's simulation."""

    section: ClassVar[str] = "scenario"
    wanted: ClassVar[dict[str, str]] = {
        "samples_per_client": f"a whole number from 1 to {MAX_COUNT} or [low, high]",
        "latency_samples": f"a whole number from 1 to {MAX_COUNT} or 'processed'",
        "cpu_hz": "[low, high], both > 0",
        "cycles_per_sample": "[low, high], both > 0",
    }

    preset: str = Field("released", description="where unstated values come from: released or printed")
    num_clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS, strict=True)] = Field(50, description="clients in the area")
    area_km: Positive = Field(2.0, description="side of the square; the base station is at its center")
    samples_per_client: Count | CountRange = Field(1000, description="training samples a client holds, or [low, high]")

    power_w: Positive = Field(0.1, description="transmit power p of a client")
    noise_dbm: Finite = Field(-100.0, description="noise and inter-cell interference N0")
    bandwidth_hz: Positive = Field(30e3, description="band b of each client")
    model_bits: Positive = Field(100e3, description="size s of an uploaded model")
    path_loss_1km_db: Finite = Field(128.1, description="path loss at 1 km")
    path_loss_slope_db: Finite = Field(37.6, description="path loss per decade of distance")

    cpu_hz: Range = Field((0.8e9, 3e9), description="CPU frequency f, uniform in [low, high]")
    cycles_per_sample: Range = Field((3e8, 5e8), description="cycles C to train on a sample, uniform in [low, high]")
    theta: Positive = Field(1.0, description="θ of the number of local iterations θ·log2(1/ε)")
    epsilon: Annotated[float, Field(gt=0, lt=1, strict=True)] = Field(0.05, description="ε of the same")
    latency_samples: Count | Literal["processed"] = Field(
        20, description="samples the compute latency is charged for; 'processed': those the local work sees"
    )
    energy_kappa: Positive = Field(1e-28, description="κ of the compute energy κ·f²·cycles")

    deadline_s: Unbounded = Field(20.0, description="deadline τ of a round")
    ensure_first_tier: Flag = Field(True, description="take the fastest client as τ when tier 1 would be empty")

    batch_size: Count = Field(20, description="samples in a minibatch")
    local_steps: Count = Field(1, description="minibatches of local work")
    local_epochs: Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)] = Field(
        0, description="passes over the client's data instead of local_steps, unless 0"
    )
    learning_rate: Positive = Field(0.1, description="step size δ")
    proximal_mu: Annotated[float, Field(ge=0, le=1e30, strict=True)] = Field(
        0.0, description="μ of FedProx: every local gradient gets μ·(w − the model it started from); 0 for none"
    )
    lr_cap: Unbounded = Field(1.0, description="upper bound of the scaled step size; inf for none")
    weighting: Literal["uniform", "samples"] = Field("uniform", description="what a client counts for in a merge")
    split: Literal["dirichlet-per-class", "dirichlet-per-client", "dirichlet-pool", "iid"] = Field(
        "dirichlet-per-class", description="how the data set is divided among clients"
    )
    beta: Positive = Field(1.0, description="concentration β of the Dirichlet split")


class Scenario(Variation, Paper):
    """The parameters of the paper and what may be added, checked when made. `preset` fills in what is not given."""

    wanted: ClassVar[dict[str, str]] = Paper.wanted | Variation.wanted

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: dict[str, Any]) -> dict[str, Any]:
        name = values.get("preset", "released")
        if not isinstance(name, str) or name not in PRESETS:
            raise unknown("preset", str(name), PRESETS)
        return PRESETS[name] | values

    @property
    def local_iterations(self) -> float:
        """θ·log2(1/ε): how often the local work passes over its samples, Eq. (4)."""
        return self.theta * math.log2(1 / self.epsilon)

    def caveats(self) -> list[str]:
        """What a user should know before trusting numbers from these settings, a line each."""
        work = ("batch_size", "local_steps", "local_epochs")
        preset = Scenario(preset=self.preset)
        changed = [f"{name} = {getattr(self, name)}" for name in work if getattr(self, name) != getattr(preset, name)]
        told = self.without_effect()
        if changed and self.latency_samples != "processed":
            told.append(
                f"{', '.join(changed)} does not change the compute latency, which is charged for "
                f'{self.latency_samples} samples; latency_samples = "processed" makes it follow the local work'
            )
        if self.proximal_mu and self.local_steps == 1 and not self.local_epochs:
            told.append(
                f"proximal_mu = {self.proximal_mu:g} changes nothing where the local work is one step: its gradient is "
                "0 at the model the work starts from; take local_steps > 1 or local_epochs"
            )
        return told


@dataclass(frozen=True, eq=False)
class Population:
    """The clients of a scenario, one row each; arrays are (num_clients,). The base station is at (0, 0)."""

    x_km: FloatArray
    y_km: FloatArray
    power_w: FloatArray
    cpu_hz: FloatArray
    cycles_per_sample: FloatArray
    num_samples: IntArray
    seed: int = 0
    """That they were drawn from, and what shadows them."""

    def __len__(self) -> int:
        return len(self.x_km)

    @property
    def distance_km(self) -> FloatArray:
        """Distance d to the base station, (num_clients,)."""
        return np.hypot(self.x_km, self.y_km)

    def first(self, count: int) -> "Population":
        """The first so many clients."""
        cut: dict[str, Any] = {name: part[:count] for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return replace(self, **cut)


def draw_population(scenario: Scenario, num_clients: int | None = None, seed: int = 0) -> Population:
    """Clients uniform in the square, with uniform CPU and cycles. A client is the same in a larger population."""
    count = scenario.num_clients if num_clients is None else num_clients
    if not 1 <= count <= MAX_CLIENTS:
        raise InputError(f"num_clients must be 1 to {MAX_CLIENTS}, got {count}")
    if seed < 0:
        raise InputError(f"seed must be >= 0, got {seed}")

    def uniform(what: str, low: float, high: float) -> FloatArray:
        return low + (high - low) * stream(seed, f"population/{what}").random(count)

    half = scenario.area_km / 2
    samples = scenario.samples_per_client
    low, high = samples if isinstance(samples, tuple) else (samples, samples)
    return Population(
        x_km=uniform("x", -half, half),
        y_km=uniform("y", -half, half),
        power_w=np.full(count, scenario.power_w),
        cpu_hz=uniform("cpu", *scenario.cpu_hz),
        cycles_per_sample=uniform("cycles", *scenario.cycles_per_sample),
        num_samples=np.minimum(uniform("samples", low, high + 1).astype(np.int64), high),
        seed=seed,
    )
