"""`python -m bench.scale.plot`: launcher.json as launcher.png, slopes over the number of agents."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
PANELS = (
    ("all_started_s", "all have started, s"),
    ("restart_s", "all registered again after a kill, s"),
    ("heartbeats_cpu_percent", "heartbeats, % of a core"),
    ("rss_mib", "resident memory, MiB"),
    ("log_lines_per_s", "log lines a second"),
    ("threads", "threads"),
)


def main() -> None:
    """Draw every figure that is known, before and now."""
    results = json.loads((FOLDER / "launcher.json").read_text())
    figure, axes = plt.subplots(2, 3, figsize=(12, 6), constrained_layout=True)
    for axis, (key, title) in zip(axes.flat, PANELS, strict=True):
        for label, rows in results.items():
            points = sorted((row["agents"], row[key]) for row in rows.values() if key in row)
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
        axis.set(xscale="log", yscale="log", title=title, xlabel="agents of 8 ranks")
        axis.grid(visible=True, alpha=0.3)
    axes.flat[0].legend()
    figure.savefig(FOLDER / "launcher.png", dpi=110)


if __name__ == "__main__":
    main()
