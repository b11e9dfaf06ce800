"""Run HtFLlib's own code for some rounds; a process of its own, started by ``htfllib.py``.

It reads ``job.json`` in the current folder, ``system`` of a folder that HtFLlib's relative paths
start from: method, models, settings, and the names of safetensors files with the first weights of
each client and of the server, in the order of HtFLlib's state dict. It writes the weights after
the last round to ``after.safetensors`` and the accuracies by round to ``after.json``.
"""

import argparse
import importlib
import json
import sys
import types
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

SERVERS = {
    "local": ("serverlocal", "Local"),
    "fedproto": ("serverproto", "FedProto"),
    "fml": ("serverfml", "FML"),
    "fd": ("serverfd", "FD"),
    "lg-fedavg": ("serverlg", "LG_FedAvg"),
}
"""Our name of a method to the module and class of HtFLlib's server."""


def main() -> None:
    with open("job.json", encoding="utf-8") as file:
        job: dict[str, Any] = json.load(file)
    torch.set_num_threads(1)
    sys.path.insert(0, job["system"])
    importlib.import_module("common.vision")  # declares what torchvision lacks on a CPU
    try:
        importlib.import_module("h5py")
    except ImportError:
        sys.modules["h5py"] = types.ModuleType("h5py")  # only their file of results needs it
    models = importlib.import_module("flcore.trainmodel.models")
    items = importlib.import_module("flcore.clients.clientbase")
    args = argparse.Namespace(**SETTINGS, **job["settings"])

    def first(name: str, cid: int) -> nn.Module:
        """Return their network of client ``cid`` with the weights of the file ``name``."""
        net: nn.Module = models.BaseHeadSplit(args, cid)
        state, stored = net.state_dict(), load_file(f"{name}.safetensors")
        ours = [stored[key] for key in sorted(stored)]
        assert [value.shape for value in state.values()] == [value.shape for value in ours], name
        net.load_state_dict(dict(zip(state, ours, strict=True)))
        return net

    for k in range(args.num_clients):
        items.save_item(first(f"client-{k}", k), f"Client_{k}", "model", args.models_folder_name)
    module, kind = SERVERS[job["method"]]
    server = getattr(importlib.import_module(f"flcore.servers.{module}"), kind)(args, 0)
    if job["method"] == "fml":
        items.save_item(first("server", 0), "Server", "global_model", server.save_folder_name)
    server.save_results = lambda: None
    server.train()
    after = {
        f"client-{k}/{i:03d}": value
        for k in range(args.num_clients)
        for i, value in enumerate(_item(items, f"Client_{k}", "model", server))
    }
    named = {"fml": "global_model", "lg-fedavg": "head"}.get(job["method"])
    if named:
        values = enumerate(_item(items, "Server", named, server))
        after |= {f"server/{i:03d}": value for i, value in values}
    if job["method"] == "lg-fedavg":  # HtFLlib scores clients with the newest head
        server.send_parameters()
    server.evaluate()
    save_file({name: value.contiguous() for name, value in after.items()}, "after.safetensors")
    with open("after.json", "w", encoding="utf-8") as file:
        json.dump({"accuracies": server.rs_test_acc, "seconds": server.Budget}, file)


def _item(items: Any, role: str, name: str, server: Any) -> list[torch.Tensor]:
    net: nn.Module = items.load_item(role, name, server.save_folder_name)
    return [value.detach().clone() for value in net.state_dict().values()]


SETTINGS = {
    **{"device": "cpu", "few_shot": 0, "join_ratio": 1.0, "random_join_ratio": False},
    **{"time_select": False, "goal": "test", "time_threthold": 10000, "top_cnt": 100},
    **{"auto_break": False, "save_folder_name": "items", "models_folder_name": "first"},
    **{"eval_gap": 1, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0},
    **{"algorithm": "ours", "dataset": "ours"},
}
"""Settings of HtFLlib that do not differ between the runs here."""


if __name__ == "__main__":
    main()
