"""The regime rule at its borders, Kepler's law, and both kinds of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vqlab.data import orbital
from vqlab.data.orbital import REGIMES, load_orbits, regime, semi_major_axis
from vqlab.data.tables import DATA_VARIABLE
from vqlab.errors import VqlabError


@pytest.mark.parametrize(
    ("a", "e", "name"),
    [
        (7000, 0.0, "LEO"),
        (8377.9, 0.24, "LEO"),
        (8378, 0.0, "MEO"),
        (7000, 0.25, "HEO"),
        (42164, 0.001, "GEO"),
        (41364, 0.0, "GEO"),
        (42964, 0.0, "GEO"),
        (42964.1, 0.0, "HEO"),
        (41363, 0.0, "MEO"),
        (42164, 0.7, "HEO"),
    ],
)
def test_regimes(a: float, e: float, name: str) -> None:
    assert REGIMES[int(regime(np.array([a]), np.array([e]))[0])] == name


def test_kepler() -> None:
    # The geostationary orbit: one revolution per sidereal day.
    assert float(semi_major_axis(np.array([1.00273791]))[0]) == pytest.approx(42164, abs=1)


def test_elements_with_mean_motion_alone(tmp_path: Path) -> None:
    file = tmp_path / "orbits.csv"
    file.write_text("NORAD_CAT_ID,NAME,MEAN_MOTION,ECCENTRICITY,INCLINATION,GAPS\n1,A,15.0,0.001,53,\n2,B,1.00273791,0.0,0.1,5\n")
    data = load_orbits(tmp_path)
    assert [data.classes[label] for label in data.labels] == ["LEO", "GEO"]
    assert set(data.columns) == {"MEAN_MOTION", "ECCENTRICITY", "INCLINATION", "SEMIMAJOR_AXIS"}
    assert data.elements[1] == pytest.approx([42164, 0.0, 0.1], abs=1)


def test_satellites_keep_their_own_classes(tmp_path: Path) -> None:
    file = tmp_path / "satellites.csv"
    file.write_text(
        "norad_id,orbit_class,perigee_km,apogee_km,eccentricity,inclination_degrees\n1,LEO,500,520,0.001,97\n2,GEO,35780,35792,0.0,0\n"
    )
    data = load_orbits(file)
    assert data.classes == ("GEO", "LEO")
    assert data.labels.tolist() == [1, 0]
    assert data.elements[0, 0] == pytest.approx(6888.137)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("X,Y\n1,2\n")
    with pytest.raises(VqlabError, match="expected the columns ECCENTRICITY"):
        load_orbits(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("ECCENTRICITY,INCLINATION,MEAN_MOTION\n")
    with pytest.raises(VqlabError, match="holds no orbits"):
        load_orbits(tmp_path / "b.csv")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(orbital, "CELESTRAK", "http://127.0.0.1:9/")
    with pytest.raises(VqlabError, match=r"could not be had from celestrak.org .* --data"):
        load_orbits()
