"""Which deadline gives a fleet the most updates while updates are at most two versions stale on average?

Prints one line per deadline and the choice.
"""

import lesson

fleet = lesson.draw_fleet(lesson.Settings(), num_clients=50, seed=0)
rows = lesson.plan(fleet, 20.0).deadlines
for row in rows:
    print(f"{row.deadline_s:4.0f} s: {row.updates_per_1000s:6.1f} updates / 1000 s, {row.staleness:.2f} versions stale")
best = max((row for row in rows if row.staleness <= 2), key=lambda row: row.updates_per_1000s)
print(f"take {best.deadline_s:.0f} s")
