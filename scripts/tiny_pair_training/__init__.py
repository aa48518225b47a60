"""Training of the tiny pair that the package ships; run it through train_tiny_pair.py."""
