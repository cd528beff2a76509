"""Which deadline gives a fleet the most updates while updates are at most two versions stale on average?

Prints one line per deadline and the choice.
"""

from lesson import Settings, draw_fleet
from lesson.planning.plan import evaluate_deadline

fleet = draw_fleet(Settings(), num_clients=50, seed=0)
rows = [evaluate_deadline(fleet, deadline_s) for deadline_s in (5, 10, 15, 20, 30, 60)]
for row in rows:
    print(f"{row.deadline_s:3} s: {row.updates_per_1000s:6.1f} updates / 1000 s, {row.staleness:.2f} versions stale")
best = max((row for row in rows if row.staleness <= 2), key=lambda row: row.updates_per_1000s)
print(f"take {best.deadline_s} s")
