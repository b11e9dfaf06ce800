"""The cost formulas of DL-MH's paper, section 5.2.1: numbers beside bytes."""

import pytest

from common import models
from deploy.report.groups import Group
from deploy.report.pages import one
from deploy.report.read import read
from deploy.report.sections import formula_cost, incentive
from deploy.report.style import render


@pytest.mark.full
def test_the_report_shows_the_formulas_count_the_bytes_and_their_ratio(run):
    knobs = {"data__public": 0.6, "data__samples": 200, "confidence.epochs": 1}
    done = run(method="i-dl-mh", rounds=1, **knobs)
    record = read(done.folder)
    section = formula_cost([Group("i-dl-mh", [record])])
    assert section is not None and section.cards[0].table is not None
    (row,) = section.cards[0].table.rows
    cost = done.summary["cost"]
    assert row[2:] == (
        f"{cost['numbers']:,}",
        f"{cost['bytes']:,}",
        f"{cost['bytes'] / cost['numbers']:.3f}",
    )
    gains = incentive(record)
    assert gains is not None and gains.cards[0].table is not None
    assert len(gains.cards[0].table.rows) == 4
    page = render(one(record))
    assert "Communication" in page and "Incentive" in page


def test_a_run_without_a_formula_has_no_such_section(run):
    record = read(run(method="fedorion", rounds=1).folder)
    assert formula_cost([Group("fedorion", [record])]) is None and incentive(record) is None


def test_fedavg_counts_its_parameters_twice_per_client_and_round(run):
    done = run(method="fedavg", rounds=2)
    P = models.parameters("mlp@0.25", (1, 8, 8), 3)
    Q = models.parameters("cnn2@0.5", (1, 8, 8), 3)
    assert done.summary["cost"]["numbers"] == 2 * 4 * 2 * min(P, Q)
