"""Choose the deadline with the most updates whose mean staleness is at most two versions.

Prints one line per deadline, then the chosen one.
"""

import lesson

fleet = lesson.draw_fleet(lesson.Settings(), num_clients=50, seed=0)
rows = lesson.plan(fleet, 20.0).deadlines
for row in rows:
    print(
        f"{row.deadline_s:4.0f} s: {row.updates_per_1000s:6.1f} updates per 1000 s, mean staleness {row.staleness:.2f}"
    )
best = max((row for row in rows if row.staleness <= 2), key=lambda row: row.updates_per_1000s)
print(f"chosen deadline: {best.deadline_s:.0f} s")
