"""Flower's own FedAvg and its simulation, as its documentation has them."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import LeNet5, Work, tell
from torch.utils.data import DataLoader, TensorDataset

FOLDER, WORKERS = Path(sys.argv[1]), int(sys.argv[2])
HELD: dict[Path, Work] = {}
client_app, server_app = ClientApp(), ServerApp()


def task() -> Work:
    """Read once in a process: an actor serves many clients."""
    if FOLDER not in HELD:
        torch.set_num_threads(1)
        HELD[FOLDER] = Work(FOLDER)
    return HELD[FOLDER]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    net = LeNet5()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task().share(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=task().lr)
    for images, labels in DataLoader(TensorDataset(x, y), task().batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    net = LeNet5()

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        accuracy = task().accuracy(net)
        tell(**({"round": t, "accuracy": accuracy} if t else {"ready": True}))
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({}),
        num_rounds=task().rounds,
        evaluate_fn=evaluate,
    )


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=task().clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "include_dashboard": False},
        },
    )
    sys.exit(0)
