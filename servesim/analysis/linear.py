"""The little linear algebra that a fit of a handful of parameters takes; a matrix is a list of rows."""

from __future__ import annotations

import math
from itertools import combinations

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
