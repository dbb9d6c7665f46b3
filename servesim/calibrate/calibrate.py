"""The parameters of a device's cost model from measurements of real runs, and how well the runs identify them.

Every trial is a prediction of every measurement by the simulator itself, so that a queue in a measurement is a queue in
its prediction; least squares on the logarithm of the ratio finds the parameters. The roofline's three may start from a
closed form, the detailed model's from its defaults, which also hold whatever the runs do not identify: without
parameters asked for by name every one is free within its prior (`GUESS`). Which parameters the runs do not identify,
and what run would, is part of the result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.calibrate.measurement import Measurement
from servesim.calibrate.parameters import (
    FITTABLE,
    ROOFLINE_BOUNDS,
    fitted_separately,
    hints,
    unphysical,
    with_measured_start,
)
from servesim.calibrate.solver import Parameter, Solution, least_squares
from servesim.catalog.hardware import HARDWARE, Hardware, device_document
from servesim.errors import InputError
from servesim.report.calibration import Fit, FittedParameter, FittedPoint
from servesim.units import suggest

FINE = 0.10  # a fit whose points are further off than this, on average, is warned of
USELESS = 0.50


@dataclass(slots=True, frozen=True, kw_only=True)
class Point:
    """One figure of one measurement, beside the fit's."""

    label: str
    figure: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """How far the prediction is off, relative to what was measured."""
        return self.predicted_s / self.measured_s - 1


@dataclass(slots=True, frozen=True, kw_only=True)
class Calibration:
    """A device with the figures that were fitted to measurements of it."""

    hardware: Hardware
    base: Hardware
    cost_model: str
    solution: Solution
    start: str  # where the search began
    points: tuple[Point, ...]
    warnings: tuple[str, ...]
    hints: tuple[str, ...]  # what the runs do not identify, and which would
    notes: tuple[str, ...] = ()  # what had to be fitted separately, what was left out of the runs
    weights: tuple[float, ...] = ()  # the standard errors that the residuals are in units of

    @property
    def mean_error(self) -> float:
        """Return the mean absolute error of all points."""
        return statistics.fmean(abs(point.error) for point in self.points)

    @property
    def worst_error(self) -> float:
        return max(abs(point.error) for point in self.points)

    def reported(self) -> Fit:
        """Return the fit as its document has it, times in milliseconds; what is not identified has no error."""
        solution = self.solution
        return Fit(
            cost_model=self.cost_model,
            start=self.start,
            evaluations=solution.evaluations,
            converged=solution.converged,
            parameters=[self._parameter(each) for each in solution.parameters],
            points=[
                FittedPoint(
                    label=point.label,
                    figure=point.figure,
                    measured_ms=point.measured_s * 1e3,
                    predicted_ms=point.predicted_s * 1e3,
                    error=point.error,
                )
                for point in self.points
            ],
            mean_error=self.mean_error,
            worst_error=self.worst_error,
            notes=list(self.notes),
            hints=list(self.hints),
            warnings=list(self.warnings),
            preset=self.preset(),
        )

    def _parameter(self, parameter: Parameter) -> FittedParameter:
        solution, name = self.solution, parameter.name
        error = solution.errors[name]
        known = math.isfinite(error)
        return FittedParameter(
            name=name,
            value=solution.values[name],
            start=parameter.start,
            relative_error=error if known and parameter.log else None,
            absolute_error=error * parameter.scale if known and not parameter.log else None,
            sensitivity=self._sensitivity(parameter),
            told=None if parameter.prior is None else solution.told[name],
        )

    def preset(self) -> dict[str, Any]:
        """Return the fitted device as the shortest file that `--hardware` reads: its base and what differs."""
        name = f"{self.base.name.removesuffix('-fitted')}-fitted"
        if self.base.name not in HARDWARE:  # a file's own device: nothing to refer to
            return {**device_document(self.hardware), "name": name}
        changed: dict[str, Any] = {"name": name, "base": self.base.name}
        if self.cost_model == "roofline":
            changed |= {name: _rounded(getattr(self.hardware, name)) for name in ROOFLINE_BOUNDS}
        else:
            changed["detailed"] = {name: _rounded(value) for name, value in (self.hardware.detailed or {}).items()}
        return {**changed, "fitted_for": self.cost_model, "fitted": self.hardware.fitted}

    def _sensitivity(self, parameter: Parameter) -> float:
        """Return by how much the points move, on average and relative, for 10 % more of a parameter."""
        jacobian, solution = self.solution.jacobian, self.solution
        place = solution.parameters.index(parameter)
        value = solution.values[parameter.name]
        move = math.log(1.1) if parameter.log else 0.1 * value / parameter.scale
        weights = self.weights or (1.0,) * len(jacobian)
        moved = [(row[place] * move * weight) ** 2 for row, weight in zip(jacobian, weights, strict=True)]
        return math.sqrt(statistics.fmean(moved)) if moved else 0.0

    @property
    def usable(self) -> bool:
        """Return whether the fit says anything: its points are nearer than by half on average."""
        return self.mean_error <= USELESS


def calibrate(
    measurements: Sequence[Measurement],
    *,
    cost_model: str = "roofline",
    names: Sequence[str] = (),
    max_evaluations: int = 120,
    tolerance: float = 1e-4,
    guess: Callable[[Parameter], Parameter] | None = None,
    careful: bool = True,
) -> Calibration:
    """Fit `names` (none: all that make sense) of the cost model to the measurements.

    All must be of one device; their models and limits may differ. `guess` may change a parameter's start or bounds;
    a fit that is not `careful` takes less care of the errors of its parameters.
    Raises `InputError` for measurements of several devices or names that are no parameter.
    """
    if not measurements:
        raise InputError("nothing to fit to; name a saved run, a report or a table")
    devices = {measurement.server.hardware.name: measurement.server.hardware for measurement in measurements}
    if len(devices) > 1:
        raise InputError(f"the measurements are of {', '.join(sorted(devices))}; a fit is of one device")
    (base,) = devices.values()
    kind = FITTABLE.get(cost_model)
    if kind is None:
        raise suggest("cost model", cost_model, FITTABLE)
    parameters, start = kind.parameters(base, measurements, names)
    if guess is not None:
        parameters = [guess(parameter) for parameter in parameters]

    def device(values: Sequence[float]) -> Hardware:
        return kind.device(base, {p.name: value for p, value in zip(parameters, values, strict=True)})

    def residuals(values: list[float]) -> list[float]:
        hardware, found = device(values), list[float]()
        for measurement in measurements:
            trial = measurement.on(hardware, cost_model)
            found += trial.residuals(trial.predict())
        return found

    other = [with_measured_start(parameter, base, measurements) for parameter in parameters]
    if other != parameters:
        parameters = min(
            (parameters, other), key=lambda each: math.fsum(r**2 for r in residuals([one.start for one in each]))
        )
    solution = least_squares(
        residuals, parameters, tolerance=tolerance, max_evaluations=max_evaluations, careful=careful
    )
    hardware = device([solution.values[parameter.name] for parameter in parameters])
    points = points_of(measurements, hardware, cost_model)
    unidentified, advice = hints(solution)
    calibration = Calibration(
        hardware=hardware,
        base=base,
        cost_model=cost_model,
        solution=solution,
        start=start,
        points=points,
        warnings=(),
        hints=tuple(advice),
        notes=(*fitted_separately(solution), *(note for measurement in measurements for note in measurement.notes)),
        weights=tuple(m.errors[name] for m in measurements for name in m.figures),
    )
    told = _sentence(calibration, len(measurements))
    return replace(
        calibration,
        hardware=replace(hardware, fitted=told, fitted_for=cost_model),
        warnings=tuple(_warnings(calibration, unidentified)),
    )


def points_of(measurements: Sequence[Measurement], hardware: Hardware, cost_model: str) -> tuple[Point, ...]:
    """Return every figure of the measurements beside what `hardware` under `cost_model` makes of it."""
    points = []
    for measurement in measurements:
        predicted = measurement.on(hardware, cost_model).predict()
        points += [
            Point(label=measurement.label, figure=name, measured_s=measured, predicted_s=predicted[name])
            for name, measured in measurement.figures.items()
        ]
    return tuple(points)


def _rounded(value: float) -> float:
    """Return a figure to five digits: more than any fit tells."""
    return float(f"{value:.5g}")


def _warnings(calibration: Calibration, unidentified: set[str]) -> list[str]:
    warnings = unphysical(calibration.solution, unidentified, has_peaks=calibration.base.has_peaks)
    if calibration.mean_error > FINE:
        warnings.append(
            f"the points are off by {calibration.mean_error:.0%} on average: these runs are not of one server as it "
            "was described, or it does something that the model has no term for"
        )
    if not calibration.solution.converged:
        warnings.append("the search ended before it had settled")
    return warnings


def _sentence(calibration: Calibration, runs: int) -> str:
    """Return how the figures came about, in one sentence."""
    names = ", ".join(parameter.name for parameter in calibration.solution.parameters)
    return (
        f"{names} of the {calibration.cost_model} model from {runs} measurement{'s' if runs > 1 else ''}, "
        f"{len(calibration.points)} points: mean absolute error {calibration.mean_error:.1%}, "
        f"at worst {calibration.worst_error:.1%}"
    )
