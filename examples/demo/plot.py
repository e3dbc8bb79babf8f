"""The learning curves of both runs in one picture."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def plot_returns(path: Path, returns: Mapping[str, Sequence[float]], task: str) -> None:
    """Draw mean return against RL iteration, one curve per run.

    Args:
        path: Picture to write; its ending decides the format.
        returns: Mean episode return per iteration, by name of the run [the task's reward].
        task: Name of the task, for the title.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    # The first run is drawn wide and pale, so that a second curve that lies on it shows.
    for (name, values), (width, alpha) in zip(
        returns.items(), [(6.0, 0.35), (1.5, 1.0)], strict=True
    ):
        axes.plot(range(1, len(values) + 1), values, label=name, linewidth=width, alpha=alpha)
    axes.set_xlabel("RL iteration")
    axes.set_ylabel("mean episode return")
    axes.set_title(task)
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
