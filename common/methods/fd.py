"""FD (FedDistill): clients exchange the mean logits of each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", NeurIPS workshop 2018, Algorithm 1.

Client k has a private model θ_k of any architecture with logits z = f(θ_k; x). Round t:

    client: CE(z, y) + λ · D(z, ẑ_y), and sends the means of z by class, [C, C], over its steps
    server: ẑ_c ← mean over the clients of this round that have class c

D is the cross-entropy to σ(ẑ_y) (``distance = "ce-soft"``). In round 1, and for a class that no
client sent, there is no second term. With λ = 0 the models are those of ``local``.

Bytes: 4C² + 8C up and 4C² + C down, for each client and round.

Membership: under ``leave-one-out`` a newcomer receives the mean of all clients.

Deviations, with their switches:
- In the paper a client's teacher is the mean of the other clients
  (``weights = "leave-one-out"``); HtFLlib's includes the receiver, which is the default.
- HtFLlib passes ẑ_y to the cross-entropy without softmax, and the sample's own logits for a class
  without row (``distance = "raw"``). ``"mse"`` is the mean square difference.
- ``collect = "final"`` takes the means from the trained model in evaluation mode.
- The paper's augmentation by a generative model (FAug) is omitted.
- In asynchronous rounds, which the paper does not have, the server combines the newest reply of
  every member, whatever its age.
"""

from typing import ClassVar, Literal, final

from common.techniques.class_table import LearnerOptions, Outputs

__all__ = ["Options"]


@final
class Options(LearnerOptions):
    facts = LearnerOptions.facts.but(
        asynchronous="tables",
        down="means of logits by class",
        up="means of logits by class",
        sends="mean logits of its classes",
        leaves="mean logits of each class that it has, over its training",
        infers="its private model's mean answer for each class, and which classes it has. Under "
        '`fd.weights = "leave-one-out"` a client of two gets the other\'s means',
    )

    leaks = "mean logits of single clients by class"
    outputs: ClassVar[Outputs] = "logits"

    distance: Literal["ce-soft", "raw", "mse"] = "ce-soft"
    """D: cross-entropy to softmax targets, to the mean logits themselves, or mean square."""
    weights: Literal["uniform", "leave-one-out"] = "uniform"
    """Clients in the mean: all that have the class, or all of these but the receiver."""
