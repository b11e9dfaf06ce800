"""One training loop and what it uses: task, optimisers, device, costs."""
