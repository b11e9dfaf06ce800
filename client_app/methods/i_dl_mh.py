"""I-DL-MH, client half: DL-MH's, and afterwards a lesson from the server."""

from typing import final

from client_app.bases.incentive import RewardedClient
from common.methods.i_dl_mh import Options, Reply, Request
from common.models.classifier import Classifier


@final
class IDLMH(RewardedClient[Options, Request]):
    """DL-MH's client, which may want the incentive."""

    request_type, reply_type = Request, Reply

    @property
    def wants(self) -> bool:
        """The node's ``incentive``, else the run's ``opt-in``."""
        wish = self.participant.node.get("incentive", self.options.opt_in)
        if not isinstance(wish, bool):
            raise ValueError(f"node config incentive = {wish!r}; it must be true or false")
        return wish

    @property
    def full(self) -> bool:
        return self.options.incentive == "full"

    def admit(self) -> None:
        super().admit()
        _ = self.wants

    def said(self, net: Classifier) -> dict[str, object]:
        return {**super().said(net), "incentive": self.wants}
