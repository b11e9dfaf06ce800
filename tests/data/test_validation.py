"""``data.validation``: samples for choosing settings, of which training and tests see nothing."""

import pytest
import torch

from common.data import load, pool_of
from common.data.shares import check_share, for_testing, share
from common.settings.config import Data

BASE = {"name": "digits", "partition": "label_dirichlet", "samples": 600}


@pytest.mark.parametrize("test", ["split", "merge"])
def test_it_is_taken_from_the_training_samples_alone(test: str) -> None:
    plain = Data(**BASE, test=test)
    held = plain.model_copy(update={"validation": 0.25})
    scored = held.model_copy(update={"score_on": "validation"})
    for k in range(4):
        whole, rest, validation = (share(data, k, 4, 1) for data in (plain, held, scored))
        assert torch.equal(whole.test, rest.test) and torch.equal(rest.train, validation.train)
        parts = torch.cat([rest.train, validation.test])
        assert torch.equal(parts.sort().values, whole.train)
        assert len(validation.test) == len(whole.train) - int(0.75 * len(whole.train))


@pytest.mark.parametrize("test", ["split", "merge"])
def test_the_server_scores_on_the_validation_samples_of_all_clients(test: str) -> None:
    data = Data(**BASE, test=test, validation=0.25, score_on="validation")
    rows = torch.cat([share(data, k, 4, 1).test for k in range(4)]).sort().values
    scored, pool = for_testing(data, 4, 1), pool_of(data, 1)
    assert torch.equal(scored.x_test, pool.x[rows]) and torch.equal(scored.y_test, pool.y[rows])
    tested = for_testing(data.model_copy(update={"score_on": "test"}), 4, 1)
    if test == "split":
        assert torch.equal(tested.x_test, load(data).x_test)


def test_samples_of_two_clients_are_no_validation_samples_of_the_server() -> None:
    data = Data(**BASE | {"partition": "niid3"}, validation=0.25, score_on="validation")
    trained = torch.cat([share(data, k, 5, 1).train for k in range(5)])
    own = torch.cat([share(data, k, 5, 1).test for k in range(5)]).unique()
    alone = own[~torch.isin(own, trained)]
    assert 0 < len(alone) < len(own)
    assert torch.equal(for_testing(data, 5, 1).y_test, pool_of(data, 1).y[alone])


def test_impossible_values_are_refused() -> None:
    for changes, line in (
        ({"score_on": "validation"}, 'data.score-on = "validation" needs a data.validation above'),
        ({"score_on": "validation", "validation": 0.1, "partition": "own"}, "has no validation"),
    ):
        with pytest.raises(ValueError, match=line):
            Data(**{**BASE, **changes}).check()
    few = Data(**BASE | {"partition": "iid"}, validation=0.99)
    with pytest.raises(ValueError, match="client 0 has 1 training .* or a smaller data.validation"):
        check_share(few, 0, 4, 1)
    with pytest.raises(ValueError, match='data.score-on = "validation" needs clients'):
        for_testing(Data(**BASE, validation=0.1, score_on="validation"), 0, 1)
