"""What holds for everybody in a contest."""

from dataclasses import asdict, dataclass
from typing import Any

from lesson.errors import InputError

MAX_POINTS = 6
"""Settings that an entry may be tuned over."""


@dataclass(frozen=True)
class Rules:
    """Data, seeds, how long runs are and what is measured of them."""

    dataset: str
    betas: tuple[float, ...]
    tuning_seed: int
    seeds: tuple[int, ...]
    tuning_s: float
    """Simulated seconds of a run that an entry is tuned by."""
    final_s: float
    """Simulated seconds of the runs that count."""
    eval_every_s: float
    looks_s: tuple[float, ...]
    """When accuracy is told."""
    targets: tuple[float, ...]
    """Accuracies whose times are told; uploads and joules to the last one, which ratios are about, too."""

    def __post_init__(self) -> None:
        if self.tuning_seed in self.seeds:
            raise InputError(f"tuning_seed must not be one of seeds, got {self.tuning_seed}")
        for name in ("betas", "seeds", "looks_s", "targets"):
            if not getattr(self, name):
                raise InputError(f"{name} must not be empty")

    @classmethod
    def of_table(cls, values: dict[str, Any]) -> "Rules":
        """The rules of a TOML table."""
        given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in values.items()}
        try:
            return cls(**given)
        except TypeError as error:
            raise InputError(f"rules must have a value for each of {', '.join(cls.__annotations__)}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    def limits(self, seed: int) -> dict[str, Any]:
        """The [run] table of a run from a seed; the tuning seed's are shorter."""
        time_s = self.tuning_s if seed == self.tuning_seed else self.final_s
        return {"dataset": self.dataset, "seed": seed, "time_budget_s": time_s, "eval_every_s": self.eval_every_s}
