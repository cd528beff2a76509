"""[faults]: injected faults. By default there are none."""

import math
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from lesson.core.validation import Checked, Positive

MAX_S = 1e9
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
_DISCONNECTS = ("disconnect_before", "disconnect_during")
_CORRUPTIONS = ("nan", "infinity", "scaled", "flipped")


class FaultSettings(Checked):
    """Injected faults: clients that disconnect, uploads with corrupted values, and wrong labels."""

    section: ClassVar[str] = "faults"

    disconnect_before: Share = Field(0.0, description="probability that a client disconnects before a local training")
    disconnect_during: Share = Field(
        0.0, description="probability that a client disconnects during a local training, at a uniformly random moment"
    )
    offline_s: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=True)] = Field(
        100.0, description="mean time until a disconnected client rejoins, exponentially distributed; inf for never"
    )
    offline_forever: Share = Field(0.0, description="probability that a disconnected client never rejoins")
    detection_delay_s: Annotated[float, Field(ge=0, le=MAX_S, strict=True)] = Field(
        0.0, description="time until the server notices that a client has disconnected"
    )
    corrupting_clients: Share = Field(1.0, description="share of clients whose uploads or labels may be corrupted")
    nan: Share = Field(0.0, description="probability that an upload of such a client contains a NaN")
    infinity: Share = Field(0.0, description="probability that an upload of such a client contains an infinite value")
    scaled: Share = Field(
        0.0,
        description="probability that an upload of such a client moves the model `scale` times as far as training did",
    )
    scale: Positive = Field(10.0, description="factor by which a scaled upload exaggerates the client's update")
    flipped: Share = Field(
        0.0, description="probability that an upload of such a client moves the model in the opposite direction"
    )
    flipped_labels: Share = Field(
        0.0, description="probability that a sample of such a client has a wrong label: class c of n becomes n - 1 - c"
    )

    @field_validator("offline_s")
    @classmethod
    def _check_offline_s(cls, offline_s: float) -> float:
        if MAX_S < offline_s < math.inf:
            raise ValueError(f"must be at most {MAX_S:g}, or inf for never, got {offline_s}")
        return offline_s

    @property
    def injects(self) -> bool:
        """Whether there are any faults."""
        return self.disconnects or self.corrupts or self.mislabels

    @property
    def disconnects(self) -> bool:
        """Whether clients may disconnect."""
        return self._is_positive(*_DISCONNECTS)

    @property
    def corrupts(self) -> bool:
        """Whether uploads may be corrupted."""
        return self.corrupting_clients > 0 and self._is_positive(*_CORRUPTIONS)

    @property
    def mislabels(self) -> bool:
        """Whether clients may train on wrong labels."""
        return self.corrupting_clients > 0 and self.flipped_labels > 0

    @property
    def _corruption_chosen(self) -> bool:
        return self._is_positive(*_CORRUPTIONS, "flipped_labels")

    def _is_positive(self, *names: str) -> bool:
        return any(getattr(self, name) > 0 for name in names)

    def without_effect(self, num_clients: int) -> list[str]:
        """Return a line for each setting that was changed but has no effect, with what it requires."""
        needed = {
            ("offline_s", "offline_forever", "detection_delay_s"): (
                self.disconnects,
                "disconnect_before or disconnect_during is > 0",
            ),
            ("corrupting_clients",): (self._corruption_chosen, "uploads or labels are corrupted, as with flipped > 0"),
            ("scale",): (self.scaled > 0, "scaled is > 0"),
        }
        lines = self.unused(needed, "faults.")
        if self._corruption_chosen and not self.num_corrupting(num_clients):
            lines.append(
                f"faults.corrupting_clients = {self.corrupting_clients} of {num_clients} clients rounds to 0 clients"
            )
        return lines

    def num_corrupting(self, num_clients: int) -> int:
        """Return how many of `num_clients` clients may have corrupted uploads or labels."""
        return round(self.corrupting_clients * num_clients)
