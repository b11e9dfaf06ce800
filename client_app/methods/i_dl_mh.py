"""I-DL-MH, client half: DL-MH's client with a second exchange."""

from typing import final

from client_app.bases.incentive import RewardedClient
from common.methods.i_dl_mh import Options, Reply, Request
from common.models.classifier import Classifier


@final
class IDLMH(RewardedClient[Options, Request]):
    """DL-MH's client, which can opt in to the incentive."""

    reply_type = Reply

    @property
    def opts_in(self) -> bool:
        """Whether this client takes part: the node's ``incentive``, else the run's ``opt-in``."""
        value = self.participant.node.get("incentive", self.options.opt_in)
        if not isinstance(value, bool):
            raise ValueError(f"node config incentive = {value!r}; it must be true or false")
        return value

    @property
    def full(self) -> bool:
        return self.options.incentive == "full"

    def admit(self) -> None:
        super().admit()
        _ = self.opts_in

    def prediction_fields(self, net: Classifier) -> dict[str, object]:
        return {**super().prediction_fields(net), "incentive": self.opts_in}
