"""Invalid values, settings and command lines."""

import math
from typing import Any

Tables = dict[str, dict[str, Any]]

WRONG: tuple[Any, ...] = (
    *(True, False, 0, -1, 1.5, -1.5, 10**30, -(10**30), 2**63, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf),
    *("", "text", "auto", "1", " ", "'", '"', "é∞\u202e", "x" * 5000, "../../etc", "a:b", "os:system", "=", "\t"),
    *([], [1], [1, 2, 3], [2, 1], [[1, 2], 3], ["a", "b"], {}, {"a": 1}, {"a": {"b": []}}),
)
CONTRADICTORY: tuple[Tables, ...] = (
    {"fleet": {"positions": "a.csv"}, "radio": {"speed_mps": [1.0, 2.0]}},
    {"fleet": {"trace": "a.csv"}, "radio": {"fading": "rayleigh"}},
    {"radio": {"snr_trace": "a.csv", "throughput": "phones"}},
    {"radio": {"throughput": "phones", "spectrum": "equal"}},
    {"radio": {"spectrum": "equal"}, "fleet": {"presence": "a.csv"}},
    {"radio": {"spectrum": "in-turn"}, "server": {"refresh_estimates_every_s": 5.0}},
    {"fleet": {"cpu_hz": [3e9, 1e9]}},
    {"fleet": {"trace": "."}},
    {"fleet": {"presence": "/dev/null"}},
    {"run": {"time_budget_s": math.inf}},
    {"run": {"precision": "bfloat16", "device": "cpu"}},
    {"data": {"dataset": "cifar10"}},
    {"strategy": {"name": "fedbuff", "concurrency": 1000}},
    {"strategy": {"name": "lesson", "participation": 0}},
    {"strategy": {"name": "nothing:Here"}},
    {"strategy": {"name": "fedavg", "fraction": 2.0}},
)
NONSENSE = """
''
--version
--help
nothing
--print-completion tcsh
--print-completion bash
run --rounds
run --rounds x
run --rounds -1
run --beta 0
run more
run --scenario no
run --scenario .toml
run --set
run --set a
run --set run.rounds=0
run --set =
run --set run.rounds=1 --log nothing
run --log os:path
run --seed 1e3
compare --seeds 0
compare --strategies ,
compare --strategies lesson,lesson
compare --strategies lesson,nothing
sweep
sweep no.toml
sweep .
sweep no.toml --engine no
data
data no
data shares
data shares --figure .
report
report .
report no
report . --width 1
reproduce no
sweep --tune --seconds -1
sweep no --tune
sweep . --tune
sweep --tune --entries no
sweep --tune --set run.rounds=2
sweep no.toml --entries lesson
contest
strategies
strategies x
plan --deadline 0
plan --deadline nan
plan --clients 0
plan --on-time 2
plan --deadline auto --on-time 0
plan --figure a.xyz
plan --html .
plan --latencies .
plan --seed -1
plan --rounds 0
plan --rounds 99999999999999999999
plan --scenario \u202e.toml
""".strip().splitlines()
REFUSED = """
plan --seed 1 --seed 2
plan --set data.beta=1 --set data.beta=2
plan --set strategy.deadline_s=5 --deadline 20
plan --set fedbuff.concurrency=5
run --strategy lesson --set fedbuff.concurrency=5
compare --set strategy.name=fedavg
compare --strategies lesson,fedavg --set strategy.concurrency=5
compare --strategies lesson,fedavg --set fedbuff.concurrency=5
run --set strategy.participation=1979-05-27
run --set strategy.participation=nan
""".strip().splitlines()
"""Settings that are given twice, have no effect or cannot be stored; each of them must be rejected."""
