"""Where a robust average protects nothing: the median of two clients is their mean."""

from collections import Counter

from common.config import MethodOptions
from common.protocol import Up
from server_app.global_model import Averaged
from server_app.method import Method

FROM = 3  #: clients, of whom a median or a trimmed mean leaves one out


def unprotected(method: Method[MethodOptions, Up]) -> str:
    """A line for whoever counts on ``average.robust``, if some entry of a model is averaged over
    one or two clients alone; else nothing. After the census.
    """
    average, run = method.config.average, method.config.run
    if not isinstance(method, Averaged) or average.robust not in ("median", "trimmed"):
        return ""
    owners: Counter[object] = Counter()
    having: dict[object, set[str]] = {}
    for client in method.clients:
        spec = method.trains(client)
        for name, value in method.task.expected(spec).items():
            entry = (spec if average.across == "same" else "", name, tuple(value.shape))
            owners[entry] += 1
            having.setdefault(entry, set()).add(spec)
    few = min(run.per_round or len(method.clients), len(method.clients))
    alone = {spec for entry, n in owners.items() if min(n, few) < FROM for spec in having[entry]}
    if not alone:
        return ""
    return (
        f'average.robust = "{average.robust}" protects nothing where the average is of one or two '
        f"clients: parameters of {', '.join(sorted(alone))}"
    )
