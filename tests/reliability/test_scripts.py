"""Small numbers of what the scripts in this folder do in large ones; docs/reliability.md has the large ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("kill.py", ["--points", "2", "--kinds", "vqvae"], "vqvae: 2 of 2 resumed runs end byte-equal"),
        ("fuzz.py", ["--cases", "240"], "0 of 240 cases wrong"),
        ("images.py", ["--files", "60"], "86 files"),
    ],
)
def test_small_run_of_a_script(script: str, options: list[str], says: str) -> None:
    environment = {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, str(HERE / script), *options], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert says in result.stdout
