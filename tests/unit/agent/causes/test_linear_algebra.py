"""Rules on decompositions and solutions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, captured, said, stays_finite, why

t = torch.tensor


# Decompositions -----------------------------------------------------------------------------------


@pytest.mark.first("equal values in a decomposition")
def test_svd_of_equal_singular_values() -> None:
    x = torch.diag(t([3.0, 2.0, 2.0])).requires_grad_()
    found = why(lambda: torch.linalg.svd(x)[0].sum().backward())
    assert found.startswith(
        "The gradient of the vectors of svd divides by the difference of singular"
    )
    assert "values 1 and 2, which is 0: they are 2 and 2" in found and "svdvals" in found


@pytest.mark.second("equal values in a decomposition")
def test_eigh_of_equal_eigenvalues_in_a_batch() -> None:
    x = torch.stack([torch.diag(t([1.0, 2.0])), torch.eye(2) * 5]).double().requires_grad_()
    program = lambda: torch.linalg.eigh(x).eigenvectors.abs().sum().backward()  # noqa: E731
    found = why(program)
    assert "of eigh divides by the difference of eigenvalues 0 and 1" in found
    assert "they are 5 and 5" in found
    unseen = said(explain(replace(captured(program), forward=None)))
    assert (
        "divides by differences of eigenvalues, or by one of them, and that at [1, 0, 1] is 0"
        in (unseen)
    )


@pytest.mark.near_miss("equal values in a decomposition")
def test_decompositions_of_different_values() -> None:
    x = torch.diag(t([3.0, 2.0, 1.0])).requires_grad_()
    assert stays_finite(lambda: torch.linalg.svd(x)[0].sum().backward())
    assert stays_finite(
        lambda: torch.linalg.svdvals(torch.eye(3).requires_grad_()).sum().backward()
    )


# Solutions ----------------------------------------------------------------------------------------


@pytest.mark.first("zero on the diagonal")
def test_triangular_matrix_with_a_0() -> None:
    matrix = t([[1.0, 2.0], [0.0, 0.0]])
    program = lambda: torch.linalg.solve_triangular(matrix, torch.ones(2, 1), upper=True)  # noqa: E731
    found = why(program, names={"self": "self.factor"})
    assert found.startswith(
        "A triangular matrix with a 0 on its diagonal has no inverse: self.factor at"
    )
    assert "at [1, 1] is 0" in found


@pytest.mark.second("zero on the diagonal")
def test_triangular_matrix_in_a_backward_and_in_a_batch() -> None:
    zeros = torch.zeros(3, 3, requires_grad=True)
    found = why(lambda: torch.linalg.qr(zeros)[0].sum().backward())
    assert found.startswith(
        "In the backward (LinalgQrBackward0): A triangular matrix with a 0 on its"
    )
    matrix = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    matrix[1, 0, 0] = 0
    right = torch.ones(2, 2, 1, dtype=torch.float64)
    found = why(lambda: torch.linalg.solve_triangular(matrix, right, upper=False))
    assert "at [1, 0, 0] is 0" in found


@pytest.mark.near_miss("zero on the diagonal")
def test_triangular_matrix_that_has_an_inverse() -> None:
    assert stays_finite(
        lambda: torch.linalg.solve_triangular(torch.eye(2), torch.ones(2, 1), upper=True)
    )
    program = lambda: torch.linalg.solve_triangular(torch.eye(2), t([[INF], [1.0]]), upper=True)  # noqa: E731
    assert "diagonal" not in why(program, op="linalg_solve_triangular")


@pytest.mark.first("singular matrix")
def test_matrix_without_inverse() -> None:
    found = why(lambda: torch.linalg.inv_ex(t([[1.0, 2.0], [2.0, 4.0]])), names={"A": "covariance"})
    assert found.startswith(
        "covariance is singular and has no inverse: pivot 1 of its elimination is 0"
    )


@pytest.mark.second("singular matrix")
def test_solution_with_a_singular_matrix_in_a_batch() -> None:
    matrix = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    matrix[1] = 0
    found = why(lambda: torch.linalg.solve_ex(matrix, torch.ones(2, 2, 1, dtype=torch.float64)))
    assert "The matrix at [1, :, :] is singular and has no inverse: pivot 0" in found


@pytest.mark.near_miss("singular matrix")
def test_matrix_that_has_an_inverse() -> None:
    assert stays_finite(lambda: torch.linalg.inv_ex(torch.eye(2)))
    program = lambda: torch.linalg.solve_ex(torch.eye(2), t([INF, 1.0]))  # noqa: E731
    assert "singular" not in why(program, op="_linalg_solve_ex")


@pytest.mark.first("determinant of a singular matrix")
def test_determinant_of_a_singular_matrix() -> None:
    found = why(lambda: torch.slogdet(torch.zeros(2, 2)))
    assert found.startswith(
        "log|det| of a singular matrix is -inf: the determinant of the matrix is 0"
    )


@pytest.mark.second("determinant of a singular matrix")
def test_logarithm_of_a_determinant_in_a_batch() -> None:
    batch = torch.stack([torch.eye(2), torch.zeros(2, 2)]).double()
    assert "the matrix at [1, :, :] is 0" in why(lambda: torch.logdet(batch), op="_linalg_slogdet")


@pytest.mark.near_miss("determinant of a singular matrix")
def test_determinant_of_others() -> None:
    assert stays_finite(lambda: torch.slogdet(-torch.eye(3)))


@pytest.mark.first("overflow of matrix_exp")
def test_matrix_exponential() -> None:
    found = why(lambda: torch.matrix_exp(torch.full((3, 3), 100.0)))
    assert "overflows float32" in found and "of the argument is 300" in found


@pytest.mark.second("overflow of matrix_exp")
def test_matrix_exponential_of_a_batch_in_double() -> None:
    batch = torch.zeros(2, 2, 2, dtype=torch.float64)
    batch[1] = 500.0
    assert "the argument at [1, :, :] is 1000" in why(lambda: torch.matrix_exp(batch))


@pytest.mark.near_miss("overflow of matrix_exp")
def test_matrix_exponential_that_fits() -> None:
    assert stays_finite(lambda: torch.matrix_exp(torch.full((3, 3), 10.0)))
    assert stays_finite(lambda: torch.matrix_exp(torch.eye(2) * -500))
