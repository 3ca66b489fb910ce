"""Orbits of debris and satellites: elements as a table, with the regime (LEO, MEO, GEO, HEO) as label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vqlab.data.tables import DATA_VARIABLE, find_file, read_rows
from vqlab.errors import VqlabError

REGIMES = ("LEO", "MEO", "GEO", "HEO")
EARTH_RADIUS_KM = 6378.137
GRAVITATIONAL_PARAMETER = 398600.4418  # km^3 / s^2
ELEMENTS = ("SEMIMAJOR_AXIS", "ECCENTRICITY", "INCLINATION")
#: Elements of debris and satellites as CelesTrak publishes them, in the columns of the CCSDS orbit mean-elements message.
CELESTRAK = "https://celestrak.org/NORAD/elements/gp.php?FORMAT=csv&GROUP="
CELESTRAK_GROUPS = ("active", "cosmos-1408-debris", "fengyun-1c-debris", "iridium-33-debris", "cosmos-2251-debris")
TIMEOUT = 5.0


@dataclass(frozen=True)
class OrbitData:
    """n orbits. elements: (n, 3) semi-major axis in km, eccentricity, inclination in degrees.  features: (n, c) all numeric columns,
    named by `columns`.  labels: (n,) int64 into `classes`.  source: where they came from."""

    elements: NDArray[np.float64]
    features: NDArray[np.float64]
    columns: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.labels)


def regime(semi_major_axis: NDArray[np.float64], eccentricity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Regime of each orbit, an index into REGIMES: HEO if e >= 0.25; LEO if a < 8378 km; GEO if |a - 42164| <= 800 km; MEO if
    a < 41364 km; else HEO. Arguments (n,), a in km."""
    a, e = np.asarray(semi_major_axis), np.asarray(eccentricity)
    conditions = [e >= 0.25, a < 8378, np.abs(a - 42164) <= 800, a < 41364]
    return np.select(conditions, [3, 0, 2, 1], default=3).astype(np.int64)


def semi_major_axis(mean_motion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kepler's third law: revolutions per day (n,) -> km (n,)."""
    radians_per_second = np.asarray(mean_motion) * 2 * np.pi / 86400
    return np.cbrt(GRAVITATIONAL_PARAMETER / radians_per_second**2)


def load_orbits(data: str | Path | None = None) -> OrbitData:
    """Orbits from a file or folder, else VQLAB_DATA, else CelesTrak's current elements.

    A CSV file needs ECCENTRICITY, INCLINATION and MEAN_MOTION or SEMIMAJOR_AXIS; the regime rule labels it. A satellite list with
    `orbit_class` (eccentricity, inclination_degrees, perigee_km, apogee_km) keeps its own labels. Numeric columns other than TARGET and
    the catalogue number are features. Raises VqlabError for files without those columns, or where no source can be had.
    """
    file = find_file(data, ("kaggle_space_decay_14125.csv.gz", "debris_2025_9669.csv.gz", "orbits.csv"))
    rows = list(read_rows(file, ())) if file is not None else _celestrak()
    source = file.name if file is not None else "celestrak.org"
    if not rows:
        raise VqlabError(f"{source} holds no orbits")
    if "orbit_class" in rows[0]:
        return _satellites(rows, source)
    missing = [name for name in ("ECCENTRICITY", "INCLINATION") if name not in rows[0]]
    if missing or not {"MEAN_MOTION", "SEMIMAJOR_AXIS"} & set(rows[0]):
        raise VqlabError(f"{source}: expected the columns ECCENTRICITY, INCLINATION and MEAN_MOTION or SEMIMAJOR_AXIS")
    table = _numeric(rows, skip=("TARGET", "NORAD_CAT_ID"))
    if "SEMIMAJOR_AXIS" not in table:
        table["SEMIMAJOR_AXIS"] = semi_major_axis(table["MEAN_MOTION"])
    elements = np.stack([table[name] for name in ELEMENTS], 1)
    labels = regime(elements[:, 0], elements[:, 1])
    return OrbitData(elements, np.stack(list(table.values()), 1), tuple(table), labels, REGIMES, source)


def _satellites(rows: list[dict[str, str]], source: str) -> OrbitData:
    table = _numeric(rows, skip=("norad_id", "launch_year", "launch_mass_kg"))
    try:
        axis = EARTH_RADIUS_KM + (table["perigee_km"] + table["apogee_km"]) / 2
        elements = np.stack([axis, table["eccentricity"], table["inclination_degrees"]], 1)
    except KeyError as error:
        raise VqlabError(f"{source}: the column {error} is missing or holds gaps") from None
    names = tuple(sorted({row["orbit_class"] for row in rows}))
    labels = np.array([names.index(row["orbit_class"]) for row in rows], dtype=np.int64)
    return OrbitData(elements, np.stack(list(table.values()), 1), tuple(table), labels, names, source)


def _numeric(rows: list[dict[str, str]], skip: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Columns that hold a finite number in every row."""
    found = {}
    for name in rows[0]:
        if name in skip:
            continue
        try:
            values = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError):
            continue
        if np.isfinite(values).all():
            found[name] = values
    return found


def _celestrak() -> list[dict[str, str]]:
    import csv
    import io
    from urllib.error import URLError
    from urllib.request import urlopen

    rows: list[dict[str, str]] = []
    try:
        for group in CELESTRAK_GROUPS:
            with urlopen(CELESTRAK + group, timeout=TIMEOUT) as answer:
                rows += list(csv.DictReader(io.TextIOWrapper(answer, encoding="utf-8")))
    except (URLError, OSError) as error:
        raise VqlabError(
            f"orbits could not be had from celestrak.org ({error}); name a file or folder with --data or {DATA_VARIABLE}"
        ) from error
    return rows
