"""Messages of a round's second exchange, in which clients receive predictions to train on."""

from typing import final

from jaxtyping import Integer, Shaped
from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Share


@final
class IncentiveRequest(protocol.Request, kind="incentive.Reward"):
    """Request of the second exchange to one client."""

    y: Integer[Tensor, " N"] | None  #: indices into the client's d; None where theta is sent
    theta: Shaped[Tensor, "N C"] | None  #: θ in the wire's dtype; None where labels are sent


@final
class IncentiveReply(protocol.Reply, kind="incentive.Gain"):
    """Reply of the second exchange: accuracies on the whole test set before and after it."""

    before: Share
    after: Share
