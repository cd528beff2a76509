"""Convert the delays of Async-HFL's devices to a file of latencies, and print their rates, computed by hand.

python experiments/validation/async_hfl.py Async-HFL/delays latencies.csv
"""

import sys
from pathlib import Path

import numpy as np

DEADLINE_S = 150


def main(delays: Path, latencies: Path) -> None:
    """Write latencies, those of communication with the nearest gateway plus computation, and print the rates."""
    to_gateways_s = np.loadtxt(delays / "delay_client_to_gateway.csv", delimiter=",")
    to_gateways_s[to_gateways_s == 0] = np.inf  # out of reach
    latency_s = to_gateways_s.min(axis=1) + np.loadtxt(delays / "comp.txt")
    rows = [f"{device},{value:.6f}" for device, value in enumerate(latency_s)]
    latencies.write_text("\n".join(["client,latency_s", *rows, ""]), encoding="utf-8")

    per_h = {
        "fedavg": len(latency_s) * 3600 / latency_s.max(),
        "fedasync": (3600 / latency_s).sum(),
        f"lesson, τ = {DEADLINE_S} s": (3600 / (DEADLINE_S * np.ceil(latency_s / DEADLINE_S))).sum(),
    }
    print(f"Longest latency: {latency_s.max():.2f} s")
    for strategy, rate in per_h.items():
        print(f"Updates per hour, {strategy}: {rate:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
