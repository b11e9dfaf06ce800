"""FlexLoRA: the mean update of adapters of any rank, cut to each client's rank.

Bai, Chen, Qian, Yao, Li, "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks
and Client Resources", NeurIPS 2024, section 4.

Client k has the frozen network W and an adapter of rank r_k in each chosen layer, W + s_k B_k A_k.
Round t: client k trains both factors and sends them. The server computes the mean update and its
singular values,

    ΔW = Σ_{k∈S_t} p_k s_k B_k A_k = U Σ Vᵀ

and sends client k the best approximation of its rank r = r_k: A = (V_r)ᵀ and B = U_r Σ_r / s_k. The
run's model is the base with the whole ΔW. The head for classes has FedAvg's mean.

A client with a larger rank than ΔW receives further rows of A as before the first round, random,
and columns of B that are 0: zeros in both would never get a gradient.

Deviations:
- p_k ∝ n_k by default, and s is equal for all ranks ([adapter]); the released code has α = 16.
- The decomposition is of the factors, not of the o × i matrix, whose decomposition by the released
  code takes minutes for each client.
"""

from typing import final

from common.methods.fedavg import Reply as Reply
from common.methods.fedavg import Request as Request
from common.methods.flora import DenseUpdate


@final
class Options(DenseUpdate):
    """Options of FlexLoRA."""

    facts = DenseUpdate.facts.but(
        down="A and B of the client's rank, and the head for classes",
        whole="the base with the whole ΔW",
    )
