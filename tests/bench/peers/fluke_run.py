"""fluke's own FedAvg."""

import runpy
from pathlib import Path

import torch

VISION = Path(__file__).parents[3] / "common" / "vision.py"
torchvision = runpy.run_path(str(VISION))  # importable beside a torch without CUDA, too

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402
from shared import LeNet5, tell, work  # noqa: E402


class Rounds(FederationObserver):
    """Tells of each round; with ``start_round`` the first begins."""

    accuracy = 0.0

    def start_round(self, round: int, global_model: torch.nn.Module) -> None:
        if round == 1:
            tell(ready=True)

    def server_evaluation(self, round: int, eval_type: str, evals: dict, **_: object) -> None:
        self.accuracy = float(evals["accuracy"])

    def end_round(self, round: int) -> None:
        tell(round=round, accuracy=self.accuracy)


def main() -> None:
    task = work()
    loaders = [
        FastDataLoader(*task.share(k), num_labels=10, batch_size=task.batch, shuffle=True)
        for k in range(task.clients)
    ]
    test = FastDataLoader(*task.test, num_labels=10, batch_size=500)
    data = DummyDataContainer(loaders, [None] * task.clients, test, 10)
    FlukeENV().set_seed(1)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
    client = DDict(
        batch_size=task.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=task.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
    )
    hyper = DDict(model=LeNet5(), client=client, server=DDict(weighted=True))
    federation = FedAVG(task.clients, DataSplitter(data), hyper)
    federation.set_callbacks(Rounds())
    federation.run(n_rounds=task.rounds, eligible_perc=1.0)


main()
