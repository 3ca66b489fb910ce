"""Which experiments there are, and how one or all of them are run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from vqlab.errors import VqlabError
from vqlab.experiments.extra import needs_extra
from vqlab.experiments.report import Report, Settings, claims_table
from vqlab.storage import write_atomically


@dataclass(frozen=True)
class Experiment:
    """An experiment. name: module below `vqlab.experiments`, imported when it is run, since it may need optional packages."""

    name: str
    help: str

    def run(self, settings: Settings) -> Report:
        """Run it and write its report; VqlabError where data or a package is missing."""
        with needs_extra():
            action: Callable[[Settings], Report] = import_module(f"vqlab.experiments.{self.name}").run
        report = action(settings)
        report.write(settings.out / self.name)
        return report


#: In the order of `vqlab reproduce all`.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("orbital", "regimes of orbits as clusters"),
        Experiment("text", "readout of frozen text encoders: clusters and classification"),
        Experiment("hierarchy", "stacks of readouts: compression against accuracy"),
        Experiment("collapse", "does a bank of prototypes, slots or latents merge in coupled training"),
        Experiment("stability", "when prototypes merge: phase boundary and two time scales"),
        Experiment("scaling", "time and memory against self-attention"),
        Experiment("vq", "codebook use of DDCL and hard vector quantization on CIFAR-10"),
    )
}


@dataclass(frozen=True)
class Outcome:
    """Of one experiment: its report, or why it was skipped, and the seconds it took."""

    name: str
    seconds: float
    report: Report | None = None
    skipped: str = ""


def reproduce(name: str, settings: Settings, announce: Callable[[str], None] = print) -> list[Outcome]:
    """Run the experiment `name`, or all of them for "all", which skips those whose data or packages are missing and says why.

    Raises VqlabError for an unknown name, and for what is missing if one experiment was asked for.
    """
    if name != "all":
        if name not in EXPERIMENTS:
            raise VqlabError(f"unknown experiment {name!r}: choose one of all, {', '.join(EXPERIMENTS)}")
        start = time.perf_counter()
        report = EXPERIMENTS[name].run(settings)
        return [Outcome(name, time.perf_counter() - start, report)]
    outcomes = []
    for experiment in EXPERIMENTS.values():
        announce(f"{experiment.name}: {experiment.help}")
        start = time.perf_counter()
        try:
            outcome = Outcome(experiment.name, 0.0, report=experiment.run(settings))
        except VqlabError as error:
            outcome = Outcome(experiment.name, 0.0, skipped=str(error))
        seconds = time.perf_counter() - start
        outcomes.append(Outcome(outcome.name, seconds, outcome.report, outcome.skipped))
        announce(f"  {'skipped: ' + outcome.skipped if outcome.skipped else 'done'} ({seconds:.0f} s)")
    claims = [claim for outcome in outcomes if outcome.report for claim in outcome.report.claims]
    text = f"# The paper's claims\n\n{claims_table(claims)}\n"
    write_atomically(settings.out / "claims.md", lambda path: path.write_text(text, encoding="utf-8"))
    return outcomes
