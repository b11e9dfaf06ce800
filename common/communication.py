"""Communication cost as the DL-MH paper counts it: numbers exchanged, not bytes.

"Adaptive Dual-Mode Distillation with Incentive Schemes", equations 7 to 10, with its symbols: M
clients; X_dist public samples; theta (ϑ) logits per sample; w confidences; mask_dict entries of the
schema. All counts are whole numbers of at least 0.
"""

from __future__ import annotations


def fedgkt(
    hidden_features: int,
    logits_server: int,
    logits_client: int,
    dataset_size: int,
    comm_rounds: int,
    M: int = 1,
) -> int:
    """Equation 7: features and both sides' logits for every sample, in every round."""
    return (hidden_features + logits_server + logits_client) * dataset_size * comm_rounds * M


def fedavg(params_server: int, params_client: int, comm_rounds: int, M: int = 1) -> int:
    """Equation 8: the model down and up in every round (the paper: "number_epochs")."""
    return (params_server + params_client) * comm_rounds * M


def dl_sh(X_dist: int, theta: int, w: int, M: int = 1) -> int:
    """Equation 9: all logits of every public sample and the confidences (w = X_dist), once.

    w = 0 is plain distillation.
    """
    return (X_dist * theta + w) * M


def dl_mh(X_dist: int, theta: int, w: int, mask_dict: int, M: int = 1) -> int:
    """Equation 10: the |d| logits of a client's own classes, its confidences and its schema."""
    return (X_dist * theta + w + mask_dict) * M


def i_dl_mh(X_dist: int, theta: int, M: int = 1) -> int:
    """Equation 10 with w = mask_dict = 0 (section 5.3): what a client downloads beyond DL-MH.

    theta = 1 for one label per sample, C for whole predictions.
    """
    return dl_mh(X_dist, theta, 0, 0, M)
