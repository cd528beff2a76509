"""What a scenario may add to the paper: other radio models, and times that change from work to work."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lesson.core.validation import Checked, Flag, NotNegative, Positive, Text, Unbounded

MIN_COHERENCE_S = 0.01
Speed = Annotated[float, Field(ge=0, le=1000, strict=True)]
FILES = ("trace", "presence", "positions")
RADIO = ("path_loss", "shadowing_db", "download", "fading", "speed_mps", "positions", "spectrum")
"""What needs clients that were drawn: measured latencies do not tell where they are."""
_VARYING = ("fading", "speed_mps", "positions", "spectrum", "slowdown", "trace", "presence", "estimate_error")


class Variation(Checked):
    """Radio models besides the paper's, and what makes latencies change. By default nothing does, as in the paper."""

    section: ClassVar[str] = "scenario"
    wanted: ClassVar[dict[str, str]] = {"speed_mps": "[low, high], both 0 to 1000"}

    path_loss: Literal["log-distance", "uma", "umi"] = Field(
        "log-distance", description="log-distance as in the paper; uma, umi: 3GPP TR 38.901 macro cell, street canyon"
    )
    line_of_sight: Literal["drawn", "always", "never"] = Field(
        "drawn", description="of uma and umi: drawn by the standard's probability, spatially correlated; or fixed"
    )
    carrier_ghz: Annotated[float, Field(ge=0.5, le=100, strict=True)] = Field(2.0, description="of uma and umi")
    shadowing_db: NotNegative = Field(0.0, description="standard deviation of log-normal shadowing")
    shadowing_km: Positive = Field(0.05, description="distance at which shadowing is correlated by 1/e")
    fading: Literal["none", "rayleigh", "rician"] = Field(
        "none", description="block fading: drawn anew every coherence_s"
    )
    rician_k_db: Annotated[float, Field(ge=-300, le=300, strict=True)] = Field(
        6.0, description="power of the direct path over that of all others"
    )
    coherence_s: Annotated[float, Field(ge=MIN_COHERENCE_S, strict=True)] = Field(
        1.0, description="seconds for which a channel stays as it is, where clients fade or move"
    )
    speed_mps: tuple[Speed, Speed] = Field(
        (0.0, 0.0), description="random-waypoint mobility: speed of a leg, uniform in [low, high]; [0, 0] for none"
    )
    pause_s: NotNegative = Field(0.0, description="pause at a waypoint")
    positions: Text = Field("", description="CSV file client,time_s,x_km,y_km: where clients go instead")
    download: Flag = Field(False, description="whether clients wait for the model; the paper neglects it")
    station_power_w: Positive = Field(20.0, description="transmit power of the base station, where download counts")
    spectrum: Literal["fixed", "equal", "in-turn"] = Field(
        "fixed", description="a band for each; or that of all, split equally among those uploading, or used in turn"
    )
    slowdown: Annotated[float, Field(ge=0, le=1000, strict=True)] = Field(
        0.0, description="mean s of an exponential E: a piece of work computes 1 + E times as long"
    )
    trace: Text = Field("", description="CSV file client,round,compute_s,upload_s: how long work takes instead")
    presence: Text = Field("", description="CSV file client,from_s,to_s: when clients are there; others always are")
    estimate: Literal["last", "mean", "quantile"] = Field(
        "last",
        description="what the server believes of a client's times: the last, or of the last few mean or quantile",
    )
    estimate_window: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        5, description="how many times mean and quantile are of"
    )
    estimate_quantile: Annotated[float, Field(gt=0, le=1, strict=True)] = Field(0.8, description="which quantile")
    ask_every_s: Unbounded = Field(
        float("inf"), description="seconds after which the server asks idle clients for their times anew; inf for never"
    )
    estimate_error: Annotated[float, Field(ge=0, le=5, strict=True)] = Field(
        0.0, description="σ of a log-normal factor that every estimate is off by"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        low, high = self.speed_mps
        if low > high or (low == 0) != (high == 0):
            raise ValueError(
                f"speed_mps must be [low, high] with 0 < low <= high, or [0, 0] for none, got [{low:g}, {high:g}]; "
                "clients that may stand still for ever slow all down in the long run"
            )
        if high and self.positions:
            raise ValueError("positions must be left out with speed_mps: both say where clients go")
        if self.trace:
            for name in self.changed("fading", "spectrum", "slowdown", "speed_mps", "positions"):
                raise ValueError(f"trace must be left out with {name}: it says itself how long work takes")
        if self.spectrum != "fixed" and self.presence:
            raise ValueError("presence must be left out with a shared spectrum: nobody may vanish in the middle of it")
        if self.spectrum != "fixed" and self.changed("ask_every_s"):
            raise ValueError("ask_every_s must be left out with a shared spectrum: nobody knows who else will upload")
        return self

    @property
    def moves(self) -> bool:
        """Whether clients do."""
        return self.speed_mps[1] > 0 or bool(self.positions)

    @property
    def channel_changes(self) -> bool:
        """Whether a client's channel is another at another time."""
        return self.moves or self.fading != "none"

    @property
    def varying(self) -> list[str]:
        """The settings by which work may take longer or shorter than the server believes."""
        return self.changed(*_VARYING)

    @property
    def varies(self) -> bool:
        """Whether work may take longer or shorter than the server believes."""
        return bool(self.varying)

    def without_effect(self) -> list[str]:
        """Settings that were changed and change nothing, a line each, with what they go with."""
        urban, moving = self.path_loss != "log-distance", self.speed_mps[1] > 0
        needed = {
            ("line_of_sight", "carrier_ghz"): (urban, "path_loss = uma or umi"),
            ("shadowing_km",): (self.shadowing_db > 0, "shadowing_db > 0"),
            ("rician_k_db",): (self.fading == "rician", "fading = rician"),
            ("coherence_s",): (self.channel_changes, "fading, speed_mps or positions"),
            ("pause_s",): (moving, "speed_mps"),
            ("station_power_w",): (self.download, "download = true"),
            ("estimate_window",): (self.estimate != "last", "estimate = mean or quantile"),
            ("estimate_quantile",): (self.estimate == "quantile", "estimate = quantile"),
            ("estimate", "ask_every_s"): (self.varies, "something that varies, such as fading"),
            ("shadowing_db", "path_loss"): (not self.trace or self.download, "times that no trace says"),
        }
        return self.unused(needed)
