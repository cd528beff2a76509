"""The figures of docs/explanation/model.md about the two presets: means over 200 seeds of 50 clients at τ = 20 s."""

from lesson.paper.fleets import latency_summary

for row in latency_summary().groupby("scenario").mean().itertuples():
    print(f"{row.Index}: slowest {row.slowest_s:.1f} s, median {row.median_s:.1f} s", end="")
    print(f", tier 1 {row.tier_1_share:.1%}, nobody within 10 s in {row.nobody_within_10s:.0%} of draws")
