"""Local fine-tuning of a copy of the model that a client scores (``finetune.epochs``).

FedRep's baselines train the head alone, after the last round (Collins et al., ICML 2021, released
code); FL-bench trains a copy of the network at each test.
"""

import copy

from client_app.participant import Participant
from common import seeds
from common.models.classifier import Classifier
from common.training.task import epochs


def fine_tuned(p: Participant, t: int, net: Classifier) -> tuple[Classifier, dict[str, float]]:
    """Return a copy of ``net`` after training on the client's samples, and the scalars of ``fit``.

    The settings are those of [train] in round t, for ``finetune.epochs`` epochs of the client's
    training samples, in the order of the stream "finetune". With ``finetune.layers = "head"`` the
    other layers are in evaluation mode and keep their parameters and statistics.
    """
    o, tuned = p.config.finetune, copy.deepcopy(net).requires_grad_(True).train()
    if o.layers == "head":
        tuned.requires_grad_(False).eval()
        tuned.head.requires_grad_(True)
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]

    batches = p.task.batches(*p.train_set, "finetune", p.k, t)
    with seeds.scope(p.task.seed, "finetune", p.k, t):
        metrics = p.task.fit(t, trained, epochs(batches, o.epochs), p.supervised(tuned))
    return tuned, metrics
