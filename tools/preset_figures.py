"""Figures of docs/explanation on presets and the compute charge: means over 200 draws of 50 clients, at τ = 20 s."""

import pandas as pd

from lesson import Settings
from lesson.paper.fleets import latency_summary

compared = {
    "printed": Settings(preset="printed"),
    "released": Settings(),
    "released, latency_passes = 1": Settings(latency_passes=1),
}
means = pd.DataFrame({label: latency_summary(settings).mean() for label, settings in compared.items()})
print(means.drop(index="draw").round(3).to_string())
