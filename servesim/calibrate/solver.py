"""A small solver: parameters within bounds that make a list of residuals small, and how well the data identifies them.

Levenberg-Marquardt (Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", SIAM J. 11(2),
1963), meant for a handful of parameters and for a function that costs simulations: its Jacobian is made by differences
and kept alive between steps by Broyden's update; a parameter that its bound stops is held there (the projection of
Kanzow, Yamashita and Fukushima, 2004).

A parameter that is a positive ratio is fitted by its logarithm, so that its uncertainty is relative. A parameter may
have a prior: a residual of its own that keeps it where nobody speaks against it. Residuals are in units of their own
standard error. What the parameters mean is not known here. At the top is the little linear algebra that this takes; a
matrix is a list of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from servesim.errors import InputError

Vector = list[float]
Matrix = list[list[float]]


def solve(matrix: Matrix, right: Vector) -> Vector | None:
    """Return x with `matrix` x = `right`, by elimination with row pivots; None where there is no single answer."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-300:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            for k in range(column, size + 1):
                rows[row][k] -= factor * rows[column][k]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][k] * found[k] for k in range(row + 1, size))
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found


def inverse(matrix: Matrix) -> Matrix | None:
    """Return the inverse of a symmetric matrix, None where it has none."""
    size = len(matrix)
    columns = [solve(matrix, [float(i == j) for i in range(size)]) for j in range(size)]
    if any(column is None for column in columns):
        return None
    return [column for column in columns if column is not None]


def eigen(matrix: Matrix) -> list[tuple[float, Vector]]:
    """Return the (eigenvalue, unit eigenvector) of a symmetric matrix, the largest first, by Jacobi's rotations."""
    size = len(matrix)
    a = [row[:] for row in matrix]
    vectors = [[float(i == j) for j in range(size)] for i in range(size)]  # a row each
    for _ in range(60):
        off = [(abs(a[i][j]), i, j) for i, j in combinations(range(size), 2)]
        largest, p, q = max(off, default=(0.0, 0, 0))
        if largest <= 1e-14 * max((abs(a[i][i]) for i in range(size)), default=1.0):
            break
        for _, p, q in off:
            if a[p][q] == 0.0:
                continue
            theta = (a[q][q] - a[p][p]) / (2 * a[p][q])
            t = math.copysign(1.0, theta) / (abs(theta) + math.hypot(theta, 1.0))
            c = 1 / math.hypot(t, 1.0)
            s = t * c
            for k in range(size):
                a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
            for k in range(size):
                a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
            for k in range(size):
                vectors[p][k], vectors[q][k] = (
                    c * vectors[p][k] - s * vectors[q][k],
                    s * vectors[p][k] + c * vectors[q][k],
                )
    return sorted(((a[i][i], vectors[i]) for i in range(size)), key=lambda pair: -pair[0])


Residuals = Callable[[Vector], Vector]
"""Takes the parameters' values in their order; returns what should be 0, each in units of its standard error."""

TOLD = 0.3
"""A parameter (or a direction) is told by the data when its standard error, in its own coordinate, is at most this."""

_DAMPING = 1e-3


@dataclass(slots=True, frozen=True, kw_only=True)
class Parameter:
    """One number to be found. `log`: fitted by its logarithm, all in one sign; else as it is, in units of `scale`."""

    name: str
    start: float
    low: float
    high: float
    log: bool = True
    scale: float = 1.0
    prior: float | None = None  # standard error of the guess, in the parameter's own coordinate
    guess: float | None = None  # what a prior holds it to, where that is not the start
    step: float = 0.02  # of a difference, in the parameter's own coordinate

    def __post_init__(self) -> None:
        if not self.low <= self.start <= self.high or self.low >= self.high:
            raise InputError(f"{self.name} starts at {self.start:g}, must lie within {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise InputError(f"{self.name} is fitted by its logarithm, its lower bound must be above 0")

    def inside(self, value: float) -> float:
        """Return the parameter's own coordinate of `value`."""
        return math.log(value) if self.log else value / self.scale

    def outside(self, coordinate: float) -> float:
        """Return the value at a coordinate, within the bounds."""
        value = math.exp(coordinate) if self.log else coordinate * self.scale
        return min(max(value, self.low), self.high)


@dataclass(slots=True, frozen=True, kw_only=True)
class Solution:
    """What a fit found. Vectors and matrices are in the order of `parameters` and in their own coordinates."""

    parameters: tuple[Parameter, ...]
    values: dict[str, float]
    residuals: Vector  # those of the data, without the priors'
    jacobian: Matrix  # d residual / d coordinate, a row a residual
    errors: dict[str, float]  # standard errors, priors included; inf where nothing tells the parameter
    told: dict[str, float]  # share of a parameter's variance before the data that the data took away; 1 without prior
    evaluations: int
    converged: bool

    def at_bound(self, name: str) -> bool:
        """Return whether the parameter was stopped by one of its bounds."""
        parameter, value = self.parameters[self._place(name)], self.values[name]
        width = parameter.inside(parameter.high) - parameter.inside(parameter.low)
        place = parameter.inside(value) - parameter.inside(parameter.low)
        return not 1e-6 * width < place < (1 - 1e-6) * width

    def unidentified(self, tolerance: float = TOLD) -> list[tuple[str, ...]]:
        """Return the groups of parameters that the data alone, without priors, does not identify: one name or several.

        A group is the main part of a direction of the parameter space in which the residuals hardly change: an
        eigenvector of J'J whose standard error is above `tolerance`.
        """
        size = len(self.parameters)
        normal = _normal(self.jacobian, size)
        groups: list[tuple[str, ...]] = []
        for eigenvalue, vector in eigen(normal):
            if eigenvalue > 0 and 1 / math.sqrt(eigenvalue) <= tolerance:
                continue
            largest = max(abs(x) for x in vector)
            group = tuple(
                parameter.name for parameter, x in zip(self.parameters, vector, strict=True) if abs(x) >= 0.35 * largest
            )
            if group not in groups:
                groups.append(group)
        return groups

    def _place(self, name: str) -> int:
        return next(place for place, parameter in enumerate(self.parameters) if parameter.name == name)


def least_squares(
    residuals: Residuals,
    parameters: Sequence[Parameter],
    *,
    tolerance: float = 1e-4,
    max_evaluations: int = 200,
    careful: bool = True,
) -> Solution:
    """Return the parameters that make the sum of squared residuals (and priors) least.

    It ends when a step promises less than the share `tolerance` of that sum, or moves no parameter by more than
    `tolerance` in its own coordinate. Unless it need not be `careful`, a Jacobian of its own tells the errors.

    >>> line = [(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]
    >>> slope = Parameter(name="slope", start=1.0, low=0.1, high=10.0)
    >>> offset = Parameter(name="offset", start=1.0, low=0.1, high=10.0)
    >>> found = least_squares(lambda v: [v[0] * x + v[1] - y for x, y in line], [slope, offset])
    >>> round(found.values["slope"], 3), round(found.values["offset"], 3)
    (2.0, 3.0)
    """
    return _Marquardt(residuals, tuple(parameters), tolerance, max_evaluations, careful).solve()


class _Marquardt:
    """One search: the point it is at, the Jacobian as it is known there, and how far a step is trusted."""

    def __init__(
        self,
        residuals: Residuals,
        parameters: tuple[Parameter, ...],
        tolerance: float,
        max_evaluations: int,
        careful: bool,
    ) -> None:
        if not parameters:
            raise InputError("a fit needs a parameter")
        self.function = residuals
        self.parameters = parameters
        self.tolerance = tolerance
        self.max_evaluations = max_evaluations
        self.careful = careful
        self.evaluations = 0
        self.low = [parameter.inside(parameter.low) for parameter in parameters]
        self.high = [parameter.inside(parameter.high) for parameter in parameters]
        self.at = [parameter.inside(parameter.start) for parameter in parameters]
        self.here = self._evaluate(self.at)

    def solve(self) -> Solution:
        damping, converged, fresh = _DAMPING, False, True
        jacobian = self._differences()
        while self.evaluations < self.max_evaluations and not converged:
            step, promised = self._step(jacobian, damping)
            total = self._total(self.at, self.here)
            if max(map(abs, step), default=0.0) <= self.tolerance or promised <= self.tolerance**2 * max(total, 1e-9):
                if fresh:
                    converged = True
                    break
                jacobian, fresh = self._differences(), True
                continue
            trial = [at + move for at, move in zip(self.at, step, strict=True)]
            there = self._evaluate(trial)
            gained = total - self._total(trial, there)
            if gained > 0:
                jacobian = _broyden(jacobian, step, self.here, there)
                self.at, self.here = trial, there
                converged = gained <= self.tolerance * 1e-2 * total and fresh
                fresh = False
                damping = max(damping / 5, 1e-9)
                if gained < 0.25 * promised:
                    jacobian, fresh = self._differences(), True
                    damping *= 10
            elif not fresh:
                jacobian, fresh = self._differences(), True
            elif damping > 1e6:
                converged = True
            else:
                damping *= 10
        return self._solution(self._central_differences() if self.careful else jacobian, converged)

    def _evaluate(self, at: Vector) -> Vector:
        self.evaluations += 1
        values = [parameter.outside(x) for parameter, x in zip(self.parameters, at, strict=True)]
        found = self.function(values)
        if not all(map(math.isfinite, found)):
            raise InputError("the model gives no finite figure at " + _named(self.parameters, values))
        return found

    def _differences(self) -> Matrix:
        """Return the Jacobian by one-sided differences, away from a bound that is near."""
        columns = []
        for place, parameter in enumerate(self.parameters):
            move = parameter.step if self.at[place] + parameter.step <= self.high[place] else -parameter.step
            there = self._evaluate([*self.at[:place], self.at[place] + move, *self.at[place + 1 :]])
            columns.append([(b - a) / move for a, b in zip(self.here, there, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    def _central_differences(self) -> Matrix:
        """Return the Jacobian from both sides and from further away: what errors are judged by, but for kinks."""
        columns = []
        for place, parameter in enumerate(self.parameters):
            ends = [
                min(max(self.at[place] + move, self.low[place]), self.high[place])
                for move in (-2 * parameter.step, 2 * parameter.step)
            ]
            below, above = (self._evaluate([*self.at[:place], end, *self.at[place + 1 :]]) for end in ends)
            columns.append([(b - a) / (ends[1] - ends[0]) for a, b in zip(below, above, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    def _prior(self, at: Vector, place: int) -> float:
        parameter = self.parameters[place]
        if parameter.prior is None:
            return 0.0
        guess = parameter.start if parameter.guess is None else parameter.guess
        return (at[place] - parameter.inside(guess)) / parameter.prior

    def _total(self, at: Vector, residuals: Vector) -> float:
        """Return the sum of squares at a point, priors included."""
        priors = sum(self._prior(at, place) ** 2 for place in range(len(at)))
        return sum(r * r for r in residuals) + priors

    def _step(self, jacobian: Matrix, damping: float) -> tuple[Vector, float]:
        """Return the damped Gauss-Newton step within the bounds, and the gain that it promises."""
        size = len(self.parameters)
        normal = _with_priors(_normal(jacobian, size), self.parameters)
        slope = [sum(row[i] * r for row, r in zip(jacobian, self.here, strict=True)) for i in range(size)]
        for place, parameter in enumerate(self.parameters):
            if parameter.prior is not None:
                slope[place] += self._prior(self.at, place) / parameter.prior
        step = [0.0] * size
        free = list(range(size))
        for _ in range(size + 1):
            damped = [
                [normal[i][j] + (damping * max(normal[i][i], 1e-12) if i == j else 0.0) for j in free] for i in free
            ]
            # What a held parameter's own move leaves to the free ones.
            right = [-slope[i] - sum(normal[i][j] * step[j] for j in range(size) if j not in free) for i in free]
            moves = solve(damped, right) if free else []
            if moves is None:
                return [0.0] * size, 0.0
            stopped = []
            for place, move in zip(free, moves, strict=True):
                held = min(max(move, self.low[place] - self.at[place]), self.high[place] - self.at[place])
                step[place] = held
                if held != move:
                    stopped.append(place)
            if not stopped:
                break
            free = [place for place in free if place not in stopped]
        bent = sum(step[i] * normal[i][j] * step[j] for i in range(size) for j in range(size))
        promised = -2 * sum(s * move for s, move in zip(slope, step, strict=True)) - bent
        return step, promised

    def _solution(self, jacobian: Matrix, converged: bool) -> Solution:
        size, parameters = len(self.parameters), self.parameters
        normal = _normal(jacobian, size)
        with_priors = _with_priors(normal, parameters)
        # An error that the data and the guesses leave; a parameter that nothing tells makes it infinite.
        tiny = 1e-12 * max((with_priors[i][i] for i in range(size)), default=1.0) or 1e-300
        covariance = inverse(
            [[x + (tiny if i == j else 0.0) for j, x in enumerate(row)] for i, row in enumerate(with_priors)]
        )
        errors, told = {}, {}
        for place, parameter in enumerate(parameters):
            variance = math.inf if covariance is None or normal[place][place] <= 0 else covariance[place][place]
            if parameter.prior is not None:
                variance = min(variance, parameter.prior**2)
            error = math.sqrt(max(variance, 0.0))
            errors[parameter.name] = error if error < 1e3 else math.inf
            told[parameter.name] = 1.0 if parameter.prior is None else max(0.0, 1 - variance / parameter.prior**2)
        return Solution(
            parameters=parameters,
            values={p.name: p.outside(x) for p, x in zip(parameters, self.at, strict=True)},
            residuals=self.here,
            jacobian=jacobian,
            errors=errors,
            told=told,
            evaluations=self.evaluations,
            converged=converged,
        )


def _normal(jacobian: Matrix, size: int) -> Matrix:
    return [[sum(row[i] * row[j] for row in jacobian) for j in range(size)] for i in range(size)]


def _with_priors(normal: Matrix, parameters: Sequence[Parameter]) -> Matrix:
    return [
        [x + (1 / parameter.prior**2 if i == j and parameter.prior is not None else 0.0) for j, x in enumerate(row)]
        for i, (row, parameter) in enumerate(zip(normal, parameters, strict=True))
    ]


def _broyden(jacobian: Matrix, step: Vector, before: Vector, after: Vector) -> Matrix:
    """Return the Jacobian changed as little as agrees with what the step did (Broyden, 1965)."""
    length = sum(x * x for x in step)
    if length <= 0:
        return jacobian
    changed = []
    for row, a, b in zip(jacobian, before, after, strict=True):
        missed = (b - a - sum(x * move for x, move in zip(row, step, strict=True))) / length
        changed.append([x + missed * move for x, move in zip(row, step, strict=True)])
    return changed


def _named(parameters: Sequence[Parameter], values: Vector) -> str:
    return ", ".join(f"{parameter.name} {value:g}" for parameter, value in zip(parameters, values, strict=True))
