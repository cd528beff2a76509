"""[guards]: which updates the server rejects, and how it aggregates the others."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lesson.core.validation import MAX_COUNT, Checked, Flag


class GuardSettings(Checked):
    """Which updates the server rejects, and how it aggregates the others."""

    section: ClassVar[str] = "guards"

    finite: Flag = Field(True, description="reject updates with NaN or infinite values; otherwise they end the run")
    norm: Literal["none", "clip", "reject"] = Field(
        "none", description="what to do with an update whose norm exceeds norm_limit times the median"
    )
    norm_limit: Annotated[float, Field(ge=1, strict=True)] = Field(
        3.0, description="largest accepted norm of an update, as a multiple of the median of recent norms"
    )
    norm_window: Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)] = Field(
        200, description="number of recent updates over which the median is computed"
    )
    aggregation: Literal["mean", "median", "trimmed-mean"] = Field(
        "mean", description="the strategy's weighted mean, or the coordinate-wise median or trimmed mean"
    )
    trim: Annotated[float, Field(ge=0, lt=0.5, strict=True)] = Field(
        0.2, description="share of the updates that a trimmed mean leaves out at each end"
    )
    exclude_after_rejections: Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)] = Field(
        5, description="consecutive rejected updates after which a client is excluded; 0 for never"
    )

    @model_validator(mode="after")
    def _check_finite(self) -> Self:
        if not self.finite and (self.norm != "none" or self.aggregation != "mean"):
            raise ValueError("finite must be true with norm or aggregation: a median requires finite values")
        return self

    def without_effect(self) -> list[str]:
        """Return a line for each setting that was changed but has no effect, with what it requires."""
        needed = {
            ("norm_limit", "norm_window"): (self.norm != "none", "norm is clip or reject"),
            ("trim",): (self.aggregation == "trimmed-mean", "aggregation is trimmed-mean"),
        }
        return self.unused(needed, "guards.")
