"""Nelder and Mead's simplex (The Computer Journal 7(4), 1965): a minimum without derivatives, slow but deaf to kinks.

For functions that jump, as a simulator's figures may where a scheduling decision tips; the parameters are `fit`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servesim.analysis.fit import Parameter
from servesim.analysis.linear import Vector


def nelder_mead(
    function: Callable[[Vector], float],
    parameters: Sequence[Parameter],
    *,
    tolerance: float = 1e-4,
    max_evaluations: int = 400,
    size: float = 0.25,
) -> tuple[Vector, float]:
    """Return (values, least function value) by a simplex that starts with edges of `size` in each coordinate.

    >>> x = Parameter(name="x", start=1.0, low=-5.0, high=5.0, log=False)
    >>> (found,), least = nelder_mead(lambda v: abs(v[0] - 2.0), [x])
    >>> abs(found - 2.0) < 1e-3
    True
    """
    start = [parameter.inside(parameter.start) for parameter in parameters]

    def value(at: Vector) -> float:
        return function([parameter.outside(x) for parameter, x in zip(parameters, at, strict=True)])

    corners = [start]
    for place, parameter in enumerate(parameters):
        room = parameter.inside(parameter.high) - start[place]
        move = size if room >= size else -size
        corners.append([*start[:place], start[place] + move, *start[place + 1 :]])
    simplex = sorted((value(corner), corner) for corner in corners)
    evaluations = len(simplex)
    while evaluations < max_evaluations:
        spread = max(abs(a - b) for _, corner in simplex[1:] for a, b in zip(corner, simplex[0][1], strict=True))
        if spread <= tolerance:
            break
        worst, rest = simplex[-1], simplex[:-1]
        centre = [sum(corner[i] for _, corner in rest) / len(rest) for i in range(len(start))]

        def towards(share: float, centre: Vector = centre, worst: Vector = worst[1]) -> tuple[float, Vector]:
            at = [c + share * (c - w) for c, w in zip(centre, worst, strict=True)]
            return value(at), at

        trial = towards(1.0)
        evaluations += 1
        if trial < simplex[0]:
            trial = min(trial, towards(2.0))
            evaluations += 1
        elif trial >= simplex[-2]:
            trial = min(trial, towards(0.5 if trial < worst else -0.5))
            evaluations += 1
        if trial < worst:
            simplex = sorted([*rest, trial])
            continue
        best = simplex[0][1]
        shrunk = [[(a + b) / 2 for a, b in zip(corner, best, strict=True)] for _, corner in simplex[1:]]
        simplex = sorted([simplex[0], *((value(corner), corner) for corner in shrunk)])
        evaluations += len(shrunk)
    least, at = simplex[0]
    return [parameter.outside(x) for parameter, x in zip(parameters, at, strict=True)], least
