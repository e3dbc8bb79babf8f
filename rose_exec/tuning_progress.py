"""A progress bar for tuning, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

COUNTED = ("traced", "probed", "iteration", "warm-up", "local")


@contextlib.contextmanager
def progress_shown(steps: int) -> Generator[Callable[[dict[str, Any]], None]]:
    """Show a bar on stderr while the block runs, if that is a terminal.

    Args:
        steps: Most steps there will be.

    Yields:
        What to tell every entry of the log.
    """
    if not sys.stderr.isatty():
        yield lambda entry: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("tuning"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[at]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tuning", total=steps, at="")

        def told(entry: dict[str, Any]) -> None:
            taken = "" if entry["seconds"] is None else f" {entry['seconds'] * 1e3:.1f} ms"
            at = f"{entry['what']} {entry['plan'][:60]}{taken}: {entry['decision'][:60]}"
            bar.update(task, advance=int(entry["what"] in COUNTED), at=at)

        yield told
