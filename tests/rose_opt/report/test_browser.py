"""The page in a real browser, where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rose_opt.optimize import plan as optimize
from rose_opt.report import read_recorded, report_html
from rose_opt.report.activity_chart import LOW
from rose_opt.report.palette import HUES
from rose_opt.settings import PlanSettings
from tests.rose_opt.report import recordings

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


def pixels(picture: Path, colour: str) -> int:
    """How many pixels of a picture have a colour."""
    wanted = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
    found = np.asarray(Image.open(picture).convert("RGB")) == wanted
    return int(found.all(axis=2).sum())


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_draws_without_network_or_errors(tmp_path: Path) -> None:
    before, after = (
        read_recorded(make(tmp_path / name))
        for name, make in (
            ("before.parquet", recordings.native),
            ("after.parquet", recordings.planned),
        )
    )
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    chosen = optimize(before.facts, PlanSettings(cores=4))
    page.write_text(report_html(before, after, chosen), encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--proxy-server=127.0.0.1:9",  # nothing answers there
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1600,1200",
            "--virtual-time-budget=10000",
            "--enable-logging=stderr",
            "--v=0",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = re.findall(r":(\w+):CONSOLE.*?\] \"(.*)\"", done.stderr)
    assert any("document idle" in text for _, text in said), done.stderr
    assert [text for level, text in said if level != "INFO" or "rror" in text] == []
    for hue in HUES[:3]:  # more than the legend's swatch of 13 by 13
        assert pixels(picture, hue) > 1_000, hue
    assert pixels(picture, LOW) > 1_000
