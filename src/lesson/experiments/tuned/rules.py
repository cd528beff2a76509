"""The rules that apply to all entries of a tuned comparison."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from lesson.core.errors import InputError
from lesson.core.validation import Checked, Positive, Text
from lesson.experiments.run import Run
from lesson.learn.metric import ACCURACY, Metric

MAX_POINTS = 12
"""Maximum number of points an entry may be tuned over."""

T = TypeVar("T")


def _differ(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must be distinct, got {value!r} twice")
    return values


Seed = Annotated[int, Field(ge=0, strict=True)]
Target = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Several = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_differ)]


class Table(Checked):
    """A table of the file. A missing required field is validated as None, so that the error names the field."""

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**{name: None for name, one in type(self).model_fields.items() if one.is_required()} | values)


class Rules(Table):
    """Data, seeds, length of runs, and what is measured."""

    wanted: ClassVar[dict[str, str]] = {
        "betas": "a list of numbers > 0",
        "tuning_seeds": "a list of whole numbers >= 0",
        "seeds": "a list of whole numbers >= 0",
        "looks_s": "a list of times > 0",
        "targets": "a list of accuracies between 0 and 1",
        "higher_is_better": "true or false",
        "client_scores_every_s": "a number > 0",
    }

    dataset: Text
    betas: Several[Positive]
    tuning_seeds: Several[Seed]
    """Seeds of the tuning runs. A file may have `tuning_seed` instead, a single number."""
    seeds: Several[Seed]
    tuning_s: Positive
    """Simulated seconds of a tuning run."""
    final_s: Positive
    """Simulated seconds of a final run."""
    eval_every_s: Positive
    looks_s: Several[Positive]
    """Times at which the metric is reported."""
    targets: Several[Target]
    """Accuracies, or values of another metric, for which the time is reported, from the easiest to the hardest; for the
    last one also uploads, energy and the ratio of times."""
    metric: Text = ACCURACY.name
    """The metric of the task that `dataset` names."""
    higher_is_better: Annotated[bool, Field(strict=True)] = True
    client_scores_every_s: Positive | None = None
    """Simulated seconds between evaluations on the clients' own data, see `Run.clients`; None for none."""

    def __init__(self, /, **values: Any) -> None:
        if "tuning_seed" in values and "tuning_seeds" not in values:
            values["tuning_seeds"] = [values.pop("tuning_seed")]
        super().__init__(**values)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if both := set(self.tuning_seeds) & set(self.seeds):
            raise ValueError(f"tuning_seeds must not include any of seeds, got {min(both)}")
        if self.eval_every_s > min(self.tuning_s, self.final_s):
            raise ValueError(f"eval_every_s must be <= tuning_s and final_s, got {self.eval_every_s:g}")
        if list(self.looks_s) != sorted(self.looks_s) or self.looks_s[-1] != self.final_s:
            raise ValueError(f"looks_s must increase up to final_s, {self.final_s:g}, got {list(self.looks_s)}")
        if self.targets != self.measured.targets:
            order = "increase" if self.higher_is_better else "decrease"
            raise ValueError(f"targets must {order}, got {list(self.targets)}")
        shares = self.targets if self.measured.is_share else ()
        if outside := [one for one in shares if not 0 < one < 1]:
            raise ValueError(f"targets must be {self.wanted['targets']}, got {outside[0]}")
        if any(look_s % 1 for look_s in self.looks_s) or any(round(100 * one, 9) % 1 for one in shares):
            raise ValueError("looks_s must be whole seconds and targets whole percentages")
        return self

    @cached_property
    def measured(self) -> Metric:
        """The metric with its targets."""
        return Metric(self.metric, self.higher_is_better, self.targets)

    def checked(self, run: Run) -> Run:
        """Return the run; raise InputError if it has another metric than these rules."""
        found = run.metric
        if (found.name, found.higher_is_better) != (self.metric, self.higher_is_better):
            better = "true" if found.higher_is_better else "false"
            told = f"the metric of the task is {found.name} (higher_is_better = {better}), not {self.metric}"
            raise InputError(f"{run.name}: {told}; set metric and higher_is_better in [rules]")
        return run

    def limits(self, seed: int) -> dict[str, Any]:
        """Return task, seed and length of a run by section.key; tuning runs and final runs may differ in length."""
        time_s = self.tuning_s if seed in self.tuning_seeds else self.final_s
        scores = {"run.client_scores_every_s": self.client_scores_every_s} if self.client_scores_every_s else {}
        return scores | {
            "data.dataset": self.dataset,
            "run.seed": seed,
            "run.time_budget_s": time_s,
            "run.eval_every_s": self.eval_every_s,
        }
