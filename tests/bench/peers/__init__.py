"""The same FedAvg work in other systems, each in an environment of its own."""
