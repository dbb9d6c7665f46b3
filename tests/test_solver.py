"""The solver: known functions, known errors of their parameters, and parameters that nothing tells."""

from __future__ import annotations

import math
import random
import unittest

from servesim.calibrate.solver import Parameter, eigen, inverse, least_squares, solve
from servesim.errors import InputError


def plain(name: str, start: float, low: float = -10.0, high: float = 10.0, **more: float) -> Parameter:
    return Parameter(name=name, start=start, low=low, high=high, log=False, **more)


class LeastSquares(unittest.TestCase):
    def test_finds_the_end_of_rosenbrocks_valley(self) -> None:
        found = least_squares(
            lambda v: [10 * (v[1] - v[0] ** 2), 1 - v[0]],
            [plain("x", -1.2, step=1e-5), plain("y", 1.0, step=1e-5)],
            max_evaluations=500,
            tolerance=1e-8,
        )
        self.assertAlmostEqual(found.values["x"], 1.0, 3)
        self.assertAlmostEqual(found.values["y"], 1.0, 3)

    def test_finds_the_constants_of_a_decay(self) -> None:
        times = [0.1 * k for k in range(40)]
        truth = [3.0 * math.exp(-1.7 * t) + 0.2 for t in times]
        found = least_squares(
            lambda v: [v[0] * math.exp(-v[1] * t) + v[2] - y for t, y in zip(times, truth, strict=True)],
            [Parameter(name=name, start=1.0, low=0.01, high=100.0, step=1e-4) for name in ("height", "rate", "floor")],
            tolerance=1e-7,
        )
        self.assertTrue(found.converged)
        for name, value in (("height", 3.0), ("rate", 1.7), ("floor", 0.2)):
            self.assertAlmostEqual(found.values[name] / value, 1.0, 4)

    def test_a_bound_stops_one_parameter_and_leaves_the_best_of_the_others(self) -> None:
        # x + y = 10 and y = 3, but x may be at most 5: then the best y is between 3 and 5.
        found = least_squares(lambda v: [v[0] + v[1] - 10, v[1] - 3], [plain("x", 1.0, high=5.0), plain("y", 1.0)])
        self.assertEqual(found.values["x"], 5.0)
        self.assertTrue(found.at_bound("x"))
        self.assertFalse(found.at_bound("y"))
        self.assertAlmostEqual(found.values["y"], 4.0, 5)

    def test_a_start_outside_the_bounds_is_refused(self) -> None:
        self.assertRaises(InputError, plain, "x", 11.0)
        self.assertRaises(InputError, Parameter, name="x", start=0.0, low=0.0, high=1.0)
        self.assertRaises(InputError, least_squares, lambda v: v, [])

    def test_a_model_without_a_finite_figure_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "no finite figure at x 1"):
            least_squares(lambda v: [math.nan], [plain("x", 1.0)])

    def test_the_errors_are_those_of_linear_regression(self) -> None:
        # For y = a + b x with unit errors: var(b) = 1 / sum (x - mean)^2.
        xs = [float(x) for x in range(10)]
        found = least_squares(lambda v: [v[0] + v[1] * x - 2 * x for x in xs], [plain("a", 1.0), plain("b", 1.0)])
        self.assertAlmostEqual(found.errors["b"], 1 / math.sqrt(sum((x - 4.5) ** 2 for x in xs)), 6)

    def test_true_values_lie_within_their_errors_as_often_as_they_should(self) -> None:
        rng = random.Random(7)
        xs = [0.5 * k for k in range(12)]
        inside = tried = 0
        for _ in range(200):
            noisy = [1.0 + 2.0 * x + rng.gauss(0, 0.3) for x in xs]
            found = least_squares(
                lambda v, noisy=noisy: [(v[0] + v[1] * x - y) / 0.3 for x, y in zip(xs, noisy, strict=True)],
                [plain("a", 0.0), plain("b", 1.0)],
            )
            for name, truth in (("a", 1.0), ("b", 2.0)):
                tried += 1
                inside += abs(found.values[name] - truth) <= found.errors[name]
        self.assertAlmostEqual(inside / tried, 0.683, delta=0.06)

    def test_a_prior_holds_what_the_data_do_not_tell(self) -> None:
        silent = Parameter(name="silent", start=2.0, low=0.1, high=10.0, prior=0.5)
        found = least_squares(lambda v: [v[0] - 3.0], [plain("x", 1.0, prior=100.0), silent])
        self.assertAlmostEqual(found.values["silent"], 2.0)
        self.assertAlmostEqual(found.errors["silent"], 0.5)
        self.assertAlmostEqual(found.told["silent"], 0.0)
        self.assertGreater(found.told["x"], 0.99)

    def test_a_parameter_that_nothing_tells_has_an_infinite_error(self) -> None:
        found = least_squares(lambda v: [100 * (v[0] - 3.0)], [plain("x", 1.0), plain("silent", 2.0)])
        self.assertEqual(found.errors["silent"], math.inf)
        self.assertEqual(found.unidentified(), [("silent",)])

    def test_two_parameters_that_only_show_as_a_sum_are_named_together(self) -> None:
        found = least_squares(
            lambda v: [100 * (v[0] + v[1] - 3), 100 * (v[2] - 1), 100 * (v[2] - 1.01)],
            [plain("a", 1.0), plain("b", 1.0), plain("c", 0.5)],
        )
        self.assertEqual(found.unidentified(), [("a", "b")])
        self.assertAlmostEqual(found.values["a"] + found.values["b"], 3.0, 4)

    def test_few_evaluations_are_enough_for_a_smooth_function(self) -> None:
        found = least_squares(
            lambda v: [math.log(v[0] * x + v[1]) - math.log(2.0 * x + 0.3) for x in (0.1, 1.0, 5.0)],
            [Parameter(name=name, start=1.0, low=0.01, high=100.0) for name in ("a", "b")],
        )
        self.assertAlmostEqual(found.values["a"], 2.0, 2)
        self.assertLess(found.evaluations, 30)


class Linear(unittest.TestCase):
    def test_inverse_and_eigenvectors_agree_with_the_matrix(self) -> None:
        for seed in range(20):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                size = rng.randint(1, 6)
                rows = [[rng.gauss(0, 1) for _ in range(size)] for _ in range(size + 3)]
                matrix = [[sum(r[i] * r[j] for r in rows) for j in range(size)] for i in range(size)]
                inverted = inverse(matrix)
                assert inverted is not None
                for i in range(size):
                    for j in range(size):
                        product = sum(matrix[i][k] * inverted[k][j] for k in range(size))
                        self.assertAlmostEqual(product, float(i == j), 6)
                for eigenvalue, vector in eigen(matrix):
                    image = [sum(a * x for a, x in zip(row, vector, strict=True)) for row in matrix]
                    for x, y in zip(vector, image, strict=True):
                        self.assertAlmostEqual(y, eigenvalue * x, 6)

    def test_a_singular_matrix_has_no_answer(self) -> None:
        self.assertIsNone(solve([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0]))
        self.assertIsNone(inverse([[0.0]]))


if __name__ == "__main__":
    unittest.main()
