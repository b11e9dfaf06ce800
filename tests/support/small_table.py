"""A table of two methods on the data set ``toy``; a cell takes a fraction of a second."""

TABLE = """
title = "A table"
seeds = [1, 2, 3, 4, 5]
[base]
clients = 2
rounds = 3
fleet = "mlp@0.25"
data = { name = "toy", samples = 120, test-samples = 60, partition = "iid" }
train = { epochs = 2 }
[[row]]
name = "A"
set = { method = "fedavg" }
[[row]]
name = "B"
set = { method = "fedprox" }
[[column]]
name = "C"
[[column]]
name = "rounds"
"""
