"""What clients get back in a second exchange of a round, and what they answer to it."""

from typing import final

from jaxtyping import Integer, Shaped
from torch import Tensor

from common import protocol
from common.protocol import Share


@final
class Reward(protocol.Down):
    """The second exchange, to one client."""

    y: Integer[Tensor, " N"] | None  #: indices into the client's d; None where theta is sent
    theta: Shaped[Tensor, "N C"] | None  #: θ in the wire's dtype; None where labels are sent


@final
class Gain(protocol.Up):
    """The client's answer: accuracies on the whole test set."""

    before: Share
    after: Share
