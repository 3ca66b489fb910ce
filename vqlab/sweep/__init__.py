"""Many runs from one file: planned, trained or resumed, and summed up over seeds."""

from vqlab.sweep.execute import SweepOutcome, run_sweep
from vqlab.sweep.plan import PlannedRun, Sweep, load_sweep
from vqlab.sweep.report import SweepReport, report_sweep

__all__ = ["PlannedRun", "Sweep", "SweepOutcome", "SweepReport", "load_sweep", "report_sweep", "run_sweep"]
