"""The sections of a settings file and every setting in them.

Defaults are those of the preset `released`; `presets.py` has what `printed` changes.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from lesson.core.errors import InputError, unknown
from lesson.core.validation import (
    BelowOne,
    Checked,
    Count,
    CountFromZero,
    CountRange,
    Finite,
    Flag,
    Fraction,
    NotNegative,
    Positive,
    PositiveOrInf,
    Range,
    Share,
    Text,
    setting,
    shown,
)

MAX_CLIENTS = 10_000_000
MIN_COHERENCE_S = 1e-4
LOG_DISTANCE = (
    *("path_loss=log-distance", "throughput=model"),
    *("no snr_trace", "no channel", "no gain_map", "no latencies"),
)
"""What the parameters of the paper's path loss require."""
PATH_LOSSES = ("log-distance", "uma", "umi")
UpTo1000 = Annotated[float, Field(ge=0, le=1000, strict=True)]


class FleetSettings(Checked):
    """The clients: how many, where, how fast, and when they are available."""

    num_clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS, strict=True)] = setting(50, "number of clients")
    area_km: Positive = setting(
        2.0, "side of the square area; the base station is at its center", requires="no latencies"
    )
    cpu_hz: Range = setting(
        (0.8e9, 3e9), "CPU frequency f of a client, uniform in [low, high]", requires="no latencies"
    )
    cycles_per_sample: Range = setting(
        (3e8, 5e8), "CPU cycles C to train on one sample, uniform in [low, high]", requires="no latencies"
    )
    energy_kappa: Positive = setting(1e-28, "κ of the compute energy κ·f²·cycles", requires="no latencies")
    energy_budget_j: Positive | None = setting(
        None,
        "energy that a client may spend in a run; it disconnects for good if another usual update would exceed this",
    )
    max_update_j: Positive | None = setting(None, "energy of a usual update above which a client never takes part")
    slowdown: UpTo1000 = setting(
        0.0,
        "each local training takes 1 + E times the usual compute time; E is exponential with this mean",
        varies=True,
    )
    positions: Text = setting(
        "",
        "CSV file (client,time_s,x_km,y_km) of the clients' positions over time",
        varies=True,
        excludes={"speed_mps": "both move clients"},
    )
    presence: Text = setting(
        "",
        "CSV file (client,from_s,to_s) of when clients are available; unlisted clients always are",
        varies=True,
        excludes={"spectrum": "clients cannot leave during a shared upload"},
    )
    latencies: Text = setting(
        "",
        "CSV file (client,latency_s[,compute_s,upload_s,num_samples,compute_j,transmit_j,sd_s,distribution,count]) of "
        "measured clients",
        excludes={
            "path_loss shadowing_db download fading speed_mps positions spectrum": "measured clients have no positions",
            "snr_trace throughput": "measured latencies include upload times",
        },
    )
    trace: Text = setting(
        "",
        "CSV file (client,round,compute_s,upload_s[,lost]) of measured times; lost is 1 for a training that failed",
        varies=True,
        excludes={"fading spectrum slowdown speed_mps positions": "the trace already sets all times"},
    )


class RadioSettings(Checked):
    """The channel between a client and the base station."""

    bandwidth_hz: Positive = setting(30e3, "bandwidth b of each client", requires=("throughput=model", "no latencies"))
    power_w: Positive = setting(0.1, "transmit power p of a client", requires="no latencies")
    noise_dbm: Finite = setting(
        -100.0,
        "noise plus inter-cell interference N0 on a client's band",
        requires=("throughput=model", "no snr_trace", "no latencies", "no noise_dbm_per_hz"),
    )
    noise_dbm_per_hz: Finite | None = setting(
        None,
        "noise density, which replaces noise_dbm, so that noise grows with the bandwidth; thermal noise has -174",
        requires=("throughput=model", "no snr_trace", "no latencies"),
    )
    noise_figure_db: NotNegative = setting(
        0.0, "noise figure of the receiver, added to noise_dbm_per_hz", requires="noise_dbm_per_hz"
    )
    snr_gap_db: NotNegative = setting(
        0.0,
        "how far coding falls short of Eq. (5): the SNR is divided by it",
        requires=("throughput=model", "no latencies"),
    )
    max_bps_per_hz: Positive | None = setting(
        None,
        "maximum data rate per bandwidth, that of the highest modulation",
        requires=("throughput=model", "no latencies"),
    )
    packet_error: Literal["none", "outage", "exponential"] = setting(
        "none",
        "how uploads fail: outage: nothing is received below min_snr_db; exponential: an upload is corrupted with "
        "probability 1 − exp(−m/SNR)",
        varies=True,
        excludes={
            "latencies trace": "measured times already include failed transmissions",
            "throughput": "measured data rates have no SNR",
        },
    )
    min_snr_db: Finite = setting(
        -6.7,
        "lowest usable SNR, by default about that of LTE and NR; clients that cannot reach it at the beginning never "
        "take part",
        requires="packet_error=outage",
    )
    waterfall_db: Finite = setting(
        0.334, "waterfall threshold m, by default that of Chen et al. 2021", requires="packet_error=exponential"
    )
    on_error: Literal["lose", "retransmit"] = setting(
        "lose",
        "whether corrupted uploads are lost or sent again, at most 100 times",
        requires="packet_error=exponential",
    )
    path_loss: Text = setting(
        "log-distance",
        "path-loss model: log-distance as in the paper; uma or umi: 3GPP TR 38.901 macro cell or street canyon; "
        "module:function: your own, from distances in km to dB",
        requires=("throughput=model", "no snr_trace", "no channel", "no gain_map", "no trace or download"),
    )
    channel: Text = setting(
        "",
        "module:Class of your own channel, which replaces path loss and shadowing",
        varies=True,
        excludes={"path_loss shadowing_db gain_map snr_trace throughput latencies trace": "it replaces the channel"},
    )
    gain_map: Text = setting(
        "",
        "NPZ file (x_km, y_km, gain_db) of a map of gains, which replaces path loss and shadowing",
        excludes={"path_loss shadowing_db snr_trace throughput latencies trace": "it replaces the channel"},
    )
    path_loss_1km_db: Finite = setting(
        128.1,
        "path loss at 1 km, for log-distance",
        requires=LOG_DISTANCE,
    )
    path_loss_slope_db: Finite = setting(
        37.6,
        "path loss per decade of distance, for log-distance",
        requires=LOG_DISTANCE,
    )
    line_of_sight: Literal["drawn", "always", "never"] = setting(
        "drawn",
        "line of sight for uma and umi: drawn with the standard's probability, or fixed",
        requires="path_loss=uma/umi",
    )
    carrier_ghz: Annotated[float, Field(ge=0.5, le=100, strict=True)] = setting(
        2.0,
        "carrier frequency, for uma and umi, for the coherence time and for channels of your own",
        requires="path_loss=uma/umi or fading or channel",
    )
    shadowing_db: NotNegative | None = setting(
        None,
        "standard deviation of log-normal shadowing; by default, that of uma or umi, and none for other path losses",
        requires="no trace or download",
    )
    shadowing_km: Positive | None = setting(
        None,
        "distance at which the correlation of shadowing falls to 1/e; by default, that of uma or umi, or 0.05",
        requires="shadowing_db or path_loss=uma/umi",
    )
    fading: Literal["none", "rayleigh", "rician"] = setting(
        "none", "block fading, drawn again every coherence_s", varies=True
    )
    rician_k_db: Annotated[float, Field(ge=-300, le=300, strict=True)] | None = setting(
        None,
        "power of the direct path relative to all others, for rician; by default, that of uma or umi, or 9",
        requires="fading=rician",
    )
    coherence_s: Annotated[float, Field(ge=MIN_COHERENCE_S, strict=True)] | None = setting(
        None,
        "time for which fading stays constant; by default, it follows from the mean speed and the carrier",
        requires="fading or speed_mps or positions or snr_trace or channel",
    )
    speed_mps: tuple[UpTo1000, UpTo1000] = setting(
        (0.0, 0.0), "random-waypoint mobility: speed of a leg, uniform in [low, high]; [0, 0] for none", varies=True
    )
    pause_s: NotNegative = setting(0.0, "pause at each waypoint", requires="speed_mps")
    snr_trace: Text = setting(
        "",
        "CSV file (trace,time_s,snr_db) of measured SNR, which replaces the channel model; client i follows trace i, "
        "and clients beyond the last trace begin again at the first",
        varies=True,
        excludes={"throughput fading shadowing_db speed_mps positions trace": "the trace already sets the channel"},
    )
    snr_start: Literal["drawn", "beginning"] = setting(
        "drawn",
        "where in its SNR trace a client starts: at a time drawn for each client, or at time 0",
        requires="snr_trace",
    )
    throughput: Literal["model", "phones"] = setting(
        "model",
        "data rates: model: Eq. (5); phones: drawn per transfer from the distribution of one of 19 measured phones",
        varies=True,
        excludes={"fading shadowing_db speed_mps spectrum positions trace": "measured data rates replace the channel"},
    )
    spectrum: Literal["fixed", "equal", "in-turn"] = setting(
        "fixed",
        "a fixed band per client, or the total bandwidth: split equally among uploads, or used by one at a time",
        varies=True,
    )
    allocation: Text = setting(
        "",
        "what divides the total bandwidth among the clients that start: equal, equal-finish (all finish at the same "
        "time) or module:function; unset: each client keeps its own band",
        excludes={
            "latencies": "measured clients have no bandwidth",
            "throughput snr_trace": "measured channels have no bandwidth or transmit power",
            "trace": "the trace already sets all times",
            "spectrum": "both share the total bandwidth",
        },
    )
    download: Flag = setting(False, "whether clients wait for the model download; the paper neglects it")
    station_power_w: Positive = setting(
        20.0,
        "transmit power of the base station, for download",
        requires=("download", "throughput=model", "no snr_trace"),
    )

    @property
    def custom(self) -> tuple[str, ...]:
        """Settings that may name custom code."""
        return self.channel, self.path_loss, self.allocation

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if ":" not in self.path_loss and self.path_loss not in PATH_LOSSES:
            raise unknown("path_loss", self.path_loss, (*PATH_LOSSES, "module:function"))
        if self.channel and ":" not in self.channel:
            raise ValueError(f"channel must be module:Class, got '{self.channel}'")
        return self

    @model_validator(mode="after")
    def _check_speed(self) -> Self:
        low, high = self.speed_mps
        if low > high or (low == 0) != (high == 0):
            raise ValueError(
                f"speed_mps must be [low, high] with 0 < low <= high, or [0, 0] for none, got [{low:g}, {high:g}]; "
                "with low = 0, clients come to a standstill over time"
            )
        return self


class TrainingSettings(Checked):
    """Local training, and the compute time that is charged for it."""

    batch_size: Count = setting(20, "samples in a minibatch")
    local_steps: Count = setting(1, "minibatches of one local training")
    local_epochs: CountFromZero = setting(0, "passes over the client's data; replaces local_steps unless 0")
    learning_rate: Positive = setting(0.1, "step size δ")
    lr_cap: PositiveOrInf = setting(1.0, "upper bound of the scaled step size δ·j; inf for none")
    proximal_mu: Annotated[float, Field(ge=0, le=1e30, strict=True)] = setting(
        0.0, "μ of FedProx, which adds μ·(w − initial model) to each local gradient; 0 for none"
    )
    local_optimizer: Literal["sgd", "adamw"] = setting("sgd", "optimizer of local training")
    momentum: BelowOne = setting(0.0, "momentum of sgd; its state is reset at the start of each local training")
    nesterov: Flag = setting(False, "whether momentum is that of Nesterov", requires="momentum")
    weight_decay: Annotated[float, Field(ge=0, le=1e3, strict=True)] = setting(
        0.0, "weight decay: added to the gradient by sgd, decoupled from it by adamw"
    )
    adam_beta1: BelowOne = setting(
        0.9, "decay rate of adamw's running mean of gradients", requires="local_optimizer=adamw"
    )
    adam_beta2: BelowOne = setting(
        0.999, "decay rate of adamw's running mean of squared gradients", requires="local_optimizer=adamw"
    )
    adam_epsilon: Annotated[float, Field(ge=1e-30, le=1, strict=True)] = setting(
        1e-8, "added to the denominator in adamw's steps", requires="local_optimizer=adamw"
    )
    clip_norm: PositiveOrInf = setting(
        math.inf, "maximum norm of a gradient, to which larger gradients are scaled down; inf for none"
    )
    schedule: Literal["constant", "step", "exponential", "cosine"] = setting(
        "constant", "how the step size changes over the run", requires="schedule_period"
    )
    schedule_over: Literal["rounds", "seconds"] = setting(
        "rounds",
        "whether the schedule follows the round or the time at which a local training starts",
        requires="schedule",
    )
    schedule_period: PositiveOrInf = setting(
        math.inf, "length of a period in rounds or seconds; cosine stays constant after one period", requires="schedule"
    )
    schedule_factor: Share = setting(0.1, "factor by which the step size changes in a period", requires="schedule")
    weighting: Literal["uniform", "samples"] = setting(
        "uniform", "weight of a client in an aggregation: equal for all, or its number of samples"
    )
    latency_samples: Count | Literal["processed"] = setting(
        20,
        "samples for which compute time is charged; 'processed': as many as the local training uses",
        requires="no latencies",
    )
    latency_passes: Count | Literal["eq4"] = setting(
        "eq4",
        "passes over latency_samples for which compute time is charged; 'eq4': θ·log2(1/ε), as in Eq. (4)",
        requires="no latencies",
    )
    theta: Positive = setting(
        1.0, "θ of the number of passes θ·log2(1/ε)", requires=("latency_passes=eq4", "no latencies")
    )
    epsilon: Annotated[float, Field(gt=0, lt=1, strict=True)] = setting(
        0.05, "ε of the number of passes θ·log2(1/ε)", requires=("latency_passes=eq4", "no latencies")
    )

    @model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        if self.local_optimizer == "adamw" and self.momentum:
            raise ValueError("momentum must be 0 for local_optimizer = 'adamw', which has adam_beta1")
        return self

    @property
    def is_plain(self) -> bool:
        """Whether a single local step is a step of plain SGD, whatever the momentum."""
        return (
            self.local_optimizer == "sgd"
            and not (self.nesterov and self.momentum)
            and not self.weight_decay
            and self.clip_norm == math.inf
        )

    @property
    def charged_passes(self) -> float:
        """Passes over the samples for which compute time is charged, by default θ·log2(1/ε) as in Eq. (4)."""
        return self.theta * math.log2(1 / self.epsilon) if self.latency_passes == "eq4" else float(self.latency_passes)


class DataSettings(Checked):
    """What is learned, and how the samples are distributed over the clients."""

    dataset: Text = setting("mnist", "a built-in task, as 'lesson tasks' lists them, or module:function")
    split: Literal[
        "dirichlet-per-class", "dirichlet-per-client", "dirichlet-pool", "iid", "quantity-skew", "natural"
    ] = setting(
        "dirichlet-per-class",
        "how samples are divided among clients; natural: as listed by the task, the default for such tasks",
    )
    beta: Positive = setting(
        1.0,
        "concentration β of the Dirichlet split; smaller is more unequal",
        requires="split=dirichlet-per-class/dirichlet-per-client/dirichlet-pool/quantity-skew",
    )
    samples_per_client: Count | CountRange = setting(
        1000, "training samples of a client, or [low, high]; only for dirichlet-per-client and dirichlet-pool"
    )

    @property
    def uses_beta(self) -> bool:
        """Whether the split depends on β."""
        return self.split not in ("iid", "natural")


class ServerSettings(Checked):
    """How the server aggregates updates and estimates latencies."""

    optimizer: Literal["none", "momentum", "adagrad", "adam", "yogi", "amsgrad"] = setting(
        "none",
        "server optimizer; none: the aggregated model becomes the global one, except with fadas, which uses amsgrad",
    )
    learning_rate: Positive | None = setting(
        None, "step size of the optimizer; by default 1 for momentum and 0.01 for adaptive ones"
    )
    beta1: BelowOne = setting(0.9, "decay of the mean gradient m")
    beta2: BelowOne = setting(0.99, "decay of the mean square v, for adam, yogi and amsgrad")
    epsilon: Annotated[float, Field(ge=1e-30, le=1e15, strict=True)] = setting(
        1e-3, "limits the steps of adagrad, adam, yogi and amsgrad; τ in Reddi et al."
    )
    aggregate: Literal["strategy", "models", "updates"] = setting(
        "strategy",
        "models: average models, Eq. (10); updates: add them to the newest model; strategy: as the strategy prescribes",
    )
    estimate: Literal["last", "mean", "quantile"] = setting(
        "last",
        "latency estimate of a client: its last observation (the mean, if its latency has a distribution), or the mean "
        "or a quantile of the last few",
        requires="times vary",
    )
    estimate_window: Annotated[int, Field(ge=1, le=1000, strict=True)] = setting(
        5, "number of observations that mean and quantile use", requires="estimate=mean/quantile"
    )
    estimate_quantile: Fraction = setting(
        0.8, "quantile of the observations, for estimate = quantile", requires="estimate=quantile"
    )
    refresh_estimates_every_s: PositiveOrInf = setting(
        math.inf,
        "time after which the server asks idle clients for their current times; inf for never",
        requires="times vary",
        excludes={"spectrum": "shared upload times depend on which other clients upload"},
    )
    estimate_error: Annotated[float, Field(ge=0, le=5, strict=True)] = setting(
        0.0, "σ of a log-normal error factor on every estimate", varies=True
    )
    overhead_s: Annotated[float, Field(ge=0, le=1e9, strict=True)] = setting(
        0.0, "time after each aggregation in which the server opens no round; the paper neglects it"
    )

    @property
    def step_size(self) -> float:
        """The given learning rate, or the optimizer's default: adaptive ones move each parameter by about this much."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.01 if self.optimizer in ("adagrad", "adam", "yogi", "amsgrad") else 1.0


def _storable(value: Any) -> Any:
    """Return a plain value as it reads back from a settings file; raise TypeError if it cannot be stored."""
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _storable(one) for name, one in value.items()}
    if not isinstance(value, bool | int | float | str):
        raise TypeError
    return value


class _WithOptions(Checked):
    """A section with free options, as further keys besides its own settings."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not settings of the section."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _check_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        checked = {name: value for name, value in values.items() if name in cls.model_fields}
        for name, value in values.items():
            if name not in checked and value is not None:
                try:
                    checked[name] = _storable(value)
                except TypeError:
                    kinds = "text, a number, true, false, or a list or table of those"
                    raise ValueError(f"{name} must be {kinds}, got {shown(value)}") from None
        return checked


class UploadSettings(_WithOptions):
    """The size of an upload, and its compression; further keys are the compressor's own options."""

    model_bits: Positive | Literal["actual"] = setting(
        100e3, "size s of an uncompressed model; actual: 32 bits for each value that clients exchange"
    )
    compression: Text = setting("none", "what compresses uploads: none, a built-in compressor or module:Class")
    level: Positive | None = setting(
        None,
        "how much of an update is sent: bits per value (qsgd, uniform) or the fraction of values (topk, randk); by "
        "default, 8 bits or 1 %",
        requires="compression",
    )
    level_bits: dict[str, Positive] = setting(
        {}, "size of an upload at each level that strategies may choose; follows from the model"
    )

    @model_validator(mode="after")
    def _check_unknown(self) -> Self:
        for name in self.options if self.compression == "none" else ():
            raise InputError(f"{unknown('setting', name, type(self).model_fields)}; options require compression")
        return self

    @property
    def whole_bits(self) -> float:
        """Size of a model that is not compressed in bits; raise InputError if it depends on the model."""
        if self.model_bits == "actual":
            raise InputError("[upload] model_bits must be a number here, got 'actual': no model is trained")
        return self.model_bits

    @property
    def bits(self) -> float:
        """Size of the usual upload in bits; raise InputError if it depends on the model."""
        if self.compression == "none":
            return self.whole_bits
        if not self.level_bits or self.level is None:
            raise InputError(f"[upload] compression must be none here, got '{self.compression}': no model is trained")
        return self.bits_of[self.level]

    @property
    def bits_of(self) -> dict[float, float]:
        """Size of an upload in bits by level, from the least to the most compression; empty without compression."""
        return {float(level): bits for level, bits in self.level_bits.items() if self.compression != "none"}


class TaskSettings(_WithOptions):
    """Arguments of the function that returns the task; all keys are options."""


class StrategySettings(_WithOptions):
    """The strategy and its deadline; further keys are the strategy's own options."""

    name: Text = setting("lesson", "a built-in strategy or module:Class")
    deadline_s: PositiveOrInf = setting(20.0, "deadline τ of a round, for strategies that have one")
    ensure_first_tier: Flag = setting(
        False, "if tier 1 would be empty, treat the fastest client as meeting the deadline"
    )


COMMON = tuple(StrategySettings.model_fields)
"""Settings of [strategy] that are not options of one strategy."""


class RunSettings(Checked):
    """Seed, length, evaluation, checkpoints and hardware of a run."""

    seed: Annotated[int, Field(ge=0, strict=True)] = setting(0, "random seed")
    rounds: Count | None = setting(None, "number of rounds after which the run ends")
    time_budget_s: PositiveOrInf = setting(math.inf, "simulated time after which the run ends")
    eval_every_s: Literal["auto"] | Annotated[float, Field(ge=1e-3, strict=True)] = setting(
        "auto", "simulated time between evaluations; auto: 40 evaluations at times drawn from the seed"
    )
    eval_jitter: Share = setting(
        0.0,
        "largest share of the interval by which an evaluation is moved earlier, at random; no effect with auto",
    )
    client_scores_every_s: Annotated[float, Field(ge=1e-3, strict=True, allow_inf_nan=True)] = setting(
        math.inf, "simulated time between evaluations on every client's own data; inf for none"
    )
    checkpoint_every_s: Positive = setting(
        20.0, "wall-clock time between checkpoints; up to 10 times as long if they are slow"
    )
    trainer: Literal["auto", "reference", "fused", "batched"] = setting(
        "auto", "implementation of local training; all give the same results up to rounding"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "device to train on; auto uses a GPU if there is one")
    precision: Literal["auto", "tf32", "float32", "bfloat16"] = setting(
        "auto", "precision of matrix products; auto: tf32 on a GPU, float32 on a CPU"
    )

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.rounds is None and self.time_budget_s == math.inf:
            raise ValueError("rounds or a finite time_budget_s must be given: otherwise the run would never end")
        return self

    def share_done(self, num_rounds: int, time_s: float) -> float:
        """Return the fraction of a run that is complete after some rounds, at a simulated time."""
        by_time = 0.0 if self.time_budget_s == math.inf else time_s / self.time_budget_s
        return min(1.0, max(by_time, num_rounds / self.rounds if self.rounds else 0.0))


class FaultSettings(Checked):
    """Injected faults: clients that disconnect, so that their updates are lost."""

    disconnect_before: Share = setting(0.0, "probability that a client disconnects before a local training")
    disconnect_during: Share = setting(
        0.0, "probability that a client disconnects during a local training, at a uniformly random moment"
    )
    offline_s: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=True)] = setting(
        100.0,
        "mean time until a disconnected client rejoins, exponentially distributed; inf for never",
        requires="disconnect_before or disconnect_during",
    )
    offline_forever: Share = setting(
        0.0, "probability that a disconnected client never rejoins", requires="disconnect_before or disconnect_during"
    )
    detection_delay_s: Annotated[float, Field(ge=0, le=1e9, strict=True)] = setting(
        0.0,
        "time until the server notices that a client has disconnected",
        requires="disconnect_before or disconnect_during",
    )

    @property
    def disconnects(self) -> bool:
        """Whether clients may disconnect."""
        return self.disconnect_before > 0 or self.disconnect_during > 0


class GuardSettings(Checked):
    """Which updates the server rejects."""

    norm_limit: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=True)] = setting(
        math.inf, "largest accepted norm of an update, as a multiple of the median of recent norms"
    )
    norm_window: Count = setting(
        200, "number of recent updates over which the median is computed", requires="norm_limit"
    )
    exclude_after_rejections: CountFromZero = setting(
        5, "consecutive rejected updates after which a client is excluded; 0 for never"
    )

    @property
    def limits_norms(self) -> bool:
        """Whether updates may be rejected for their norm."""
        return self.norm_limit < math.inf
