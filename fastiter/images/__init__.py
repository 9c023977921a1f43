"""Images for training."""
