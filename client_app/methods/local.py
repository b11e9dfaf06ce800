"""Local training, client half: go on with the own model."""

from typing import final

from client_app.private import Private
from common.methods.local import Down, Options, Up


@final
class Local(Private[Options, Down]):
    """CE(f(θ_k; x), y)."""

    receives = Down

    def train(self, down: Down) -> Up:
        p, net = self.participant, self.local(down.t).train()
        metrics = self.learn(down.t, net)
        self.keep(down.t, net)
        if self.options.whole_test:
            metrics = {**metrics, "test_accuracy": p.test_accuracy(net)}
        return Up(metrics=metrics)
