"""DENSE, client half: train the own model and send it."""

from typing import final

from client_app.private import Private
from common.methods.dense import Down, OneShot, Up


@final
class Dense(Private[OneShot, Down]):
    """CE(f(w_k; x), y); w_k goes to the server."""

    receives = Down

    def train(self, down: Down) -> Up:
        net = self.local(down.t).train()
        return Up(metrics=self.learn(down.t, net), w=self.keep(down.t, net))
