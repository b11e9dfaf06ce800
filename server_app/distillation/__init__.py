"""Server-side distillation: on noise, on a public set, on generated images."""
